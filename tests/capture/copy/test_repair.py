"""A stage run takes a request for a repair up: the rows of its keys are the last changes of the batch."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.copy import repair
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_published_tables
from airflow_provider_pgoutput.capture.source.keys import Keys
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.repairs import (
    KeysOfTable,
    RepairRequest,
    leave_request,
    waiting_requests,
)
from airflow_provider_pgoutput.capture.stream.options import SQL, WALSENDER, StreamOptions
from airflow_provider_pgoutput.crash_points import watched
from tests.capture.pipeline_support import checkpoint_with_shapes

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.capture.pipeline_support import Source

_OURS = ("op", "a", "b")


def _ask(
    source: Source, table: str, *keys: str, columns: tuple[str, ...] = ("a",)
) -> RepairRequest:
    ((oid, system),) = source.execute(
        f"SELECT 'public.{table}'::regclass::oid::int8, system_identifier::text FROM pg_control_system()"
    )
    wanted = KeysOfTable(oid, f"public.{table}", columns, tuple((each,) for each in keys))
    return leave_request(StagingArea(str(source.staging)), source.slot_name, system, [wanted], 600)


def _ours(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Deletes come in the order of the request, and updates in that of the server."""
    return sorted((tuple(row[name] for name in _OURS) for row in rows), key=repr)


def _is_repair(row: dict[str, Any], batch: Manifest) -> bool:
    return Lsn(row["commit_lsn"]) == Lsn(batch.end_lsn - 1)


@pytest.mark.parametrize("transport", [SQL, WALSENDER])
@pytest.mark.parametrize("options", [StreamOptions(), StreamOptions(binary=True)])
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_rows_are_the_last_changes_of_the_batch(
    source: Source, transport: str, options: StreamOptions, identity: str
) -> None:
    source.execute(
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 5) i",
    )
    first = source.stage(transport=transport, options=options)
    source.execute("UPDATE t SET b = 'changed' WHERE a = 1", "DELETE FROM t WHERE a = 2")
    left = _ask(source, "t", "1", "2", "3", "77", "3")
    batch = source.stage(
        transport=transport, options=options, checkpoint=checkpoint_with_shapes(first)
    )
    assert not left.is_waiting()
    rows = source.changes(batch, "public.t")
    streamed, repaired = rows[:2], rows[2:]
    assert [row["op"] for row in streamed] == ["U", "D"]
    assert not any(_is_repair(row, batch) for row in streamed)
    assert all(_is_repair(row, batch) and row["seq"] == i for i, row in enumerate(repaired))
    assert _ours(repaired) == [
        ("D", None, None),
        ("D", None, None),
        ("U", 1, "changed"),
        ("U", 3, "v"),
    ]
    assert [row["o0"] for row in repaired] == [2, 77, None, None]
    assert [row["old_kind"] for row in repaired] == ["K", "K", None, None]
    (table,) = batch.tables
    assert (table.counts.updates, table.counts.deletes) == (3, 3)
    assert len(table.versions) == 1, "the stream's version has these columns"
    source.execute("UPDATE t SET b = 'later' WHERE a = 3")
    later = source.stage(
        transport=transport, options=options, checkpoint=checkpoint_with_shapes(batch)
    )
    assert _ours(source.changes(later, "public.t")) == [("U", 3, "later")]


def test_an_idle_source_is_repaired_all_the_same(source: Source) -> None:
    source.execute("INSERT INTO t VALUES (1, 'v')")
    first = source.stage()
    _ask(source, "t", "1")
    batch = source.stage(checkpoint=checkpoint_with_shapes(first))
    assert _ours(source.changes(batch, "public.t")) == [("U", 1, "v")]
    assert batch.start_lsn < batch.end_lsn
    assert source.stage(checkpoint=checkpoint_with_shapes(batch)).tables == ()


def test_a_column_that_was_added_before_the_repair_is_in_its_rows(source: Source) -> None:
    source.execute("INSERT INTO t VALUES (1, 'v'), (2, 'v')")
    first = source.stage()
    source.execute(
        "UPDATE t SET b = 'before' WHERE a = 1",
        "ALTER TABLE t ADD c int DEFAULT 7",
    )
    _ask(source, "t", "1", "2")
    batch = source.stage(checkpoint=checkpoint_with_shapes(first))
    rows = source.changes(batch, "public.t")
    assert [(row["a"], row["b"], row.get("c")) for row in rows] == [
        (1, "before", None),
        (1, "before", 7),
        (2, "v", 7),
    ]
    (table,) = batch.tables
    assert [len(each.columns) for each in table.versions] == [2, 3]


@pytest.mark.parametrize("publish", ["insert, update", "insert, update, delete"])
def test_a_row_is_not_deleted_if_the_publication_sends_no_deletes(
    source: Source, publish: str
) -> None:
    source.execute("INSERT INTO t VALUES (1, 'v'), (2, 'v')")
    source.execute(f"CREATE PUBLICATION archive FOR TABLE t WITH (publish = '{publish}')")
    first = source.stage(publication_names=("archive",))
    # Both differed when they were compared.
    _ask(source, "t", "1", "2")
    source.execute("DELETE FROM t WHERE a = 1")
    batch = source.stage(publication_names=("archive",), checkpoint=checkpoint_with_shapes(first))
    rows = [row for row in source.changes(batch, "public.t") if _is_repair(row, batch)]
    assert _ours(rows) == [("U", 2, "v")]


def test_partitions_with_other_identities_are_repaired_through_their_root(source: Source) -> None:
    source.execute(
        "CREATE TABLE r (a int PRIMARY KEY, b text) PARTITION BY RANGE (a)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE r2 PARTITION OF r DEFAULT",
        "ALTER TABLE r1 REPLICA IDENTITY FULL",
        "CREATE PUBLICATION root FOR TABLE r WITH (publish_via_partition_root)",
        "INSERT INTO r VALUES (1, 'v'), (20, 'v')",
    )
    first = source.stage(publication_names=("root",))
    source.execute("UPDATE r SET b = 'changed'")
    _ask(source, "r", "1", "20", "30")
    batch = source.stage(publication_names=("root",), checkpoint=checkpoint_with_shapes(first))
    rows = [row for row in source.changes(batch, "public.r") if _is_repair(row, batch)]
    assert _ours(rows) == [("D", None, None), ("U", 1, "changed"), ("U", 20, "changed")]


def test_a_value_that_its_column_cannot_hold_is_kept_as_text(source: Source) -> None:
    source.execute(
        "ALTER TABLE t ADD n numeric(4,2)", "INSERT INTO t VALUES (1, 'v', 'NaN'), (2, 'v', 1)"
    )
    first = source.stage()
    _ask(source, "t", "1", "2")
    batch = source.stage(checkpoint=checkpoint_with_shapes(first))
    found = {row["a"]: row["n"] for row in source.changes(batch, "public.t")}
    assert found == {1: None, 2: 1}
    assert sum(each.rows for each in batch.rejected_files) == 1


def test_a_run_that_copies_leaves_the_repair_to_the_next(source: Source) -> None:
    source.execute("INSERT INTO t VALUES (1, 'v')")
    first = source.stage()
    left = _ask(source, "t", "1")
    copied = source.stage(checkpoint=checkpoint_with_shapes(first), copy_tables=("public.t",))
    assert source.copied(copied, "public.t")
    assert left.is_waiting()
    source.stage(checkpoint=checkpoint_with_shapes(copied))
    assert not left.is_waiting()


@pytest.mark.parametrize("kept", ["b", "A"])
def test_a_request_by_another_key_is_left_out(
    source: Source, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    source.execute("INSERT INTO t VALUES (1, 'v')")
    first = source.stage()
    left = _ask(source, "t", "1", columns=(kept,))
    assert source.stage(checkpoint=checkpoint_with_shapes(first)).tables == ()
    assert "its key has other columns" in caplog.text
    assert not left.is_waiting()


def test_a_refused_value_stops_neither_the_batch_nor_the_table(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a row came when the policy was another one."""
    source.execute(
        "ALTER TABLE t ADD n numeric(4,2)", "INSERT INTO t VALUES (1, 'v', 'NaN'), (2, 'v', 1)"
    )
    first = source.stage()
    source.execute("UPDATE t SET b = 'changed' WHERE a = 2")
    _ask(source, "t", "1", "2")
    batch = source.stage(checkpoint=checkpoint_with_shapes(first), value_policy={"default": "fail"})
    assert _ours(source.changes(batch, "public.t")) == [("U", 2, "changed")]
    assert "public.t is not repaired" in caplog.text


def test_rows_past_the_limit_wait_for_later_batches(
    source: Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(repair, "_MOST_BYTES", 1)
    source.execute(
        "CREATE TABLE u (a int PRIMARY KEY, b text)",
        "ALTER PUBLICATION p ADD TABLE u",
        "INSERT INTO t VALUES (1, 'v'), (2, 'v')",
        "INSERT INTO u VALUES (3, 'v')",
    )
    first = source.stage()
    left = [_ask(source, "t", "1", "77", "2"), _ask(source, "u", "3")]
    checkpoint = checkpoint_with_shapes(first)
    found: list[list[dict[str, Any]]] = []
    while any(each.is_waiting() for each in left):
        assert len(found) < 4
        batch = source.stage(checkpoint=checkpoint)
        checkpoint = dataclasses.replace(checkpoint, end_lsn=batch.end_lsn)
        found.append([row for each in batch.tables for row in source.changes(batch, each.name)])
    repaired = sorted((row["op"], row["a"] or row["o0"]) for rows in found for row in rows)
    assert repaired == [("D", 77), ("U", 1), ("U", 2), ("U", 3)]
    assert len(found) > 1
    assert "A later batch repairs" in caplog.text


def test_long_rows_are_read_a_few_at_a_time(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "_BYTES_AT_ONCE", 25_000)
    source.execute("INSERT INTO t SELECT i, repeat('x', 10000) FROM generate_series(1, 40) i")
    with sessions.connect(source.reader) as session:
        (table,) = read_published_tables(session, source.server(), ("p",), Keys())
        keys = tuple((str(number),) for number in range(1, 41))
        wanted = KeysOfTable(table.relation_oid, table.name, ("a",), keys)
        found = repair.find_rows(session, table, wanted)
        some = repair.find_rows(session, table, wanted, 100_000)
    assert (sum(map(len, found.values[0])), found.remaining) == (40, ())
    assert max(map(len, found.values[0])) == 4
    assert 100_000 <= some.size_bytes < 150_000
    assert some.remaining == keys[sum(map(len, some.values[0])) :]


def test_an_open_transaction_stops_no_batch(
    source: Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(repair, "_MOST_SECONDS", 1.0)
    source.execute("INSERT INTO t VALUES (1, 'v'), (2, 'v')")
    first = source.stage()
    left = _ask(source, "t", "1")
    with closing(psycopg.connect(source.conninfo)) as session:
        session.execute("SELECT pg_current_xact_id()")
        source.execute("UPDATE t SET b = 'changed' WHERE a = 2")
        batch = source.stage(checkpoint=checkpoint_with_shapes(first))
    assert _ours(source.changes(batch, "public.t")) == [("U", 2, "changed")]
    assert "The slot was not made in 1 seconds" in caplog.text
    assert left.is_waiting()
    batch = source.stage(checkpoint=checkpoint_with_shapes(batch))
    assert _ours(source.changes(batch, "public.t")) == [("U", 1, "v")]
    assert not left.is_waiting()


def test_a_locked_table_leaves_the_repair_to_a_later_batch(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "LOCK_TIMEOUT_SECONDS", 1)
    source.execute("INSERT INTO t VALUES (1, 'v')")
    first = source.stage()
    left = _ask(source, "t", "1")
    with closing(psycopg.connect(source.conninfo)) as session:

        def hold(point: str) -> None:
            if point == "stage.after_repair_snapshot":
                session.execute("LOCK TABLE t")
            elif point == "stage.before_read":
                session.rollback()

        with watched(hold):
            batch = source.stage(checkpoint=checkpoint_with_shapes(first))
    assert batch.tables == ()
    assert left.is_waiting()
    later = dataclasses.replace(checkpoint_with_shapes(first), end_lsn=batch.end_lsn)
    assert _ours(source.changes(source.stage(checkpoint=later), "public.t")) == [("U", 1, "v")]


def test_a_table_that_is_altered_meanwhile_leaves_its_keys_to_a_later_batch(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.execute(
        "CREATE TABLE u (a int PRIMARY KEY, b text)",
        "ALTER PUBLICATION p ADD TABLE u",
        "INSERT INTO t VALUES (1, 'v')",
        "INSERT INTO u VALUES (1, 'v')",
    )
    first = source.stage()
    left = _ask(source, "t", "1")
    other = _ask(source, "u", "1")

    def rename(point: str) -> None:
        if point == "stage.after_repair_snapshot":
            source.execute("ALTER TABLE t RENAME b TO c")

    with watched(rename):
        batch = source.stage(checkpoint=checkpoint_with_shapes(first))
    assert _ours(source.changes(batch, "public.u")) == [("U", 1, "v")]
    assert [each.name for each in batch.tables] == ["public.u"]
    assert "A later batch repairs public.t" in caplog.text
    assert (left.is_waiting(), other.is_waiting()) == (True, False)
    later = dataclasses.replace(checkpoint_with_shapes(first), end_lsn=batch.end_lsn)
    (row,) = source.changes(source.stage(checkpoint=later), "public.t")
    assert (row["op"], row["a"], row["c"]) == ("U", 1, "v")
    assert not left.is_waiting()


@pytest.mark.parametrize("answer", ["fail", "set_aside"])
def test_a_repair_that_would_refuse_its_table_is_left_out(
    source: Source, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can tell the column that was dropped from the one that has its name, and nobody wrote to it."""
    source.execute(
        "CREATE TABLE u (a int PRIMARY KEY, b text)",
        "ALTER PUBLICATION p ADD TABLE u",
        "INSERT INTO t VALUES (1, 'v')",
        "INSERT INTO u VALUES (1, 'v')",
    )
    first = source.stage(on_table_refused=answer)
    source.execute(
        "ALTER TABLE t DROP b", "ALTER TABLE t ADD b text", "INSERT INTO u VALUES (2, 'w')"
    )
    refused, other = _ask(source, "t", "1"), _ask(source, "u", "1")
    checkpoint = checkpoint_with_shapes(first)
    batch = source.stage(checkpoint=checkpoint, on_table_refused=answer)
    assert [each.name for each in batch.tables] == ["public.u"]
    assert _ours(source.changes(batch, "public.u")) == [("I", 2, "w")]
    assert batch.passed_over == ()
    assert "public.t is not repaired, and the batch is staged once more" in caplog.text
    assert (refused.is_waiting(), other.is_waiting()) == (False, True)
    later = dataclasses.replace(checkpoint, end_lsn=batch.end_lsn)
    batch = source.stage(checkpoint=later, on_table_refused=answer)
    assert _ours(source.changes(batch, "public.u")) == [("U", 1, "v")]
    assert not other.is_waiting()


def test_a_request_that_cannot_be_removed_stops_nothing(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a store that lets nobody delete: a folder in the place of the file fails alike."""
    source.execute("INSERT INTO t VALUES (1, 'v')")
    first = source.stage()
    left = _ask(source, "t", "1")

    def replace(point: str) -> None:
        if point == "stage.before_repair_removed":
            left.remove()
            (source.staging / left.path).mkdir()

    with watched(replace):
        batch = source.stage(checkpoint=checkpoint_with_shapes(first))
    assert _ours(source.changes(batch, "public.t")) == [("U", 1, "v")]
    assert "A request for a repair cannot be removed" in caplog.text


def test_a_request_stays_if_the_batch_of_another_run_counts(source: Source) -> None:
    source.execute("INSERT INTO t VALUES (1, 'v')")
    checkpoint = checkpoint_with_shapes(source.stage())
    left = _ask(source, "t", "1")
    others: list[Manifest] = []

    def stage_meanwhile(point: str) -> None:
        # The other run reaches the point, too, and then there is no request.
        if point == "stage.after_files" and left.is_waiting():
            left.remove()
            source.execute("INSERT INTO t VALUES (2, 'w')")
            others.append(source.stage(checkpoint=checkpoint))
            left.area.write_whole(left.path, content)

    content = left.area.read(left.path)
    with watched(stage_meanwhile):
        batch = source.stage(checkpoint=checkpoint)
    assert batch.batch_id == others[0].batch_id
    assert _ours(source.changes(batch, "public.t")) == [("I", 2, "w")]
    assert waiting_requests(left.area, source.slot_name) == (left,)


@pytest.mark.parametrize(
    ("kind", "bad", "absent", "good"),
    [
        ("timestamptz", "infinity", "-infinity", "2020-01-02 03:04:05+00"),
        ("numeric(4,2)", "NaN", "NaN", "1.50"),
    ],
)
def test_only_rows_whose_key_the_lake_cannot_hold_are_left_out(
    source: Source, kind: str, bad: str, absent: str, good: str, caplog: pytest.LogCaptureFixture
) -> None:
    source.execute(
        f"CREATE TABLE k (a {kind} PRIMARY KEY, b text)",
        f"INSERT INTO k VALUES ('{good}', 'good')",
        "ALTER PUBLICATION p ADD TABLE k",
    )
    first = source.stage()
    source.execute(f"INSERT INTO k VALUES ('{bad}', 'bad')")
    middle = source.stage(checkpoint=checkpoint_with_shapes(first))
    checkpoint = dataclasses.replace(checkpoint_with_shapes(first), end_lsn=middle.end_lsn)
    _ask(source, "k", bad, absent, good)
    batch = source.stage(checkpoint=checkpoint)
    (row,) = source.changes(batch, "public.k")
    assert (row["op"], row["b"]) == ("U", "good")
    assert f"{len({bad, absent})} rows of public.k are not repaired" in caplog.text
    assert batch.rejected_files == ()
    _ask(source, "k", bad)
    later = dataclasses.replace(checkpoint, end_lsn=batch.end_lsn)
    assert source.stage(checkpoint=later).tables == ()


def test_rows_are_masked(source: Source) -> None:
    source.execute("ALTER TABLE t ADD c text", "INSERT INTO t VALUES (1, 'plain', 'left out')")
    masks = {"columns": {"public.t.b": "redact", "public.t.c": "drop"}}
    first = source.stage(**masks)
    _ask(source, "t", "1", "2")
    second = source.stage(**masks, checkpoint=checkpoint_with_shapes(first))
    assert _ours(source.changes(second, "public.t")) == [("D", None, None), ("U", 1, "***")]
    (table,) = second.tables
    assert [each.name for each in table.versions[0].columns] == ["a", "b"]


def test_no_rows_are_looked_for_by_a_masked_key(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.execute("INSERT INTO t VALUES (1, 'plain')")
    masks = {"columns": {"public.t.a": "hash"}, "mask_secret": b"a secret of this test"}
    first = source.stage(**masks)
    _ask(source, "t", "1")
    second = source.stage(**masks, checkpoint=checkpoint_with_shapes(first))
    assert second.tables == ()
    assert "its key is masked" in caplog.text
