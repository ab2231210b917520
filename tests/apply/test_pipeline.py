"""The life of a batch: checked, prepared, published, recorded; and what happens when it is run again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.rows import staged_files
from tests.apply.build import Source, column
from tests.apply.conftest import source_rows

if TYPE_CHECKING:
    import pytest
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


def test_a_batch_of_many_tables_has_no_line_for_each_of_them(
    spark: SparkSession,
    source: Source,
    lake_rows: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Here two are many. What is not usual still has its line."""
    caplog.set_level(logging.INFO, "airflow_provider_pgoutput.apply")
    tables = [source.table(name, (column("a"),), key=("a",)) for name in ("first", "second")]

    def lines_about_tables() -> tuple[list[str], str]:
        caplog.clear()
        for number, table in enumerate(tables):
            table.insert(number + 10 * len(table.rows))
        apply_batch(spark, source.stage())
        for table in tables:
            assert lake_rows(table) == source_rows(table)
        names = [f"{source.slot_name}.{table.name}" for table in tables]
        return [each for each in caplog.messages if any(n in each for n in names)], caplog.text

    few, text = lines_about_tables()
    assert sum(each.startswith("Created ") for each in few) == 2
    assert sum(": prepared " in each for each in few) == 2
    assert "Prepared 2 of 2 tables" not in text

    monkeypatch.setattr(staged_files, "MOST_LOGGED", 1)
    many, text = lines_about_tables()
    assert many == []
    assert "Prepared 2 of 2 tables" in text
