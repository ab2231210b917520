"""The life of a batch: checked, prepared, published, recorded; and what happens when it is run again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from tests.apply.build import Source, column
from tests.apply.conftest import source_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_copy_and_then_changes_of_every_kind(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table("t", (column("a"), column("b", "string")), key=("a",))
    t.insert(1, "x")
    t.insert(2, "y")
    source.pending.clear()
    source.copy(t)
    apply_batch(spark, source.stage())
    assert lake_rows(t) == source_rows(t) == [(1, "x"), (2, "y")]
    t.update(lambda row: row["a"] == 1, {"b": "z"})
    t.delete(lambda row: row["a"] == 2)
    t.insert(3, "n")
    t.update(lambda row: row["a"] == 3, {"a": 9})
    plan = source.stage()
    apply_batch(spark, plan)
    assert lake_rows(t) == source_rows(t) == [(1, "z"), (9, "n")]
    assert apply_batch(spark, plan).already_applied


def test_a_copy_is_made_of_a_table_that_is_past_its_point(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """An attempt before sealed it, and another batch was published since: it was asked for, so it is made."""
    t = source.table("t", (column("a"), column("b", "string")), key=("a",))
    t.insert(1, "x")
    t.insert(2, "y")
    apply_batch(spark, source.stage())
    start = source.staged_to
    t.update(lambda row: row["a"] == 1, {"b": "z"})
    source.copy(t)
    t.update(lambda row: row["a"] == 2, {"b": "w"})
    copies, pending = source._copies, source.pending
    source._copies = {}
    apply_batch(spark, source.stage())
    name = TableName("lake", source.slot_name, "t")
    spark.sql(f"DELETE FROM {name.sql} WHERE a = 1")
    t.insert(3, "v")
    source._copies, source.pending, source.staged_to = copies, pending + source.pending, start
    again = source.stage()
    apply_batch(spark, again)
    assert lake_rows(t) == source_rows(t)
    assert apply_batch(spark, again).already_applied
