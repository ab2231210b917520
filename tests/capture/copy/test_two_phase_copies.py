"""Tables copied in the middle of a batch, or beside a slot that exists, while transactions are prepared.

The server makes the slot of a copy only when the transactions that were open have ended, the prepared
ones among them; one that is prepared meanwhile is open across the copy, and its rows come when it commits.
"""

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
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.capture.pipeline_support import Source

TWO_PHASE = StreamOptions(two_phase=True)
KILLED = -9
_TIME_LIMIT_S = 60


@pytest.fixture(autouse=True)
def no_prepared_transaction_outlives_the_test(source: Source) -> Iterator[None]:
    yield
    for (gid,) in source.execute(
        "SELECT quote_literal(gid) FROM pg_prepared_xacts WHERE database = current_database()"
    ):
        source.execute(f"ROLLBACK PREPARED {gid}")


def lake_with(*batches: Manifest) -> Checkpoint:
    """The checkpoint of a lake that holds these batches."""
    known = {table.relation_oid: table.name for batch in batches for table in batch.tables}
    return dataclasses.replace(checkpoint_of(batches[-1]), tables=known)


def prepare(source: Source, gid: str, *statements: str) -> None:
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        for statement in ("BEGIN", *statements, f"PREPARE TRANSACTION '{gid}'"):
            session.execute(statement.encode())


def changed(source: Source, batch: Manifest, table: str) -> list[int]:
    present = any(each.name == table for each in batch.tables)
    return [row["a"] for row in source.changes(batch, table)] if present else []


def copied(source: Source, batch: Manifest, table: str) -> list[int]:
    return sorted(row["a"] for row in source.copied(batch, table))


@contextlib.contextmanager
def in_a_thread(stage: Callable[[], Manifest]) -> Iterator[list[Manifest]]:
    """Stage beside the test; the batch is in the list when the block has ended."""
    found: list[Manifest] = []
    thread = threading.Thread(target=lambda: found.append(stage()))
    thread.start()
    try:
        yield found
    finally:
        thread.join(timeout=_TIME_LIMIT_S)
    assert found, "the run failed, or still waits"


def wait_until_somebody_waits_for(source: Source, xid: int) -> None:
    """The server waits for each transaction that holds up a slot as for a lock."""
    query = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
        f" AND transactionid::text = '{xid}'"
    )
    deadline = time.monotonic() + _TIME_LIMIT_S
    while source.execute(query) == [(0,)]:
        assert time.monotonic() < deadline, f"nobody waits for transaction {xid}"
        time.sleep(0.02)


def prepared_xid(source: Source, gid: str) -> int:
    query = f"SELECT transaction::text::bigint FROM pg_prepared_xacts WHERE gid = '{gid}'"
    return int(source.execute(query)[0][0])


@pytest.mark.parametrize("transport", ["sql", "walsender"])
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("staged_before", [False, True])
def test_a_copy_waits_for_what_is_prepared_and_holds_its_rows(
    source: Source,
    transport: str,
    end: str,
    staged_before: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Prepared before the table was published: the server would leave its rows in that table out."""
    how: dict[str, Any] = {"transport": transport, "options": TWO_PHASE}
    batches = [source.stage(**how)]
    source.execute("CREATE TABLE u(a int PRIMARY KEY)")
    prepare(source, "g", "INSERT INTO t VALUES (1, 'g')", "INSERT INTO u VALUES (11)")
    if staged_before:
        batches.append(source.stage(checkpoint=lake_with(*batches), **how))
        assert [each.gid for each in batches[-1].prepared] == ["g"]
        advance_slot(source.reader, source.slot_name, batches[-1].end_lsn)
    source.execute("ALTER PUBLICATION p ADD TABLE u", "INSERT INTO u VALUES (12)")
    with (
        caplog.at_level(logging.WARNING),
        in_a_thread(lambda: source.stage(checkpoint=lake_with(*batches), **how)) as found,
    ):
        wait_until_somebody_waits_for(source, prepared_xid(source, "g"))
        assert not found
        source.execute("INSERT INTO t VALUES (2, 'x')", f"{end} PREPARED 'g'")
    (batch,) = found
    commits = end == "COMMIT"
    assert sorted(changed(source, batch, "public.t")) == ([1, 2] if commits else [2])
    assert copied(source, batch, "public.u") == ([11, 12] if commits else [12])
    assert changed(source, batch, "public.u") == []
    assert not batch.prepared
    assert any("prepared transactions on the server" in each for each in caplog.messages)


def prepare_across_the_copy(source: Source, stage: Callable[[], Manifest]) -> Manifest:
    """Stage a batch with a copy of ``u``, and prepare a transaction so that it is open across the copy.

    The server waits twice: for what is open when it begins, then for what has begun meanwhile. What
    begins during the second time is open at the position that it reaches then.
    """
    with psycopg.connect(source.conninfo) as one, psycopg.connect(source.conninfo) as two:
        xid_of = "SELECT pg_current_xact_id()::text::bigint"
        (first,) = one.execute(xid_of).fetchall()
        with in_a_thread(stage) as found:
            wait_until_somebody_waits_for(source, first[0])
            (second,) = two.execute(xid_of).fetchall()
            one.commit()
            wait_until_somebody_waits_for(source, second[0])
            prepare(source, "g", "INSERT INTO u VALUES (31)", "INSERT INTO t VALUES (3, 'g')")
            two.commit()
    (batch,) = found
    (waiting,) = batch.prepared
    (table,) = [each for each in batch.tables if each.name == "public.u"]
    assert table.copy_lsn is not None
    assert Lsn.parse(waiting.prepare_lsn) < Lsn.parse(table.copy_lsn)
    return batch


@pytest.mark.parametrize("transport", ["sql", "walsender"])
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_rows_prepared_across_a_copy_come_when_they_commit(
    source: Source, transport: str, end: str
) -> None:
    """Prepared before the copy's position and committed after it: not in the copy, and not part of it."""
    how: dict[str, Any] = {"transport": transport, "options": TWO_PHASE}
    first = source.stage(**how)
    source.execute("CREATE TABLE u(a int PRIMARY KEY)", "INSERT INTO u VALUES (11)")
    source.execute("ALTER PUBLICATION p ADD TABLE u")
    batch = prepare_across_the_copy(
        source, lambda: source.stage(checkpoint=lake_with(first), **how)
    )
    assert copied(source, batch, "public.u") == [11]
    assert changed(source, batch, "public.t") == changed(source, batch, "public.u") == []
    advance_slot(source.reader, source.slot_name, batch.end_lsn)
    source.execute(f"{end} PREPARED 'g'")
    last = source.stage(checkpoint=lake_with(first, batch), **how)
    commits = end == "COMMIT"
    assert changed(source, last, "public.u") == ([31] if commits else [])
    assert changed(source, last, "public.t") == ([3] if commits else [])
    assert not last.prepared


@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_rows_prepared_across_the_copy_of_a_slot_that_exists(
    source: Source, transport: str
) -> None:
    """The first run beside a slot that somebody made: what was prepared before the copy is read too."""
    how: dict[str, Any] = {"transport": transport, "options": TWO_PHASE}
    source.execute(
        "CREATE TABLE u(a int PRIMARY KEY)",
        "INSERT INTO u VALUES (11)",
        "ALTER PUBLICATION p ADD TABLE u",
        f"SELECT pg_create_logical_replication_slot('{source.slot_name}', 'pgoutput', false, true)",
        "INSERT INTO u VALUES (12)",
    )
    first = prepare_across_the_copy(source, lambda: source.stage(**how))
    assert copied(source, first, "public.u") == [11, 12]
    advance_slot(source.reader, source.slot_name, first.end_lsn)
    source.execute("COMMIT PREPARED 'g'")
    last = source.stage(checkpoint=lake_with(first), **how)
    assert changed(source, last, "public.u") == [31]
    assert changed(source, last, "public.t") == [3]
    assert not last.prepared


@pytest.mark.parametrize("transport", ["sql", "walsender"])
@pytest.mark.parametrize("asked", [False, True], ids=["published_later", "copied_again"])
def test_a_table_is_copied_when_its_prepared_rows_commit_in_the_same_batch(
    source: Source, transport: str, asked: bool
) -> None:
    """The copy holds the rows of a COMMIT PREPARED before it; they are not staged a second time."""
    how: dict[str, Any] = {"transport": transport, "options": TWO_PHASE}
    source.execute("CREATE TABLE u(a int PRIMARY KEY)")
    if asked:
        source.execute("ALTER PUBLICATION p ADD TABLE u")
        how["copy_tables"] = ["public.u"]
    first = source.stage(**{**how, "copy_tables": []})
    prepare(source, "g", "INSERT INTO u VALUES (1)", "INSERT INTO t VALUES (1, 'g')")
    second = source.stage(checkpoint=lake_with(first), **{**how, "copy_tables": []})
    advance_slot(source.reader, source.slot_name, second.end_lsn)
    assert [each.gid for each in second.prepared] == ["g"]
    source.execute("COMMIT PREPARED 'g'")
    if not asked:
        source.execute("ALTER PUBLICATION p ADD TABLE u")
    third = source.stage(checkpoint=lake_with(first, second), **how)
    assert copied(source, third, "public.u") == [1]
    assert changed(source, third, "public.u") == []
    assert changed(source, third, "public.t") == [1]


@pytest.mark.parametrize(
    "point",
    [
        "stage.during_copy",
        "stage.after_chunk",
        "stage.after_files",
        "stage.after_manifest",
    ],
)
def test_killed_between_the_copy_and_the_prepared_rows(source: Source, point: str) -> None:
    """What waited before the run is there for its repetition, and each row comes once."""
    how: dict[str, Any] = {"options": TWO_PHASE}
    first = source.stage(**how)
    source.execute("CREATE TABLE u(a int PRIMARY KEY)")
    prepare(source, "g", "INSERT INTO u VALUES (1)", "INSERT INTO t VALUES (1, 'g')")
    second = source.stage(checkpoint=lake_with(first), **how)
    advance_slot(source.reader, source.slot_name, second.end_lsn)
    source.execute("COMMIT PREPARED 'g'", "ALTER PUBLICATION p ADD TABLE u")
    again = {"checkpoint": lake_with(first, second), "copy_tables": ["public.u"], **how}
    assert source.stage_in_process(point, **again) == KILLED
    source.execute("INSERT INTO u VALUES (2)", "INSERT INTO t VALUES (2, 'x')")
    third = source.stage(**again)
    prepare(source, "h", "INSERT INTO u VALUES (3)", "INSERT INTO t VALUES (3, 'h')")
    batches = [first, second, third]
    batches.append(source.stage(checkpoint=lake_with(*batches), **how))
    source.execute("COMMIT PREPARED 'h'")
    batches.append(source.stage(checkpoint=lake_with(*batches), **how))
    rows = copied(source, third, "public.u")
    rows += [row for each in batches for row in changed(source, each, "public.u")]
    assert rows == [1, 2, 3]
    assert [row for each in batches for row in changed(source, each, "public.t")] == [1, 2, 3]
    assert not batches[-1].prepared


def test_a_batch_that_is_given_up_takes_what_was_prepared_in_it_along(source: Source) -> None:
    """Nothing has the rows of a transaction that was prepared in it but the copies."""
    how: dict[str, Any] = {"options": TWO_PHASE, "advance": "after_stage"}
    first = source.stage(**how)
    prepare(source, "given up", "INSERT INTO t VALUES (7)")
    batch = source.stage(checkpoint=lake_with(first), **how)
    assert batch.prepared
    assert source.confirmed() == str(batch.end_lsn)
    for path in (source.staging / source.slot_name / "manifests").glob("*.json"):
        if batch.batch_id[:16] in path.name:
            path.unlink()
    xid = prepared_xid(source, "given up")

    def copy_again() -> Manifest:
        return source.stage(checkpoint=lake_with(first), on_slot_lost="copy", **how)

    with in_a_thread(copy_again) as found:
        wait_until_somebody_waits_for(source, xid)
        source.execute("COMMIT PREPARED 'given up'")
    (again,) = found
    assert 7 in copied(source, again, "public.t")
    assert changed(source, again, "public.t") == []
