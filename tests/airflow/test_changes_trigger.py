"""The trigger on a plain event loop against a real server, as the triggerer runs it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger
from asgiref.sync import async_to_sync
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.triggers import changes
from airflow_provider_pgoutput.triggers.changes import PgoutputChangesTrigger
from tests.airflow.conftest import connection_json
from tests.faults.network import Action, Fault, Proxy
from tests.pgbouncer import pgbouncer
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from quickstart.postgres import EmbeddedPostgres

    Session = psycopg.Connection[tuple[Any, ...]]

QUICK: dict[str, Any] = {"poll_interval_seconds": 0.05, "max_interval_seconds": 3600}


class NoCredentials(Exception):
    """As of a cloud's client."""


def write_wal(session: Session, size_bytes: int) -> None:
    session.execute(
        "SELECT pg_logical_emit_message(false, 'test', repeat('x', %s), true)", (size_bytes,)
    )


async def events(
    trigger: PgoutputChangesTrigger, count: int, patience_seconds: float = 10
) -> list[dict[str, Any]]:
    """The payloads of up to ``count`` events within some seconds."""
    found: list[dict[str, Any]] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_seconds):
            async with contextlib.aclosing(trigger.run()) as stream:  # type: ignore[type-var]
                async for event in stream:
                    found.append(event.payload)
                    if len(found) == count:
                        break
    return found


def test_it_can_be_made_again_from_what_it_serialises() -> None:
    trigger = PgoutputChangesTrigger(slot_name="lake", min_lag_bytes=5, waiting_since=1.5)
    path, arguments = trigger.serialize()
    assert path == f"{PgoutputChangesTrigger.__module__}.{PgoutputChangesTrigger.__qualname__}"
    assert json.loads(json.dumps(arguments)) == arguments
    assert PgoutputChangesTrigger(**arguments).serialize() == (path, arguments)
    parameters = set(inspect.signature(PgoutputChangesTrigger.__init__).parameters) - {"self"}
    assert parameters == set(arguments)


def test_it_can_stand_behind_an_asset() -> None:
    watcher = AssetWatcher(name="slot", trigger=PgoutputChangesTrigger(slot_name="lake"))
    assert Asset("source", watchers=[watcher]).watchers == [watcher]
    path, arguments = PgoutputChangesTrigger(slot_name="lake").serialize()
    assert isinstance(BaseEventTrigger.hash(path, arguments), int)


def test_its_session_is_pinned_too(source: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a role or a variable says must not lead its query to somebody else's function."""
    monkeypatch.setenv("PGOPTIONS", "-c search_path=public")

    async def shown() -> list[Any]:
        session = await PgoutputChangesTrigger(slot_name="lake")._connect()
        async with session:
            rows = []
            for name in ("search_path", "row_security", "statement_timeout"):
                cursor = await session.execute(f"SHOW {name}")
                rows.append((await cursor.fetchone() or [None])[0])
            return rows

    assert asyncio.run(shown()) == ["pg_catalog", "off", "1min"]


def test_a_wrong_slot_name_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(ConfigurationError, match="not a slot name"):
        PgoutputChangesTrigger(slot_name="Lake")


def test_it_fires_when_the_lag_is_worth_a_run(source: Session, slot: str) -> None:
    async def scenario() -> None:
        trigger = PgoutputChangesTrigger(slot_name=slot, min_lag_bytes=1 << 20, **QUICK)
        assert await events(trigger, 1, patience_seconds=0.5) == []
        write_wal(source, 1 << 20)
        (event,) = await events(trigger, 1)
        assert event["status"] == "ready"
        assert event["slot_name"] == slot
        assert event["lag_bytes"] >= 1 << 20
        assert set(event) == {
            "status", "slot_name", "confirmed_flush_lsn", "current_lsn", "lag_bytes", "wal_status",
        }  # fmt: skip
        json.dumps(event)

    asyncio.run(scenario())


def test_it_fires_once_per_position_and_again_when_the_slot_moved(
    source: Session, slot: str
) -> None:
    async def scenario() -> None:
        write_wal(source, 50_000)
        trigger = PgoutputChangesTrigger(slot_name=slot, min_lag_bytes=10_000, **QUICK)
        async with contextlib.aclosing(trigger.run()) as stream:  # type: ignore[type-var]
            first = await asyncio.wait_for(anext(stream), 10)
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0.4)
            assert not waiting.done(), "the same position fired twice"
            source.execute(
                "SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", (slot,)
            )
            write_wal(source, 50_000)
            second = await asyncio.wait_for(waiting, 10)
        assert first.payload["confirmed_flush_lsn"] != second.payload["confirmed_flush_lsn"]

    asyncio.run(scenario())


def test_it_fires_again_for_the_same_position_after_the_longest_wait(
    source: Session, slot: str
) -> None:
    write_wal(source, 50_000)
    trigger = PgoutputChangesTrigger(
        slot_name=slot, min_lag_bytes=10_000, poll_interval_seconds=0.05, max_interval_seconds=0.2
    )
    found = asyncio.run(events(trigger, 3))
    assert len(found) == 3
    assert len({event["confirmed_flush_lsn"] for event in found}) == 1


def test_little_lag_is_worth_a_run_when_the_wait_is_over(source: Session, slot: str) -> None:
    write_wal(source, 100)
    waiting = {**QUICK, "max_interval_seconds": 60}
    patient = PgoutputChangesTrigger(slot_name=slot, waiting_since=time.time(), **waiting)
    assert asyncio.run(events(patient, 1, patience_seconds=0.5)) == []
    over = PgoutputChangesTrigger(slot_name=slot, waiting_since=time.time() - 61, **waiting)
    (event,) = asyncio.run(events(over, 1))
    assert 0 < event["lag_bytes"] < 1 << 20


def test_a_slot_that_does_not_exist_is_work_for_the_first_run(source: Session) -> None:
    (event,) = asyncio.run(events(PgoutputChangesTrigger(slot_name="not_yet", **QUICK), 1))
    assert (event["status"], event["lag_bytes"]) == ("missing", None)


def test_a_lost_slot_is_told_apart(
    source: Session, slot: str, lose_slot: Callable[[], None]
) -> None:
    lose_slot()
    (event,) = asyncio.run(events(PgoutputChangesTrigger(slot_name=slot, **QUICK), 1))
    assert event["status"] == "lost"


def test_it_outlives_a_source_that_does_not_answer(
    source: Session, slot: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is killed under it, twice; it connects again and fires."""

    async def scenario() -> None:
        trigger = PgoutputChangesTrigger(slot_name=slot, min_lag_bytes=1 << 20, **QUICK)
        async with contextlib.aclosing(trigger.run()) as stream:  # type: ignore[type-var]
            waiting = asyncio.ensure_future(anext(stream))
            for _ in range(2):
                await asyncio.sleep(0.3)
                source.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
            write_wal(source, 1 << 20)
            event = await asyncio.wait_for(waiting, 15)
        assert event.payload["status"] == "ready"

    asyncio.run(scenario())


def test_it_outlives_a_cloud_that_gives_no_token(
    source: Session, postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of a cloud's client share no class with ours, with Airflow's, or with Python's own."""
    reader = conninfo_to_dict(reader_conninfo(postgres_database))
    token = str(reader["user"]), str(reader["password"]), int(str(reader["port"]))
    answers: list[Any] = [NoCredentials("canary"), NoCredentials("canary"), token]
    loops: list[object] = []

    async def running_loop() -> object:
        return asyncio.get_running_loop()

    def answer(_hook: PostgresHook, _connection: object) -> Any:
        # The client asks Airflow for its connection, which Airflow 3.1 answers in the trigger's loop only.
        loops.append(async_to_sync(running_loop)())
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    # The cloud is not here; everything up to its client is the real code.
    monkeypatch.setattr(PostgresHook, "get_iam_token", answer)
    with_iam = json.loads(connection_json(reader_conninfo(postgres_database)))
    with_iam["extra"]["iam"] = True
    monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", json.dumps(with_iam))

    async def scenario() -> None:
        (event,) = await events(PgoutputChangesTrigger(slot_name="not_yet", **QUICK), 1)
        assert event["status"] == "missing"
        assert loops == [asyncio.get_running_loop()] * 3

    asyncio.run(scenario())
    assert answers == []


def test_a_wrong_connection_fails_a_task_and_is_waited_out_by_a_watcher(
    set_connection: Callable[[str, dict[str, Any]], None],
) -> None:
    set_connection("wrong", {"conn_type": "mysql", "host": "h"})
    trigger = PgoutputChangesTrigger(slot_name="lake", postgres_conn_id="wrong", **QUICK)
    assert asyncio.run(events(trigger, 1, patience_seconds=0.3)) == []
    # As the triggerer does for a task that was deferred.
    trigger.task_instance = SimpleNamespace(task_id="changes")  # type: ignore[assignment]
    with pytest.raises(ConfigurationError, match="type postgres"):
        asyncio.run(events(trigger, 1, patience_seconds=0.3))


def test_it_gives_up_a_connection_that_fell_silent(
    source: Session,
    slot: str,
    postgres_server: EmbeddedPostgres,
    postgres_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F37: kernels still answer, nobody else does; the trigger connects anew and fires."""
    monkeypatch.setattr(changes, "_LOOK_SECONDS", 1.0)
    fault = Fault(Action.STALL, b"pg_replication_slots")
    with Proxy(postgres_server.port, fault) as proxy:
        through = proxy.conninfo(reader_conninfo(postgres_database))
        monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", connection_json(through))
        write_wal(source, 1 << 20)
        trigger = PgoutputChangesTrigger(slot_name=slot, **QUICK)
        (event,) = asyncio.run(events(trigger, 1, patience_seconds=30))
        assert fault.struck.is_set()
    assert event["status"] == "ready"


def test_it_leaves_no_statement_behind_in_a_session_that_others_use(
    source: Session,
    slot: str,
    postgres_database: str,
    server_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pooler in transaction mode gives the session back after each look. psycopg prepares after five."""
    write_wal(source, 50_000)
    with pgbouncer(server_home, reader_conninfo(postgres_database), "transaction") as pooled:
        monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", connection_json(pooled))
        trigger = PgoutputChangesTrigger(
            slot_name=slot, min_lag_bytes=10_000, poll_interval_seconds=0, max_interval_seconds=0
        )
        assert len(asyncio.run(events(trigger, 8))) == 8
        with psycopg.connect(pooled, autocommit=True) as another:
            left = another.execute("SELECT statement FROM pg_prepared_statements").fetchall()
    assert left == []


def test_it_closes_its_connection(source: Session, slot: str) -> None:
    asyncio.run(events(PgoutputChangesTrigger(slot_name=slot, **QUICK), 1, patience_seconds=0.4))
    deadline = time.monotonic() + 5
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND datname = current_database()"
    )
    while source.execute(query).fetchone() != (0,):
        assert time.monotonic() < deadline, "the connection of the trigger is still open"
        time.sleep(0.05)


def test_it_never_blocks_the_event_loop(source: Session, slot: str) -> None:
    """A ticker beside it keeps its rhythm while the source is slow to answer."""

    # The first look of a process imports these, which is no wait for the source.
    for name in ("asgiref.sync", "psycopg", "airflow.providers.postgres.hooks.postgres"):
        importlib.import_module(name)

    async def scenario() -> float:
        trigger = PgoutputChangesTrigger(slot_name=slot, poll_interval_seconds=0.01)
        task = asyncio.ensure_future(events(trigger, 1, patience_seconds=1.5))
        longest = 0.0
        while not task.done():
            before = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)
        return longest

    source.execute("BEGIN; LOCK TABLE pg_catalog.pg_authid IN ACCESS EXCLUSIVE MODE")
    try:
        # A login waits for the lock; a synchronous connect would stop the loop for as long.
        assert asyncio.run(scenario()) < 0.5
    finally:
        source.execute("ROLLBACK")
