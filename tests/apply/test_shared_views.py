"""A view of a change log that several tables share shows the current rows of all of them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.views import View
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from tests.apply.conftest import sort, source_rows
from tests.apply.shared import COLUMNS, change, region_of, run, stage, tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from tests.apply.build import Relation, Source

HOW: dict[str, Any] = {"mode": "change_log", "current_views": True}


def _check(spark: SparkSession, relations: Sequence[Relation]) -> None:
    reader = spark.newSession()
    namespace = relations[0].source.slot_name
    rows = reader.sql(f"SELECT * FROM lake.`{namespace}`.people_current").collect()
    found = sort((row["id"], row["name"], row["note"], row["region"]) for row in rows)
    assert found == sort((*row, region_of(each)) for each in relations for row in source_rows(each))


@pytest.mark.spark
@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.slow), 2, 3])
def test_the_view_equals_all_sources(
    spark: SparkSession, source: Source, second: Source, seed: int
) -> None:
    """Two databases have the same keys and other LSNs. A copy or a TRUNCATE ends the rows of one table."""
    chosen = random.Random(seed)  # noqa: S311 - a test
    relations = [*tables(source, "eu", "us"), *tables(second, "eu")]
    for relation in relations:
        for number in range(6):
            relation.insert(number, "first", f"note {number}")
    for turn in range(4):
        run(spark, (source, second), HOW)
        _check(spark, relations)
        for _ in range(60):
            change(chosen.choice(relations), chosen)
        if turn == 1:
            copied = chosen.choice(relations)
            copied.source.copy(copied)
            copied.insert(99, "after the copy", None)


@pytest.mark.spark
@pytest.mark.slow
def test_tables_with_different_keys(spark: SparkSession, source: Source) -> None:
    (eu,) = tables(source, "eu")
    us = source.table("people", COLUMNS, ("name",), toast=("note",), schema_name="us")
    (asia,) = tables(source, "asia")
    for relation in (eu, us, asia):
        for number in range(4):
            relation.insert(number, f"name {number}", f"note {number}")
    run(spark, (source,), HOW)
    _check(spark, (eu, us, asia))
    eu.update(lambda row: row["id"] == 1, {"id": 17})
    us.update(lambda row: row["id"] == 2, {"name": "another"})
    us.update(lambda row: row["id"] == 1, {"id": 18})
    asia.truncate()
    run(spark, (source,), HOW)
    _check(spark, (eu, us, asia))


@pytest.mark.spark
def test_a_table_without_a_view_takes_the_view_of_all(spark: SparkSession, source: Source) -> None:
    """A table without a key and with whole old rows cannot be told, so there is no view of some rows only."""
    (eu,) = tables(source, "eu")
    eu.insert(1, "a", None)
    run(spark, (source,), HOW)
    _check(spark, (eu,))
    us = source.table("people", COLUMNS, (), "f", schema_name="us")
    us.insert(1, "a", None)
    run(spark, (source,), HOW)
    assert View.load(spark, TableName("lake", source.slot_name, "people_current")) is None


@pytest.mark.spark
def test_another_pipeline_that_adds_its_table_meanwhile(
    spark: SparkSession, source: Source, second: Source
) -> None:
    """Its table has another key. So the view that the first pipeline had in mind would lack its rows."""
    (eu,) = tables(source, "eu")
    eu.insert(1, "a", None)
    us = second.table("people", COLUMNS, ("name",), schema_name="us")
    us.insert(1, "a", None)
    mine, theirs = stage((source, second), HOW)
    begun = False

    def reach(point: str) -> None:
        nonlocal begun
        if point == "view.before_create" and not begun:
            begun = True
            apply_batch(spark, theirs)

    with crash_points.watched(reach):
        apply_batch(spark, mine)
    assert begun
    _check(spark, (eu, us))
