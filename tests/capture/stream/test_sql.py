"""The SQL transport: a range read in parts, in slices or at once is the same range."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.source.threads import BoundedQueue
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.stream import sql, sql_connection, sql_parallel
from airflow_provider_pgoutput.capture.stream.sql import SqlStream
from airflow_provider_pgoutput.capture.stream.two_phase import TwoPhase
from airflow_provider_pgoutput.errors import ConfigurationError, SlotNotFound, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.capture.pipeline_support import Source


def flush_lsn(source: Source) -> Lsn:
    return Lsn.parse(source.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])


def read(stream: SqlStream, start: Lsn, target: Lsn) -> list[tuple[int, int, int, str]]:
    """Every change: position, operation and new key."""
    return read_with_messages(stream, start, target)[0]


def read_with_messages(
    stream: SqlStream, start: Lsn, target: Lsn
) -> tuple[list[tuple[int, int, int, str]], list[tuple[int, bytes]]]:
    """Every change, and LSN and content of every logical message."""
    decoder = Decoder(start, target)
    found = []
    try:
        for chunk in stream.chunks():
            for block in decoder.decode(chunk):
                keys = block.new[0].to_pylist() if block.new[0] else [None] * len(block)
                found += [
                    (lsn, seq, op, str(key))
                    for lsn, seq, op, key in zip(
                        block.commit_lsn.tolist(),
                        block.seq.tolist(),
                        block.op.tolist(),
                        keys,
                        strict=True,
                    )
                ]
    finally:
        stream.close()
    # Blocks of several tables interleave; a position orders them.
    messages = [
        each
        for block in decoder.take_messages()
        for each in zip(block.lsn.tolist(), block.content.to_pylist(), strict=True)
    ]
    return sorted(found), messages


@pytest.fixture
def backlog(source: Source) -> tuple[Lsn, Lsn]:
    """Many transactions, a long one around them, a truncate and another version."""
    source.execute("CREATE TABLE l(a int PRIMARY KEY, b text)", "ALTER PUBLICATION p ADD TABLE l")
    source.make_slot()
    start = Lsn.parse(str(source.confirmed()))
    with psycopg.connect(source.conninfo) as long:
        long.execute("INSERT INTO l SELECT g, repeat('l', 100) FROM generate_series(-500, -1) g")
        source.execute(
            *(
                f"INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series({n}000, {n}099) g"
                for n in range(1, 60)
            ),
            "UPDATE t SET a = a + 1000000 WHERE a % 7 = 0",
            "ALTER TABLE t ADD c int DEFAULT 1",
            "DELETE FROM t WHERE a % 5 = 0 AND a > 0",
        )
        long.execute("INSERT INTO l SELECT g, repeat('l', 100) FROM generate_series(-900, -600) g")
        long.commit()
    source.execute("INSERT INTO t VALUES (-1000)")
    return start, flush_lsn(source)


@pytest.mark.parametrize(
    ("connections", "part_bytes"),
    [(2, 1 << 13), (2, 1 << 16), (3, 123_457), (4, 1 << 14), (8, 1 << 19)],
)
def test_parts_join_without_gap_or_double(
    source: Source, backlog: tuple[Lsn, Lsn], connections: int, part_bytes: int
) -> None:
    start, target = backlog
    order = source.read(start, target)
    whole = read(SqlStream(order), start, target)
    assert len(whole) > 7000
    parted = SqlStream(order, connections=connections, part_bytes=part_bytes)
    assert read(parted, start, target) == whole
    assert source.confirmed() == str(start)
    # A copy goes when the server has noticed that its connection ended.
    deadline = time.monotonic() + 10
    while source.execute("SELECT 1 FROM pg_replication_slots WHERE temporary"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_copy_that_is_moved_once_more_gives_the_same(
    source: Source, backlog: tuple[Lsn, Lsn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a read does when a copy's restart position stays far behind."""
    monkeypatch.setattr(sql_connection, "_FAR_BYTES", -1)
    start, target = backlog
    order = source.read(start, target)
    whole = read(SqlStream(order), start, target)
    for connections in (1, 3):
        stream = SqlStream(order, connections=connections, part_bytes=1 << 16)
        assert read(stream, start, target) == whole


def test_the_end_is_said_when_the_last_part_is_there(
    source: Source, backlog: tuple[Lsn, Lsn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who finds nothing left must not end the read while another still hands the last part over."""

    class SlowQueue(BoundedQueue[Any]):
        def put(self, item: Any) -> bool:
            time.sleep(0.05)
            return super().put(item)

    monkeypatch.setattr(sql_parallel, "BoundedQueue", SlowQueue)
    start, target = backlog
    order = source.read(start, target)
    whole = read(SqlStream(order), start, target)
    for part_bytes in (1 << 18, 1 << 19, 1 << 20):
        stream = SqlStream(order, connections=3, part_bytes=part_bytes)
        assert read(stream, start, target) == whole


@pytest.fixture
def emitted(source: Source) -> tuple[Lsn, Lsn]:
    """Logical messages between, in and across transactions; most of them are longer than a WAL page."""
    source.make_slot()
    start = Lsn.parse(str(source.confirmed()))
    emit = "SELECT pg_logical_emit_message({}, 'app', '{}' || repeat('m', {}))"
    with psycopg.connect(source.conninfo) as long:
        long.execute("INSERT INTO t VALUES (-1)")
        for number in range(40):
            source.execute(emit.format("false", f"{number} ", 300 * number))
            if number % 4 == 0:
                long.execute(emit.format("true", f"long {number} ", 100))
                source.execute(f"INSERT INTO t SELECT generate_series({number}00, {number}50)")
        long.commit()
    source.execute(emit.format("true", "last ", 9000))
    return start, flush_lsn(source)


@pytest.mark.parametrize(
    "options",
    [
        {"connections": 2, "part_bytes": 1 << 13},
        {"connections": 3, "part_bytes": 12_345},
        {"connections": 4, "part_bytes": 1 << 16},
    ]
    + [{"max_messages": each} for each in (1, 7, 60)],
)
def test_logical_messages_come_once_however_the_range_is_cut(
    source: Source, emitted: tuple[Lsn, Lsn], options: dict[str, Any]
) -> None:
    order = source.read(*emitted, messages=True)
    changes, messages = read_with_messages(SqlStream(order), *emitted)
    assert len(messages) == 40 + 10 + 1
    found = read_with_messages(SqlStream(order, **options), *emitted)
    assert found == (changes, messages)


@pytest.mark.parametrize("max_messages", [1, 150, 1000])
def test_slices_join_without_gap_or_double(
    source: Source, backlog: tuple[Lsn, Lsn], max_messages: int
) -> None:
    start, target = backlog
    order = source.read(start, target)
    whole = read(SqlStream(order), start, target)
    assert read(SqlStream(order, max_messages=max_messages), start, target) == whole


@pytest.fixture
def prepared_backlog(source: Source) -> tuple[Lsn, Lsn]:
    """Prepared transactions that end in and out of turn, streamed and whole, with messages between."""
    source.execute(
        f"SELECT pg_create_logical_replication_slot('{source.slot_name}', 'pgoutput', false, true)"
    )
    start = Lsn.parse(str(source.confirmed()))
    for number, rows in enumerate((3, 2000, 5, 40, 2000, 1)):
        with psycopg.connect(source.conninfo, autocommit=True) as session:
            session.execute("BEGIN")
            session.execute(
                f"INSERT INTO t SELECT {number}0000 + g, repeat('p', 100) FROM generate_series(1, {rows}) g"
            )
            session.execute(f"PREPARE TRANSACTION 'g{number}'")
        source.execute(
            f"SELECT pg_logical_emit_message(false, 'app', 'between {number}')",
            f"INSERT INTO t VALUES (-{number} - 1, 'x')",
        )
        if number % 2:
            source.execute(
                f"COMMIT PREPARED 'g{number}'",
                f"{'ROLLBACK' if number == 3 else 'COMMIT'} PREPARED 'g{number - 1}'",
            )
    source.execute("INSERT INTO t SELECT g, repeat('w', 100) FROM generate_series(-3000, -100) g")
    return start, flush_lsn(source)


Found = tuple[list[tuple[int, int, int, str]], list[tuple[int, bytes]]]


def read_two_phase(
    source: Source, start: Lsn, target: Lsn, max_messages: int | None
) -> tuple[Found, list[str], Lsn]:
    """What one read finds, which transactions wait then, and where it ends."""
    options = {"messages": True, "two_phase": True, "proto_version": 3, "streaming": "on"}
    area = StagingArea(str(source.staging))
    with TwoPhase(area, start, None, commits_without_prepare=True) as two_phase:
        read = dataclasses.replace(source.read(start, target, **options), two_phase=two_phase)
        stream = SqlStream(read, max_messages=max_messages)
        found = read_with_messages(stream, start, target)
        waiting = [each.prepare.gid for each in two_phase.transactions.open_at(stream.end_lsn)]
        return found, waiting, stream.end_lsn


@pytest.mark.parametrize("max_messages", [1, 7, 300, 2500])
def test_a_limit_ends_a_two_phase_read_between_transactions(
    source: Source, prepared_backlog: tuple[Lsn, Lsn], max_messages: int
) -> None:
    """The slot stays where it is, so each read also has what the ones before it had, and passes it over."""
    start, target = prepared_backlog
    whole, waiting, end = read_two_phase(source, start, target, None)
    assert len(whole[0]) == 3 + 2000 + 40 + 2000 + 1 + 6 + 2901
    assert len(whole[1]) == 6
    assert (waiting, end) == ([], target)

    changes, messages, ends = list(whole[0][:0]), list(whole[1][:0]), [start]
    while ends[-1] < target:
        found, waiting, end = read_two_phase(source, ends[-1], target, max_messages)
        assert end > ends[-1]
        changes += found[0]
        messages += found[1]
        ends.append(end)
    assert (sorted(changes), messages) == whole
    assert waiting == []
    assert len(ends) > 2


@contextlib.contextmanager
def room_for(source: Source, copies: int) -> Iterator[None]:
    """A server that can make only so many slots more."""
    (free,) = source.execute(
        "SELECT current_setting('max_replication_slots')::int - count(*) FROM pg_replication_slots"
    )[0]
    names = [f"filler_{number}" for number in range(free - copies)]
    source.execute(*(f"SELECT pg_create_physical_replication_slot('{name}')" for name in names))
    try:
        yield
    finally:
        source.execute(*(f"SELECT pg_drop_replication_slot('{name}')" for name in names))


@pytest.mark.parametrize(("copies", "used"), [(0, 1), (1, 1), (2, 2)])
def test_without_room_for_copies_fewer_connections_read(
    source: Source,
    backlog: tuple[Lsn, Lsn],
    copies: int,
    used: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    start, target = backlog
    order = source.read(start, target)
    whole = read(SqlStream(order), start, target)
    stream = SqlStream(order, connections=3, part_bytes=1 << 16)
    with room_for(source, copies):
        assert read(stream, start, target) == whole
    (line,) = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert line.startswith(f"Slot {source.slot_name} is decoded by {used} of 3 connections: ")
    assert "max_replication_slots" in line or "replication slots are in use" in line


@pytest.mark.parametrize(
    ("long_rows", "free_cores", "used"), [(0, 3, 3), (0, 2, 2), (0, 0, 1), (5000, 3, 1)]
)
def test_a_long_transaction_at_the_beginning_or_busy_cores_leave_one_connection(
    source: Source,
    long_rows: int,
    free_cores: int,
    used: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sql_parallel, "_BYTES_PER_CONNECTION", 1 << 16)
    monkeypatch.setattr(sql, "LONG_TRANSACTION_BYTES", 1 << 17)
    caplog.set_level(logging.INFO)
    source.make_slot()
    start = Lsn.parse(str(source.confirmed()))
    source.execute(
        f"INSERT INTO t SELECT -g, repeat('l', 100) FROM generate_series(1, {long_rows}) g",
        *(
            f"INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series({n}000, {n}099) g"
            for n in range(1, 40)
        ),
    )
    order = source.read(start, flush_lsn(source))
    whole = read(SqlStream(order, connections=1), start, order.target)
    assert len(whole) == 3900 + long_rows
    stream = SqlStream(order, count_free_cores=lambda: free_cores)
    assert read(stream, start, order.target) == whole
    said = [each.message for each in caplog.records if "is decoded by" in each.message]
    if long_rows:
        assert [each.partition(": ")[2] for each in said] == [
            "no published transaction ends at the beginning of the backlog."
        ]
    elif used > 1:
        assert said == [f"Slot {source.slot_name} is decoded by {used} connections."]
    else:
        assert said == []


@pytest.mark.parametrize("messages", [False, True])
def test_slices_need_no_copy(source: Source, emitted: tuple[Lsn, Lsn], messages: bool) -> None:
    """Whoever may not copy a slot gets longer answers, each from where the slot stands."""
    order = source.read(*emitted, messages=messages)
    whole = read_with_messages(SqlStream(order), *emitted)
    with room_for(source, 0):
        assert read_with_messages(SqlStream(order, max_messages=7), *emitted) == whole


def test_a_role_that_may_not_copy_slots_reads_them_by_one_connection(
    source: Source, backlog: tuple[Lsn, Lsn], caplog: pytest.LogCaptureFixture
) -> None:
    start, target = backlog
    whole = read(SqlStream(source.read(start, target)), start, target)
    function = "pg_copy_logical_replication_slot(name, name, boolean)"
    source.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
    order = source.read(start, target)
    assert read(SqlStream(order, connections=2, part_bytes=1 << 16), start, target) == whole
    (line,) = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert "decoded by 1 of 2 connections: permission denied for function" in line


def test_without_more_connections_one_reads(
    source: Source, backlog: tuple[Lsn, Lsn], caplog: pytest.LogCaptureFixture
) -> None:
    start, target = backlog
    whole = read(SqlStream(source.read(start, target)), start, target)
    (database,) = source.execute("SELECT current_database()")[0]
    with psycopg.connect(source.conninfo, dbname="postgres", autocommit=True) as session:
        session.execute(f"ALTER DATABASE {database} CONNECTION LIMIT 1".encode())
        # The server may still be ending sessions that were closed.
        session.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s",
            (database,),
        )
    stream = SqlStream(source.read(start, target), connections=3, part_bytes=1 << 16)
    assert read(stream, start, target) == whole
    (line,) = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert "decoded by 1 of 3 connections: " in line
    assert "too many connections" in line


def test_a_part_that_fails_fails_the_read(source: Source) -> None:
    start = flush_lsn(source)
    source.execute("INSERT INTO t SELECT generate_series(1, 1000)")
    stream = SqlStream(
        source.read(start, flush_lsn(source), slot_name="nobody_s_slot"),
        connections=2,
        part_bytes=1 << 10,
    )
    with pytest.raises(SlotNotFound):
        list(stream.chunks())
    stream.close()


def test_a_read_can_be_closed_in_the_middle(source: Source, backlog: tuple[Lsn, Lsn]) -> None:
    start, target = backlog
    stream = SqlStream(source.read(start, target), connections=3, part_bytes=1 << 13)
    next(stream.chunks())
    stream.close()
    stream.close()
    whole = read(SqlStream(source.read(start, target)), start, target)
    assert len(whole) > 7000


@pytest.mark.parametrize("part_bytes", [1 << 13, 1 << 30])
def test_a_reader_in_another_thread_can_be_stopped(
    source: Source, backlog: tuple[Lsn, Lsn], part_bytes: int
) -> None:
    start, target = backlog
    for delay in (0.0, 0.01, 0.05, 0.2):
        stream = SqlStream(source.read(start, target), connections=2, part_bytes=part_bytes)

        def iterate(chosen: SqlStream = stream) -> None:
            with contextlib.suppress(SourceUnavailable):
                for _ in chosen.chunks():
                    pass

        reader = threading.Thread(target=iterate)
        reader.start()
        time.sleep(delay)
        stream.stop()
        reader.join(timeout=20)
        assert not reader.is_alive()
        stream.close()


def test_a_slot_that_waits_for_standbys_is_not_copied(source: Source) -> None:
    """PostgreSQL makes no failover slot of a copy, and waits for the standbys for those alone."""
    with psycopg.connect(source.conninfo) as session:
        if session.info.server_version < 170000:
            pytest.skip("the server has no slots with failover")
    source.execute(
        f"SELECT pg_create_logical_replication_slot('{source.slot_name}', 'pgoutput', failover => true)"
    )
    start = Lsn.parse(str(source.confirmed()))
    read = source.read(start, flush_lsn(source))
    copies = sql_connection.SlotSession(read)
    copies.make_copy()
    copies.close()
    try:
        source.execute(
            "ALTER SYSTEM SET synchronized_standby_slots = 'a_standby'", "SELECT pg_reload_conf()"
        )
        deadline = time.monotonic() + 30
        while source.execute("SHOW synchronized_standby_slots") != [("a_standby",)]:
            assert time.monotonic() < deadline
        waits = sql_connection.SlotSession(read)
        with pytest.raises(ConfigurationError, match="synchronized_standby_slots"):
            waits.make_copy()
        waits.close()
    finally:
        source.execute("ALTER SYSTEM RESET synchronized_standby_slots", "SELECT pg_reload_conf()")
