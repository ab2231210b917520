"""Few changes are the work of one task, and reading a small checkpoint is; the answers are the same."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.rows import apply_few, table_state
from airflow_provider_pgoutput.apply.rows.segments import Segment
from airflow_provider_pgoutput.apply.table import checkpoint, checkpoint_rows
from airflow_provider_pgoutput.batch.table_version import StagedFile, TableVersion
from tests.apply.build import Source, column, opened
from tests.apply.conftest import source_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _files(spark: SparkSession, source: Source) -> int:
    table = IcebergTable.load(spark, TableName("lake", source.slot_name, "t"))
    if table is None:
        return 0
    return int(table.java.currentSnapshot().summary().get("total-data-files"))


@pytest.mark.parametrize("few", [True, False])
def test_a_batch_of_few_changes_adds_one_file(
    spark: SparkSession,
    source: Source,
    lake_rows: Any,
    monkeypatch: pytest.MonkeyPatch,
    few: bool,
) -> None:
    monkeypatch.setattr(apply_few, "MOST_CHANGES", 0)
    if not few:
        monkeypatch.setattr(table_state, "_BYTES_OF_ONE_TASK", 0)
    table = source.table("t", (column("id"), column("v", "string")), key=("id",))
    for round_ in range(3):
        before = _files(spark, source)
        with source.transaction():
            for number in range(100):
                table.insert(100 * round_ + number, "new")
            table.update(lambda row, r=round_: row["id"] % 3 == r, {"v": f"round {round_}"})
        apply_batch(spark, source.stage())
        added = _files(spark, source) - before
        assert added == 1 if few else added > 1
    assert lake_rows(table) == source_rows(table)


@pytest.mark.parametrize("limit", ["_FILES_OF_ONE_TASK", "_ROWS_OF_ONE_TASK"])
def test_a_large_checkpoint_is_read_like_a_small_one(
    spark: SparkSession, source: Source, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    tables = [source.table(name, (column("id"),), key=("id",)) for name in ("t", "u")]
    for number in range(3):
        tables[number % 2].insert(number)
        plan = source.stage()
        apply_batch(spark, plan)
    manifest = opened(spark, plan).manifest
    table = IcebergTable.load(spark, checkpoint.table_name(plan))
    assert table is not None
    assert checkpoint_rows._is_small(table)
    by_one = checkpoint.read(spark, plan, manifest)
    monkeypatch.setattr(checkpoint_rows, limit, 2)
    assert not checkpoint_rows._is_small(table)
    assert checkpoint.read(spark, plan, manifest) == by_one
    assert by_one.end_lsn == manifest.end_lsn
    assert len(by_one.tables) == len(tables)
    assert sorted(by_one.tables.values())[-1] == manifest.end_lsn


def test_rows_of_a_copy_are_no_changes() -> None:
    """A large copy with a few changes: the changes are few, and the copy is shared out all the same."""
    copied = StagedFile("copy", "c", 10_000_000, 1 << 30, "", ())
    changed = StagedFile("changes", "f", 50_000, 8 << 20, "", ())
    assert table_state._are_few(_segment(copied, changed))
    assert not table_state._are_few(_segment(changed, replace(changed, rows=1, size_bytes=0)))
    assert not table_state._are_few(_segment(replace(changed, rows=1), replace(changed, rows=1)))


def _segment(*files: StagedFile) -> Segment:
    columns = (column("id"),)
    version = TableVersion(0, "public", "t", "d", columns, ("id",), files)
    return Segment("public.t", (version,), columns, (0,), full=False)
