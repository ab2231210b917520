"""Spark forgets a table that it did not use for 30 seconds and loads another one. No step meets an old one.

The tests let Spark forget and load at a step, as it happens on a busy machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.crash_points import watched
from tests.apply.build import column, replay_of
from tests.apply.conftest import source_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob
    from tests.apply.build import Relation, Source


def forgets(spark: SparkSession, names: list[TableName], at: str) -> Callable[[str], None]:
    """Lets the session that reaches a step forget tables and load them again."""
    jvm: Any = spark._jvm
    sessions = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")

    def forget(point: str) -> None:
        if point != at:
            return
        session = sessions.getActiveSession().get()
        for name in names:
            if session.catalog().tableExists(name.sql):
                session.sql(f"REFRESH TABLE {name.sql}")
                session.table(f"{name.sql}.files").isEmpty()

    return forget


def test_a_branch_of_a_table_that_spark_loaded_again(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    apply_batch(spark, source.stage())
    name = TableName("lake", source.slot_name, table.name)
    ours = IcebergTable.load(spark, name)
    assert ours is not None
    forgets(spark, [name], "now")("now")
    assert ours.java is not IcebergTable.load(spark, name)
    ours.create_branch("b", ours.head)
    assert spark.table(name.branch_sql("b")).count() == len(table.rows)
    ours.delete_all("b")
    assert spark.table(name.branch_sql("b")).count() == 0
    ours.remove_branches(["b"])


@pytest.mark.parametrize("format_version", [2, 3])
@pytest.mark.parametrize("at", ["apply.after_columns", "apply.after_branch", "apply.after_copy"])
def test_an_apply_whose_tables_spark_forgets(
    spark: SparkSession, source: Source, lake_rows: Any, at: str, format_version: int, caplog: Any
) -> None:
    keyed = source.table(
        "t", (column("a"), column("b", "string"), column("c")), key=("a",), toast=("b",)
    )
    keyless = source.table("f", (column("a"), column("b", "string")), identity="f")
    names = [TableName("lake", source.slot_name, each.name) for each in (keyed, keyless)]
    jobs: list[ApplyJob] = []

    def applied() -> None:
        jobs.append(replace(source.stage(), format_version=format_version))
        with watched(forgets(spark, names, at)):
            apply_batch(spark, jobs[-1])
        for each in (keyed, keyless):
            assert lake_rows(each) == source_rows(each)

    for a in range(5):
        keyed.insert(a, f"b{a}", 0)
        keyless.insert(a, f"b{a}")
    source.pending.clear()
    source.copy(keyed)
    source.copy(keyless)
    applied()
    keyed.alter((*keyed.version.columns, column("d", "string", missing="new")))
    keyed.update(lambda row: row["a"] == 1, {"c": 7})
    keyed.update(lambda row: row["a"] == 2, {"a": 20})
    keyed.delete(lambda row: row["a"] == 3)
    keyless.delete(lambda row: row["a"] == 4)
    applied()
    keyed.truncate()
    keyed.insert(1, "again", 1, "x")
    applied()
    with watched(forgets(spark, names, at)):
        replay(spark, replay_of(jobs[-1], [jobs[-1].manifest_uri], in_place=True))
    for each in (keyed, keyless):
        assert lake_rows(each) == source_rows(each)
    # Nothing was prepared twice.
    assert "again on the new main" not in caplog.text
    assert "Looking at it again" not in caplog.text
