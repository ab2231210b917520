"""A stage run takes a request for a repair up: the rows of its keys are the last changes of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.repairs import (
    KeysOfTable,
    RepairRequest,
    leave_request,
)
from airflow_provider_pgoutput.capture.stream.options import SQL, WALSENDER, StreamOptions
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
