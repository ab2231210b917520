"""PgBouncer between the pipeline and the server: what works through it, and what is refused by name."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgoutput.capture.slot.replication_slot import create_slot
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.errors import ConfigurationError, PgoutputError, SourceUnavailable
from tests.capture.pipeline_support import checkpoint_with_shapes
from tests.pgbouncer import pgbouncer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.capture.pipeline_support import Source

    Client = psycopg.Connection[tuple[object, ...]]

#: What an owner of a pooler may have set so that drivers with startup options get in.
_IGNORES_OPTIONS = "ignore_startup_parameters = options"


@pytest.fixture
def pooled(source: Source, server_home: Path) -> Iterator[str]:
    """Leads to a pooler in session mode, which refuses startup options."""
    with pgbouncer(server_home, source.reader, "session") as conninfo:
        yield conninfo


def test_changes_are_read_through_a_pooler_and_tables_copied_past_it(
    source: Source, pooled: str
) -> None:
    both = {"conninfo": pooled, "direct_conninfo": source.reader}
    source.execute("INSERT INTO t VALUES (1, 'copied')")
    first = source.stage(**both)
    assert source.copied(first, "public.t") == [{"a": 1, "b": "copied"}]

    source.execute(
        "INSERT INTO t VALUES (2, 'streamed')",
        "CREATE TABLE u(a int PRIMARY KEY, m money)",
        "INSERT INTO u VALUES (3, 4)",
        "ALTER PUBLICATION p ADD TABLE u",
    )
    second = source.stage(
        checkpoint=checkpoint_with_shapes(first), decode_parallelism=2, part_bytes=64, **both
    )
    assert [row["b"] for row in source.changes(second, "public.t")] == ["streamed"]
    assert [row["a"] for row in source.copied(second, "public.u")] == [3]
    left = source.execute("SELECT slot_name FROM pg_replication_slots WHERE temporary")
    assert left == [], "the pooler would keep the session, and with it a temporary slot"

    # Without another way to the server the pooler serves as long as nothing has to be copied.
    source.execute("INSERT INTO t VALUES (5, 'alone')")
    third = source.stage(checkpoint=checkpoint_with_shapes(second), conninfo=pooled)
    assert [row["b"] for row in source.changes(third, "public.t")] == ["alone"]


def test_settings_hold_where_the_pooler_takes_none_at_the_start(
    source: Source, pooled: str
) -> None:
    timeouts = [
        name
        for (name,) in source.execute(
            "SELECT name FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')"
        )
    ]
    for name, value in {**dict.fromkeys(timeouts, "1s"), "DateStyle": "German"}.items():
        source.execute(f"ALTER ROLE cdc SET {name} = '{value}'")
    try:
        with sessions.connect(pooled) as session:
            assert session.execute("SHOW DateStyle").fetchone() == ("ISO, YMD",)
        # As a copy does it: one transaction, longer than the role's limit.
        with sessions.connect_adbc(pooled) as adbc, adbc.cursor() as cursor:
            adbc.adbc_connection.set_autocommit(False)
            cursor.execute("SELECT '2001-02-03'::date::text, pg_sleep(1.2)::text")
            assert cursor.fetchall() == [("2001-02-03", "")]
            adbc.adbc_connection.set_autocommit(True)
    finally:
        source.execute("ALTER ROLE cdc RESET ALL")


@pytest.mark.parametrize("needs", ["new slot", "new table", "lost slot", "walsender"])
def test_what_needs_a_replication_connection_is_refused_before_anything_is_made(
    source: Source, pooled: str, needs: str
) -> None:
    options: dict[str, object] = {}
    if needs != "new slot":
        first = source.stage()
        options["checkpoint"] = checkpoint_with_shapes(first)
    if needs == "new table":
        source.execute("CREATE TABLE u(a int PRIMARY KEY)", "ALTER PUBLICATION p ADD TABLE u")
    elif needs == "lost slot":
        source.drop_slot(source.slot_name)
        options["on_slot_lost"] = "copy"
    elif needs == "walsender":
        options["transport"] = "walsender"
    before = source.manifests(), source.confirmed()
    with pytest.raises(ConfigurationError) as refused:
        source.stage(conninfo=pooled, **options)
    _names_both(str(refused.value), source, pooled)
    assert "direct_conn_id" in str(refused.value)
    assert (source.manifests(), source.confirmed()) == before


@pytest.mark.parametrize("has_direct", [True, False])
def test_auto_counts_on_no_copies_of_the_slot_behind_a_pooler(
    source: Source, pooled: str, caplog: pytest.LogCaptureFixture, *, has_direct: bool
) -> None:
    """The parts would fit the server's files, but only copies of the slot could be read in parts.

    Without a direct connection the walsender is out of reach. So SQL is tried, and here the answer fits.
    """
    checkpoint = checkpoint_with_shapes(source.stage())
    ((database,),) = source.execute("SELECT current_database()")
    source.execute(
        f"ALTER DATABASE {database} SET temp_file_limit = '1MB'",
        "CREATE TABLE unpublished AS SELECT g, repeat('x', 100) FROM generate_series(1, 20000) g",
        "INSERT INTO t VALUES (1, 'one')",
    )
    with caplog.at_level("INFO"):
        found = source.stage(
            checkpoint=checkpoint,
            transport="auto",
            part_bytes=100_000,
            decode_parallelism=2,
            conninfo=pooled,
            direct_conninfo=source.reader if has_direct else None,
        )
    assert source.changes(found, "public.t")[0]["b"] == "one"
    chosen = [each for each in caplog.messages if "over the walsender" in each]
    assert ["may not fit" in each for each in chosen] == [True] * has_direct
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert not [each for each in warnings if "copy" in each]


def test_a_pooler_that_ignores_the_wish_for_a_replication_connection_is_refused(
    source: Source, server_home: Path
) -> None:
    ignores = f"{_IGNORES_OPTIONS}, replication"
    with pgbouncer(server_home, source.reader, "session", ignores) as conninfo:
        with pytest.raises(ConfigurationError, match="passes no replication connection") as refused:
            source.stage(conninfo=conninfo)
        _names_both(str(refused.value), source, conninfo)
    assert source.confirmed() is None


@pytest.mark.parametrize("slot_exists", [False, True])
def test_a_direct_connection_to_another_database_is_refused(
    source: Source, pooled: str, *, slot_exists: bool
) -> None:
    """The pooler leads to the right one. A copy would be of another database's tables."""
    options: dict[str, object] = {}
    if slot_exists:
        options["checkpoint"] = checkpoint_with_shapes(source.stage())
        source.execute("CREATE TABLE u(a int PRIMARY KEY)", "ALTER PUBLICATION p ADD TABLE u")
    before = source.manifests(), source.confirmed()
    other = make_conninfo(source.reader, dbname="postgres")
    with pytest.raises(ConfigurationError, match=r"'postgres' of system.*direct_conn_id"):
        source.stage(conninfo=pooled, direct_conninfo=other, **options)
    assert (source.manifests(), source.confirmed()) == before


@pytest.mark.parametrize(
    ("differs", "error"),
    [
        ({"system_identifier": "1"}, ConfigurationError),
        ({"is_standby": True}, SourceUnavailable),
        ({"timeline": 7}, SourceUnavailable),
    ],
)
def test_no_slot_is_made_on_another_server_than_the_run_reads(
    source: Source, differs: dict[str, Any], error: type[PgoutputError]
) -> None:
    expected = dataclasses.replace(source.server(), **differs)
    with pytest.raises(error, match="direct_conn_id") as refused:
        create_slot(source.reader, source.slot_name, expected)
    assert type(refused.value) is error
    assert source.confirmed() is None


@pytest.mark.parametrize("settings", ["", _IGNORES_OPTIONS, "server_round_robin = 1"])
@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_pooler_whose_clients_share_sessions_is_refused_and_its_sessions_stay_as_they_are(
    source: Source, server_home: Path, mode: str, settings: str
) -> None:
    with (
        pgbouncer(server_home, source.reader, mode, settings) as conninfo,
        _other_clients(conninfo) as others,
    ):
        # So the pooler has exactly two sessions of the server that are free.
        before = _seen_at_once(source, others)
        assert len(before) == 2
        with pytest.raises(ConfigurationError) as refused:
            source.stage(conninfo=conninfo)
        _names_both(str(refused.value), source, conninfo)
        assert source.confirmed() is None
        assert set(_seen_at_once(source, others).values()) == set(before.values())


@contextlib.contextmanager
def _other_clients(conninfo: str) -> Iterator[list[Client]]:
    with contextlib.ExitStack() as opened:
        yield [
            opened.enter_context(psycopg.connect(conninfo, autocommit=True, prepare_threshold=None))
            for _ in range(2)
        ]


def _seen_at_once(source: Source, clients: list[Client]) -> dict[int, tuple[object, ...]]:
    """Each client's session of the server, by its process: the settings in it, and prepared statements.

    Each waits until all have asked, so each gets a session of its own.
    """
    question = """
        SELECT pg_backend_pid(), current_setting('search_path'), current_setting('TimeZone'),
               current_setting('row_security'), (SELECT count(*) FROM pg_prepared_statements)
          FROM pg_advisory_xact_lock_shared(1)
    """
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    deadline = time.monotonic() + 60
    with (
        ThreadPoolExecutor(len(clients)) as threads,
        psycopg.connect(source.conninfo, autocommit=True) as session,
    ):
        session.execute("SELECT pg_advisory_lock(1)")
        rows = threads.map(lambda each: each.execute(question).fetchall()[0], clients)
        while session.execute(waiting).fetchone() != (len(clients),):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    return {int(str(row[0])): row[1:] for row in rows}


def _names_both(text: str, source: Source, pooled: str) -> None:
    assert "pooler" in text
    for conninfo in (source.reader, pooled):
        assert f"port {conninfo_to_dict(conninfo)['port']}" in text
