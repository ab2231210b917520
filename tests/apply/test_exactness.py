"""Cases in which a row was once lost, doubled, or wrong: each is a way to break I1, I3 or I5."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_provider_pgoutput.apply.iceberg.session import Sessions
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.rows import prepare
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.apply.table.start import start
from airflow_provider_pgoutput.apply.table.target import targets
from airflow_provider_pgoutput.batch.changes import REJECTED
from airflow_provider_pgoutput.batch.checkpoint import REJECTED_TABLE
from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG, UPSERT
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.errors import PublishRefused, TableRefused
from tests.apply.build import Source, column, opened
from tests.apply.conftest import source_rows
from tests.apply.fold_cases import ABC, a_is

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("mode", [UPSERT, CHANGE_LOG])
def test_a_driver_that_slept_after_its_look_at_the_table_is_refused(
    spark: SparkSession, source: Source, lake_rows: Any, mode: str
) -> None:
    t = source.table("t", ABC, key=("a",))
    t.insert(1, "x", 0)
    apply_batch(spark, replace(source.stage(), mode=mode))
    t.insert(2, "y", 0)
    plan = replace(source.stage(), mode=mode)
    batch = opened(spark, plan)
    progress = checkpoint.read(spark, plan, batch.manifest)
    (target,) = targets(plan, batch.manifest)
    stale = start(spark, target, batch.manifest, progress)
    apply_batch(spark, plan)
    t.update(a_is(2), {"c": 9})
    apply_batch(spark, replace(source.stage(), mode=mode))
    before = lake_rows(t, "a", "b", "c")
    with pytest.raises(PublishRefused):
        prepare.prepare(Sessions(spark), batch, target, stale)
    assert lake_rows(t, "a", "b", "c") == before


@pytest.mark.parametrize("key", [("a",), ()])
def test_an_update_of_a_column_that_was_just_added_is_kept_with_full_identity(
    spark: SparkSession, source: Source, lake_rows: Any, key: tuple[str, ...]
) -> None:
    t = source.table("t", (column("a"), column("b", "string")), key=key, identity="f")
    t.insert(1, "x")
    t.insert(2, "y")
    apply_batch(spark, source.stage())
    t.update(a_is(2), {"b": "yy"})
    t.alter(columns=ABC)
    t.update(a_is(1), {"c": 5})
    apply_batch(spark, source.stage())
    assert lake_rows(t) == source_rows(t)


@pytest.mark.parametrize("format_version", [2, 3])
def test_a_null_written_after_a_default_was_filled_in_stays_null(
    spark: SparkSession, source: Source, lake_rows: Any, format_version: int
) -> None:
    t = source.table("t", (column("a"),), key=("a",))
    t.insert(1)
    t.insert(2)
    apply_batch(spark, replace(source.stage(), format_version=format_version))
    t.alter(columns=(column("a"), column("c", "int", "7")))
    t.update(a_is(1), {"c": None})
    apply_batch(spark, source.stage())
    assert lake_rows(t) == source_rows(t)
    t.insert(3, 5)
    apply_batch(spark, source.stage())
    assert lake_rows(t) == source_rows(t)


def test_text_of_the_source_that_looks_like_a_variable_is_text(
    spark: SparkSession, source: Source, lake_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = source.table("t", (column("a"),), key=("a",))
    t.insert(1)
    t.insert(2)
    apply_batch(spark, source.stage())
    t.alter(columns=(column("a"), column("c", "string", "${env:HOME} ${name}")))
    t.update(a_is(1), {"c": "z"})
    apply_batch(spark, source.stage())
    assert lake_rows(t) == source_rows(t)


def test_rows_that_left_the_source_unseen_do_not_double_when_they_come_back(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table("t", ABC, key=("a",))
    t.insert(1, "x", 0)
    apply_batch(spark, source.stage())
    # A partition was detached or truncated: nothing of that is in the stream of its root.
    t.rows.clear()
    t.insert(1, "new", 1)
    apply_batch(spark, source.stage())
    assert lake_rows(t) == source_rows(t)


def test_soft_delete_can_be_switched_on_for_a_table_that_exists(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table("t", ABC, key=("a",))
    t.insert(1, "x", 0)
    t.insert(2, "x", 0)
    apply_batch(spark, source.stage())
    t.delete(a_is(1))
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    assert sorted(lake_rows(t, "a", "_pgoutput_op"), key=repr) == [(1, "D"), (2, None)]


def test_soft_delete_can_be_switched_off(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """A row that comes back is live, and a marked one is no copy of a row without a key."""
    t = source.table("t", ABC, key=("a",))
    bag = source.table("bag", ABC, identity="f")
    for table in (t, bag):
        table.insert(1, "x", 0)
        table.insert(2, "x", 0)
    bag.insert(1, "x", 0)
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    for table in (t, bag):
        table.delete(a_is(1))
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    t.insert(1, "again", 1)
    t.update(a_is(2), {"c": 5})
    bag.delete(a_is(1))
    apply_batch(spark, source.stage())
    assert sorted(lake_rows(t, "a", "_pgoutput_op")) == [(1, "I"), (2, "U")]
    assert "D" in {op for a, op in lake_rows(bag, "a", "_pgoutput_op") if a == 1}
    live = [a for a, op in lake_rows(bag, "a", "_pgoutput_op") if op != "D"]
    assert sorted(live) == sorted(row[0] for row in source_rows(bag))


def test_a_table_does_not_change_its_mode(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table("t", ABC, key=("a",))
    t.insert(1, "x", 0)
    apply_batch(spark, source.stage())
    t.delete(a_is(1))
    with pytest.raises(TableRefused, match="mode"):
        apply_batch(spark, replace(source.stage(), mode=CHANGE_LOG))


@pytest.mark.parametrize(
    "name", ["pgoutput_checkpoint", "pgoutput_rejected_values", "pgoutput_messages"]
)
def test_a_source_table_cannot_take_a_name_of_the_pipelines_own(
    spark: SparkSession, source: Source, name: str
) -> None:
    t = source.table(name, ABC, key=("a",))
    t.insert(1, "x", 0)
    with pytest.raises(TableRefused, match="pipeline's own"):
        apply_batch(spark, source.stage())


def test_rejected_values_of_overlapping_batches_are_kept_once(
    spark: SparkSession, source: Source
) -> None:
    t = source.table("t", ABC, key=("a",))
    t.insert(1, "x", 0)
    t.insert(2, "y", 0)
    pending, begins = list(source.pending), source.staged_to

    def plan(count: int) -> Any:
        taken = pending[:count]
        manifest = source._manifest(taken, Lsn(begins), Lsn(taken[-1][0] + 0x30))
        values: dict[str, Any] = {name: [None] * count for name, _ in REJECTED}
        values["commit_lsn"] = pa.array([each[0] for each in taken], pa.int64())
        for name, kind in REJECTED:
            if name != "commit_lsn":
                arrow = pa.int64() if kind == "long" else pa.string()
                values[name] = pa.array(values[name], arrow)
        path = f"{source.slot_name}/data/{count}/rejected/rejected-00000.parquet"
        file = source._write_file(path, "rejected", pa.table(values))
        return source.write(replace(manifest, rejected_files=(file,)))

    for count in (1, 2):
        apply_batch(spark, plan(count))
    name = TableName("lake", source.slot_name, REJECTED_TABLE)
    rows = spark.newSession().table(name.sql).select("commit_lsn").collect()
    assert sorted(row[0] for row in rows) == [each[0] for each in pending]
    table = IcebergTable.load(spark, name)
    assert table is not None
    assert table.branch_ages_ms() == {}
