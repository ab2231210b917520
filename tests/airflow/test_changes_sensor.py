"""The sensor, in a worker and deferred, against a real server."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, TaskDeferred

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.sensors.changes import PgoutputChangesSensor
from tests.airflow.conftest import connection_json
from tests.pgbouncer import pgbouncer
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import psycopg

    Session = psycopg.Connection[tuple[Any, ...]]


def write_wal(session: Session, size_bytes: int) -> None:
    session.execute(
        "SELECT pg_logical_emit_message(false, 'test', repeat('x', %s), true)", (size_bytes,)
    )


def sensor(slot: str, **arguments: Any) -> PgoutputChangesSensor:
    arguments.setdefault("poke_interval", 0.05)
    arguments.setdefault("max_interval", timedelta(hours=1))
    return PgoutputChangesSensor(task_id="changes", slot_name=slot, **arguments)


def test_enough_wal_is_ready_and_less_is_not(source: Session, slot: str, task_context: Any) -> None:
    waits = sensor(slot, min_lag_bytes=1 << 20)
    assert not waits.poke(task_context)
    write_wal(source, 1 << 20)
    assert waits.poke(task_context)


def test_it_looks_past_a_pooler_whose_clients_share_sessions(
    source: Session,
    slot: str,
    task_context: Any,
    postgres_database: str,
    server_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_wal(source, 50_000)
    waits = sensor(slot, min_lag_bytes=10_000)
    reader = reader_conninfo(postgres_database)
    monkeypatch.setenv("AIRFLOW_CONN_SERVER_ITSELF", connection_json(reader))
    with pgbouncer(server_home, reader, "transaction") as pooled:
        monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", connection_json(pooled))
        with pytest.raises(AirflowFailException, match="transaction or statement mode"):
            waits.poke(task_context)
        both = connection_json(pooled, direct_conn_id="server_itself")
        monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", both)
        assert waits.poke(task_context)


def test_any_wal_is_ready_after_the_longest_wait(
    source: Session, slot: str, task_context: Any
) -> None:
    write_wal(source, 100)
    assert not sensor(slot).poke(task_context)
    assert sensor(slot, max_interval=0).poke(task_context)


def test_a_slot_that_does_not_exist_is_ready(source: Session, task_context: Any) -> None:
    assert sensor("not_yet").poke(task_context)


def test_a_slot_that_somebody_reads_is_not_ready(
    source: Session, slot: str, task_context: Any
) -> None:
    write_wal(source, 50_000)
    waits = sensor(slot, min_lag_bytes="1000")
    assert waits.poke(task_context)
    from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook

    source.execute("CREATE PUBLICATION p")
    with contextlib.closing(PgoutputHook().get_conn(replication=True)) as walsender:
        walsender.execute(
            f"START_REPLICATION SLOT {slot} LOGICAL 0/0"
            " (proto_version '1', publication_names 'p')".encode()
        )
        assert not waits.poke(task_context)


def test_a_lost_slot_fails_at_once(
    source: Session, slot: str, lose_slot: Callable[[], None], task_context: Any
) -> None:
    lose_slot()
    with pytest.raises(
        AirflowFailException, match=f"SlotLost: .*{slot}.*What to do: run once with on_slot_lost"
    ):
        sensor(slot).poke(task_context)
    with pytest.raises(ConfigurationError, match="Unknown on_slot_lost"):
        sensor(slot, on_slot_lost="ignore")
    # The run makes a new one and copies the tables again.
    for way in ("copy", "difference"):
        assert sensor(slot, on_slot_lost=way).poke(task_context)


def test_a_slot_of_another_plugin_fails_at_once(source: Session, task_context: Any) -> None:
    source.execute("SELECT pg_create_logical_replication_slot('other_plugin', 'test_decoding')")
    with pytest.raises(AirflowFailException, match=r"WrongSlot: .*test_decoding"):
        sensor("other_plugin").poke(task_context)


def test_a_wrong_argument_fails_at_once(source: Session, task_context: Any) -> None:
    with pytest.raises(AirflowFailException, match="min_lag_bytes"):
        sensor("not_yet", min_lag_bytes="much").poke(task_context)


def test_it_waits_in_a_worker_until_its_timeout(
    source: Session, slot: str, task_context: Any
) -> None:
    with pytest.raises(AirflowSensorTimeout):
        sensor(slot, deferrable=False, timeout=0.2).execute(task_context)


def test_it_defers_only_when_it_must_wait_and_goes_on_after_the_event(
    source: Session, slot: str, task_context: Any
) -> None:
    waits = sensor(slot, deferrable=True, min_lag_bytes="20000", timeout=60)
    with pytest.raises(TaskDeferred) as deferred:
        waits.execute(task_context)
    trigger = deferred.value.trigger
    assert trigger is not None
    assert deferred.value.timeout == timedelta(seconds=60)
    assert trigger.serialize()[1]["min_lag_bytes"] == 20_000

    write_wal(source, 20_000)

    async def first_event() -> Any:
        return await asyncio.wait_for(anext(trigger.run()), 10)

    event = asyncio.run(first_event())
    waits.execute_complete(task_context, event.payload)
    waits.execute(task_context)  # Ready now: ends without deferring.


def test_a_slot_lost_while_deferred_fails_at_once(task_context: Any) -> None:
    event = {
        "status": "lost", "slot_name": "lake", "confirmed_flush_lsn": "0/1",
        "current_lsn": "0/2", "lag_bytes": 1, "wal_status": "lost",
    }  # fmt: skip
    with pytest.raises(AirflowFailException, match=r"SlotLost: .*slot lake, LSN 0/1"):
        sensor("lake", deferrable=True).execute_complete(task_context, event)
    sensor("lake", deferrable=True, on_slot_lost="copy").execute_complete(task_context, event)


def test_its_template_fields_are_its_attributes() -> None:
    waits = sensor("lake")
    for field in waits.template_fields:
        assert hasattr(waits, field)
