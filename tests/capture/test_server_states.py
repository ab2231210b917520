"""Conformance scenarios of which the lake shows nothing: restarts, lost slots, wide tables, encodings.

The ids are those of docs/internals/conformance.md. What is not here: what reaches the lake, see
tests/conformance.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    PgoutputError,
    SlotLost,
    SourceLocked,
)
from tests.capture.pipeline_support import Source, checkpoint_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from quickstart.postgres import EmbeddedPostgres

TRANSPORTS = ("sql", "walsender")
TWO_PHASE = StreamOptions(two_phase=True)


def keys(source: Source, batch: Manifest) -> list[int]:
    return [row["a"] for row in source.changes(batch, "public.t")] if batch.tables else []


@pytest.fixture
def prepares(source: Source) -> Iterator[Source]:
    """A source of which no prepared transaction outlives the test."""
    yield source
    for (gid,) in source.execute(
        "SELECT quote_literal(gid) FROM pg_prepared_xacts WHERE database = current_database()"
    ):
        source.execute(f"ROLLBACK PREPARED {gid}")


@pytest.mark.parametrize("also", ["p, q", "p, everything"])
def test_c35_c36_different_column_lists_stop_the_run(source: Source, also: str) -> None:
    """C35, C36: PostgreSQL sends nothing then; the run says why, and the slot stays."""
    source.execute("ALTER TABLE t ADD c int", "ALTER PUBLICATION p SET TABLE t (a, b)")
    checkpoint = checkpoint_of(source.stage())
    source.execute("CREATE PUBLICATION q FOR TABLE t (a, c)")
    source.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    source.execute("INSERT INTO t VALUES (1, 'x', 3)")
    confirmed = source.confirmed()
    for _attempt in range(2):
        with pytest.raises(ConfigurationError, match="column list"):
            source.stage(publication_names=also.split(", "), checkpoint=checkpoint)
    assert source.confirmed() == confirmed


def test_c65_bytes_that_are_no_utf8_stop_the_run(
    postgres_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    """C65: a database in SQL_ASCII may hold any bytes, and nobody knows what they mean."""
    name = "c65_sql_ascii"
    with psycopg.connect(postgres_server.conninfo(), autocommit=True) as session:
        session.execute(
            f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
        )
    source = Source(postgres_server.conninfo(name), name, tmp_path / "staging")
    source.execute("CREATE TABLE t(a int PRIMARY KEY, b text)", "CREATE PUBLICATION p FOR TABLE t")
    try:
        checkpoint = checkpoint_of(source.stage())
        source.execute("INSERT INTO t VALUES (1, 'plain')")
        batch = source.stage(checkpoint=checkpoint)
        assert keys(source, batch) == [1]
        source.execute("INSERT INTO t VALUES (2, convert_from('\\xff41', 'SQL_ASCII'))")
        with pytest.raises(PgoutputError) as caught:
            source.stage(checkpoint=checkpoint_of(batch))
        assert caught.value.advice
    finally:
        source.drop_slot(name)
        with psycopg.connect(postgres_server.conninfo(), autocommit=True) as session:
            session.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_c68_1600_columns(source: Source, transport: str) -> None:
    """C68: as many as a table can have."""
    columns = ", ".join(f"c{number} int" for number in range(1600))
    source.execute(
        f"CREATE TABLE wide({columns}, PRIMARY KEY (c0))", "ALTER PUBLICATION p ADD TABLE wide"
    )
    checkpoint = checkpoint_of(source.stage(transport=transport))
    source.execute(f"INSERT INTO wide VALUES ({', '.join(map(str, range(1600)))})")
    source.execute("UPDATE wide SET c1599 = NULL")
    batch = source.stage(checkpoint=checkpoint, transport=transport)
    inserted, updated = source.changes(batch, "public.wide")
    assert [inserted[f"c{number}"] for number in range(1600)] == list(range(1600))
    assert [updated[f"c{number}"] for number in range(1600)] == [*range(1599), None]


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("crashes", ["neither", "publisher", "consumer", "both"])
def test_c81_a_prepared_transaction_survives_crashes(
    prepares: Source, postgres_server: EmbeddedPostgres, crashes: str, end: str
) -> None:
    """C81: after the PREPARE was staged, whoever crashes, its rows come with its end or never."""
    source = prepares
    checkpoint = checkpoint_of(source.stage(options=TWO_PHASE))
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        for statement in ("BEGIN", "INSERT INTO t VALUES (12, 'x'), (13, 'x')"):
            session.execute(statement)
        session.execute("PREPARE TRANSACTION 'c81'")
    batch = source.stage(checkpoint=checkpoint, options=TWO_PHASE)
    assert [each.gid for each in batch.prepared] == ["c81"]
    assert keys(source, batch) == []
    advance_slot(source.reader, source.slot_name, batch.end_lsn)
    if crashes in {"publisher", "both"}:
        postgres_server.stop("immediate")
        postgres_server.start()
    source.execute(f"{end} PREPARED 'c81'")
    last = checkpoint_of(batch)
    if crashes in {"consumer", "both"}:
        assert (
            source.stage_in_process("stage.after_files", checkpoint=last, options=TWO_PHASE) == -9
        )
    batch = source.stage(checkpoint=last, options=TWO_PHASE)
    assert keys(source, batch) == ([12, 13] if end == "COMMIT" else [])
    assert not batch.prepared


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_c84_a_silent_publication_still_moves_the_checkpoint(
    source: Source, transport: str
) -> None:
    """C84: nothing is sent of transactions that change no published table; WAL can be recycled."""
    source.execute("CREATE TABLE u(a int)")
    batch = source.stage(transport=transport)
    source.execute("INSERT INTO u VALUES (1)")
    with psycopg.connect(source.conninfo) as session:
        session.execute("INSERT INTO t VALUES (1, 'rolled back')")
        session.rollback()
    source.execute("INSERT INTO u VALUES (2)", "SELECT txid_current()")
    (flushed,) = source.execute("SELECT pg_current_wal_flush_lsn()::text")[0]
    later = source.stage(checkpoint=checkpoint_of(batch), transport=transport)
    assert later.changes == 0
    assert not later.tables
    assert later.end_lsn >= Lsn.parse(flushed)
    assert advance_slot(source.reader, source.slot_name, later.end_lsn) == later.end_lsn


def test_c93_without_a_copy_rows_of_open_transactions_are_missing(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """C93: what was written before the table was published is not sent, though it commits after."""
    source.execute("CREATE TABLE u(a int PRIMARY KEY)")
    source.make_slot()
    batch = source.stage(initial_copy="never")
    with psycopg.connect(source.conninfo) as first, psycopg.connect(source.conninfo) as second:
        first.execute("INSERT INTO u VALUES (11)")
        second.execute("INSERT INTO u VALUES (21)")
        source.execute("ALTER PUBLICATION p ADD TABLE u")
        second.execute("INSERT INTO u VALUES (22)")
        second.execute("INSERT INTO t VALUES (1)")
        second.commit()
        first.execute("INSERT INTO u VALUES (12)")
        first.commit()
    source.execute("INSERT INTO u VALUES (99)")
    batch = source.stage(checkpoint=checkpoint_of(batch), initial_copy="never")
    assert keys(source, batch) == [1]
    assert [row["a"] for row in source.changes(batch, "public.u")] == [22, 12, 99]
    assert any("public.u" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_c95_a_clean_restart_repeats_nothing(
    source: Source, postgres_server: EmbeddedPostgres, transport: str
) -> None:
    """C95: the slot's position is written at the shutdown."""
    checkpoint = checkpoint_of(source.stage(transport=transport))
    source.execute("INSERT INTO t SELECT generate_series(1, 10)")
    batch = source.stage(checkpoint=checkpoint, transport=transport)
    assert keys(source, batch) == list(range(1, 11))
    advance_slot(source.reader, source.slot_name, batch.end_lsn)
    confirmed = source.confirmed()
    postgres_server.restart("fast")
    assert source.confirmed() == confirmed
    source.execute("INSERT INTO t VALUES (11)")
    batch = source.stage(checkpoint=checkpoint_of(batch), transport=transport)
    assert keys(source, batch) == [11]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_c97_a_slot_whose_wal_is_gone_is_lost(
    source: Source, postgres_server: EmbeddedPostgres, transport: str
) -> None:
    """C97: its confirmed_flush_lsn is still there; it is neither read nor made anew."""
    checkpoint = checkpoint_of(source.stage())
    source.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'", "SELECT pg_reload_conf()")
    try:
        for _segment in range(8):
            source.execute(
                "SELECT pg_logical_emit_message(false, 'c97', 'x')", "SELECT pg_switch_wal()"
            )
        source.execute("CHECKPOINT")
        slot = f"pg_replication_slots WHERE slot_name = '{source.slot_name}'"
        (status, confirmed) = source.execute(f"SELECT wal_status, confirmed_flush_lsn FROM {slot}")[
            0
        ]
        assert status == "lost"
        assert confirmed is not None
        for _attempt in range(2):
            with pytest.raises(SlotLost) as caught:
                source.stage(checkpoint=checkpoint, transport=transport)
            assert caught.value.lsn is not None
            assert caught.value.advice
        assert source.execute(f"SELECT wal_status FROM {slot}") == [("lost",)]
    finally:
        source.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_c101_what_is_not_flushed_is_not_read(source: Source, transport: str) -> None:
    """C101: with synchronous_commit off a commit is seen later, and never lost."""
    batch = source.stage(transport=transport)
    found: list[int] = []
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        session.execute("SET synchronous_commit = off")
        for number in range(50):
            session.execute("INSERT INTO t VALUES (%s)", (number,))
            if number % 10 == 0:
                batch = source.stage(checkpoint=checkpoint_of(batch), transport=transport)
                found += keys(source, batch)
    deadline = time.monotonic() + 30
    while len(found) < 50 and time.monotonic() < deadline:
        batch = source.stage(checkpoint=checkpoint_of(batch), transport=transport)
        (flushed,) = source.execute("SELECT pg_current_wal_flush_lsn()::text")[0]
        assert batch.end_lsn <= Lsn.parse(flushed)
        found += keys(source, batch)
    assert found == list(range(50))


def test_c104_a_slot_waits_for_transactions_that_began_before_it(source: Source) -> None:
    """C104: what was written before the slot was there is in the copy, all else in the stream."""
    done: dict[str, Any] = {}
    with psycopg.connect(source.conninfo) as before:
        before.execute("INSERT INTO t VALUES (1, 'before the slot')")
        thread = threading.Thread(target=lambda: done.update(batch=source.stage()))
        thread.start()
        deadline = time.monotonic() + 30
        while source.confirmed() is None and not source.execute(
            f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{source.slot_name}'"
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.3)
        assert thread.is_alive()
        before.execute("SAVEPOINT s")
        before.execute("INSERT INTO t VALUES (2, 'while it waits')")
        before.commit()
    thread.join(60)
    assert sorted(row["a"] for row in source.copied(done["batch"], "public.t")) == [1, 2]
    with psycopg.connect(source.conninfo) as writer:
        writer.execute("INSERT INTO t VALUES (3, 'old shape')")
        ddl = threading.Thread(target=lambda: source.execute("ALTER TABLE t ADD c int DEFAULT 5"))
        ddl.start()
        time.sleep(0.2)
        writer.execute("INSERT INTO t VALUES (4, 'old shape')")
        writer.commit()
    ddl.join(60)
    source.execute("INSERT INTO t VALUES (5, 'new shape', 6)")
    batch = source.stage(checkpoint=checkpoint_of(done["batch"]))
    rows = source.changes(batch, "public.t")
    assert [(row["a"], row.get("c")) for row in rows] == [(3, None), (4, None), (5, 6)]
    (table,) = batch.tables
    assert len(table.versions) == 2


def test_a_table_that_a_prepared_transaction_holds_is_named(
    prepares: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From version 16 on the catalog's functions open the published tables: it would wait for ever."""
    source = prepares
    monkeypatch.setattr(sessions, "LOCK_TIMEOUT_SECONDS", 1)
    checkpoint = checkpoint_of(source.stage())
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        for statement in ("BEGIN", "ALTER TABLE t ADD c int", "PREPARE TRANSACTION 'ddl''s'"):
            session.execute(statement)
        opens_tables = session.info.server_version >= 160000
    if not opens_tables:
        empty = source.stage(checkpoint=checkpoint)
        assert empty.is_empty
        checkpoint = checkpoint_of(empty)
    for _attempt in range(2 if opens_tables else 0):
        with pytest.raises(SourceLocked, match=r"public\.t by prepared transaction 'ddl''s'"):
            source.stage(checkpoint=checkpoint)
    source.execute("COMMIT PREPARED 'ddl''s'", "INSERT INTO t VALUES (1, 'x', 2)")
    batch = source.stage(checkpoint=checkpoint)
    assert [row["c"] for row in source.changes(batch, "public.t")] == [2]
