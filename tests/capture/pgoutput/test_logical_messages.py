"""Logical messages of a real server: each is in the batch that it belongs to, once."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn, LsnOffset
from airflow_provider_pgoutput.capture import server
from airflow_provider_pgoutput.capture.slot.flush_position import ends_record, read_record_end
from airflow_provider_pgoutput.capture.source.session import connect
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.capture.pipeline_support import Source

MESSAGES = StreamOptions(messages=True)
BLOCK, SEGMENT = 8192, 16 << 20
both_transports = pytest.mark.parametrize("transport", ["sql", "walsender"])


def emit(content: str, *, transactional: bool, prefix: str = "app") -> str:
    return f"SELECT pg_logical_emit_message({transactional}, '{prefix}', '{content}')"


def contents(source: Source, manifest: Manifest) -> list[str]:
    return [row["content"].decode() for row in source.messages(manifest)]


@both_transports
def test_c85_transactional_and_other_messages(source: Source, transport: str) -> None:
    how: dict[str, Any] = {"transport": transport, "options": MESSAGES}
    first = source.stage(**how)
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        alone = session.execute(emit("alone", transactional=True) + "::text").fetchone()
        session.execute("INSERT INTO t VALUES (1, 'x')")
        session.execute("BEGIN")
        session.execute(emit("stays", transactional=False))
        session.execute("INSERT INTO t VALUES (3, 'y')")
        session.execute(emit("goes", transactional=True))
        session.execute("ROLLBACK")
        session.execute("SELECT pg_switch_wal()")
    batch = source.stage(checkpoint=checkpoint_of(first), **how)
    assert [row["a"] for row in source.changes(batch, "public.t")] == [1]
    inside, outside = source.messages(batch)
    assert alone is not None
    assert (inside["content"], outside["content"]) == (b"alone", b"stays")
    assert (inside["transactional"], outside["transactional"]) == (True, False)
    assert inside["prefix"] == outside["prefix"] == "app"
    assert first.end_lsn < inside["lsn"] <= inside["commit_lsn"] < outside["lsn"] <= batch.end_lsn
    assert inside["lsn"] == Lsn.parse(alone[0])
    assert (inside["seq"], outside["seq"]) == (0, None)
    assert [outside[name] for name in ("commit_lsn", "xid", "commit_ts")] == [None] * 3
    assert inside["xid"] > 0
    assert inside["commit_ts"] is not None
    again = source.stage(checkpoint=checkpoint_of(batch), **how)
    assert again.message_files == ()


def test_a_table_that_is_published_before_a_late_target_is_the_next_runs(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With messages the target is taken after the publications were looked at."""
    first = source.stage(options=MESSAGES)
    known = {each.relation_oid: each.name for each in first.tables}
    checkpoint = dataclasses.replace(checkpoint_of(first), tables=known)
    source.execute(
        "CREATE TABLE u(a int PRIMARY KEY, b text)",
        "ALTER TABLE u ALTER b SET STORAGE EXTERNAL",
        "INSERT INTO u VALUES (1, repeat('x', 9000)), (2, 'short')",
        "INSERT INTO t VALUES (1, 'before')",
    )

    def late(session: Any, offset: LsnOffset) -> Lsn:
        source.execute("ALTER PUBLICATION p ADD TABLE u", "UPDATE u SET a = 3 WHERE a = 1")
        return read_record_end(session, offset)

    with monkeypatch.context() as patch:
        patch.setattr(server, "read_record_end", late)
        batch = source.stage(checkpoint=checkpoint, options=MESSAGES)
    assert [each.name for each in batch.tables] == ["public.t"]
    lake = dataclasses.replace(checkpoint_of(batch), tables=known)
    following = source.stage(checkpoint=lake, options=MESSAGES)
    assert sorted(row["a"] for row in source.copied(following, "public.u")) == [2, 3]


@both_transports
@pytest.mark.parametrize("stream", [False, True])
def test_c86_without_messages_the_rows_are_the_same(
    source: Source, transport: str, stream: bool
) -> None:
    if stream:
        stream_everything(source)
    source.make_slot()
    slot = f"{source.slot_name}_on"
    source.execute(f"SELECT pg_copy_logical_replication_slot('{source.slot_name}', '{slot}')")
    with psycopg.connect(source.conninfo) as session:
        for number in range(0, 3000, 1000):
            session.execute(emit(f"before {number}", transactional=True))
            session.execute(
                f"INSERT INTO t SELECT g, repeat('x', 90) FROM generate_series({number}, {number + 900}) g"
            )
        session.execute("SAVEPOINT a")
        session.execute(emit("goes", transactional=True))
        session.execute("INSERT INTO t SELECT g FROM generate_series(9000, 9900) g")
        session.execute("ROLLBACK TO a")
        session.execute(emit("last", transactional=True))
    source.execute("INSERT INTO t VALUES (-1)")
    off = source.stage(transport=transport, initial_copy="never")
    on = source.stage(transport=transport, initial_copy="never", slot_name=slot, options=MESSAGES)
    assert source.changes(on, "public.t") == source.changes(off, "public.t")
    assert off.message_files == ()
    found = [(row["content"].decode(), row["seq"]) for row in source.messages(on)]
    assert found == [("before 0", 0), ("before 1000", 901), ("before 2000", 1802), ("last", 2703)]


def stream_everything(source: Source) -> None:
    """Let the server send every transaction (version 15: every one of some size) while it runs."""
    (version, database) = source.execute(
        "SELECT current_setting('server_version_num')::int, current_database()"
    )[0]
    setting = (
        "debug_logical_replication_streaming = immediate"
        if version >= 160000
        else "logical_decoding_work_mem = '64kB'"
    )
    source.execute(f"ALTER DATABASE {database} SET {setting}")


@both_transports
@pytest.mark.parametrize("limits", [{}, {"max_changes": 1}, {"max_bytes": 100}])
def test_batches_share_the_messages(source: Source, transport: str, limits: dict[str, int]) -> None:
    """The slot is never moved here, so the server sends all of them again and again."""
    how: dict[str, Any] = {"transport": transport, "options": MESSAGES, **limits}
    batch = source.stage(**how)
    seen: list[str] = []
    wanted: list[str] = []
    for number in range(4):
        wanted += [f"{number} before", f"{number} inside", f"{number} behind"]
        with psycopg.connect(source.conninfo) as session:
            session.execute(emit(wanted[-3], transactional=False))
            session.execute(f"INSERT INTO t VALUES ({number})")
            session.execute(emit(wanted[-2], transactional=True))
        source.execute(emit(wanted[-1], transactional=False))
        # Pushes what was not flushed to the disk.
        source.execute("SELECT pg_switch_wal()")
        if number % 2:
            while True:
                batch = source.stage(checkpoint=checkpoint_of(batch), **how)
                seen += contents(source, batch)
                if not batch.changes:
                    break
    assert seen == wanted


@both_transports
@pytest.mark.parametrize("two_phase", [False, True])
def test_messages_before_a_copy_are_not_in_it(
    source: Source, transport: str, two_phase: bool
) -> None:
    """The slot was there before the first run: the copy holds the rows, but not the messages."""
    source.execute(
        f"SELECT pg_create_logical_replication_slot('{source.slot_name}', 'pgoutput', false, {two_phase})",
        emit("inside", transactional=True),
        "INSERT INTO t VALUES (1)",
        emit("alone", transactional=False),
    )
    how: dict[str, Any] = {
        "transport": transport,
        "options": StreamOptions(messages=True, two_phase=two_phase),
    }
    first = source.stage(**how)
    source.execute("INSERT INTO t VALUES (2)", emit("later", transactional=True))
    second = source.stage(checkpoint=checkpoint_of(first), **how)
    assert [row["a"] for row in source.copied(first, "public.t")] == [1]
    assert [row["a"] for row in source.changes(second, "public.t")] == [2]
    assert (contents(source, first), contents(source, second)) == (["inside", "alone"], ["later"])


@both_transports
def test_only_some_prefixes(source: Source, transport: str) -> None:
    first = source.stage(transport=transport)
    source.execute(
        *(
            emit(prefix, transactional=flag, prefix=prefix)
            for prefix in ("app", "", "App", "app2", "é")
            for flag in (False, True)
        )
    )
    options = StreamOptions(messages=True, message_prefixes=("app", "é", "none"))
    batch = source.stage(checkpoint=checkpoint_of(first), transport=transport, options=options)
    assert contents(source, batch) == ["app", "app", "é", "é"]
    source.execute(emit("other", transactional=True, prefix="other"))
    batch = source.stage(checkpoint=checkpoint_of(batch), transport=transport, options=options)
    assert (batch.message_files, batch.logical_messages) == ((), 0)


@both_transports
def test_a_publication_without_tables_carries_messages(source: Source, transport: str) -> None:
    source.execute("CREATE PUBLICATION empty")
    how: dict[str, Any] = {"transport": transport, "options": MESSAGES}
    first = source.stage(publication_names=("empty",), **how)
    source.execute("INSERT INTO t VALUES (1)", emit("outbox", transactional=True))
    batch = source.stage(publication_names=("empty",), checkpoint=checkpoint_of(first), **how)
    assert (batch.tables, contents(source, batch)) == ((), ["outbox"])


@both_transports
def test_messages_of_a_prepared_transaction_come_with_its_commit(
    source: Source, transport: str
) -> None:
    how: dict[str, Any] = {
        "transport": transport,
        "options": StreamOptions(messages=True, two_phase=True),
    }
    batch = source.stage(**how)
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO t VALUES (1)")
        session.execute(emit("prepared", transactional=True))
        session.execute(emit("at once", transactional=False))
        session.execute("PREPARE TRANSACTION 'g'")
        batch = source.stage(checkpoint=checkpoint_of(batch), **how)
        assert contents(source, batch) == ["at once"]
        session.execute("COMMIT PREPARED 'g'")
    batch = source.stage(checkpoint=checkpoint_of(batch), **how)
    (row,) = source.messages(batch)
    (change,) = source.changes(batch, "public.t")
    assert (row["content"], row["commit_lsn"], row["seq"]) == (b"prepared", change["commit_lsn"], 1)


@both_transports
def test_a_batch_does_not_end_inside_a_message(source: Source, transport: str) -> None:
    """The server writes full pages first; the rest of a record waits for somebody who needs it."""
    how: dict[str, Any] = {"transport": transport, "options": MESSAGES}
    batch = source.stage(**how)
    source.execute("SELECT pg_logical_emit_message(false, 'app', repeat('m', 1000000))")
    with connect(source.conninfo) as session:
        deadline = time.monotonic() + 30
        while not inside_a_record(session):
            if time.monotonic() > deadline:
                pytest.skip("the server wrote the whole record at once")
            time.sleep(0.02)
    later = threading.Timer(1.0, source.execute, ["INSERT INTO t VALUES (1)"])
    later.start()
    lengths = []
    for _ in range(2):
        batch = source.stage(checkpoint=checkpoint_of(batch), **how)
        lengths += [len(row["content"]) for row in source.messages(batch)]
        later.join()
    assert lengths == [1_000_000]


def inside_a_record(session: Any) -> bool:
    (flushed, inserted) = session.execute(
        "SELECT pg_current_wal_flush_lsn()::text, pg_current_wal_insert_lsn()::text"
    ).fetchone()
    return not ends_record(Lsn.parse(flushed), Lsn.parse(inserted), BLOCK, SEGMENT)


@pytest.mark.parametrize(
    ("flushed", "inserted", "ends"),
    [
        (5 * BLOCK + 8, 9 * BLOCK, True),
        (5 * BLOCK, 5 * BLOCK, True),
        (5 * BLOCK, 5 * BLOCK + 24, True),
        (5 * BLOCK, 5 * BLOCK + 32, False),
        (2 * SEGMENT, 2 * SEGMENT + 40, True),
        (2 * SEGMENT, 2 * SEGMENT + 48, False),
    ],
)
def test_a_page_ends_with_a_record_when_nothing_was_begun_behind_it(
    flushed: int, inserted: int, ends: bool
) -> None:
    assert ends_record(Lsn(flushed), Lsn(inserted), BLOCK, SEGMENT) == ends


def test_the_end_of_a_record_is_flushed(source: Source) -> None:
    source.execute("INSERT INTO t VALUES (1)")
    with connect(source.conninfo) as session:
        found = read_record_end(session)
        (flushed,) = session.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone() or ("",)
    assert Lsn(1) < found <= Lsn.parse(flushed)
