"""Columns of a target follow the source, also where another writer changes them at the same time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.rows import prepare
from airflow_provider_pgoutput.apply.schema.evolve import evolve
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.apply.table.start import start
from airflow_provider_pgoutput.apply.table.target import targets
from airflow_provider_pgoutput.batch.checkpoint import PROPERTY_COLUMNS
from airflow_provider_pgoutput.errors import PublishRefused, TableRefused
from tests.apply.build import Source, column, opened
from tests.apply.conftest import source_rows
from tests.apply.drivers import loaded, name_of, race
from tests.apply.fold_cases import a_is

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.apply.build import Relation


def test_a_type_that_iceberg_cannot_follow_is_refused(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    apply_batch(spark, source.stage())
    table.alter(columns=(column("a"), column("b", "string"), column("c", "string")))
    table.insert(4, "b4", "text")
    with pytest.raises(TableRefused, match="type changed from int to string") as raised:
        apply_batch(spark, source.stage())
    assert raised.value.column == "c"


def test_a_column_that_two_writers_add_is_added_once(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    """The table that is evolved was loaded before somebody else added the column."""
    plan = source.stage()
    apply_batch(spark, plan)
    name = TableName(plan.catalog_name, plan.namespace, "t")
    stale = IcebergTable.load(spark, name)
    assert stale is not None
    spark.sql(f"ALTER TABLE {name.sql} ADD COLUMN d int")
    evolve(spark, stale, [*table.version.columns, column("d")], ("a",), {}, {})
    assert [field.name for field in spark.table(name.sql).schema.fields].count("d") == 1
    table.alter(columns=(*table.version.columns, column("d")))
    table.update(a_is(1), {"d": 5})
    apply_batch(spark, source.stage())
    assert lake_rows(table) == source_rows(table)


def test_drivers_that_add_a_column_at_once_leave_one(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    table.alter(columns=(*table.version.columns, column("d")))
    table.update(a_is(1), {"d": 5})
    race(spark, source.stage())
    assert lake_rows(table) == source_rows(table)


def test_columns_that_changed_after_they_were_looked_at_are_left_alone(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    """Another driver renamed a column, which moves no branch; to this one it is still the old name's."""
    apply_batch(spark, source.stage())
    table.update(a_is(1), {"c": 5})
    plan = source.stage()
    batch = opened(spark, plan)
    (target,) = targets(plan, batch.manifest)
    begin = start(spark, target, batch.manifest, checkpoint.read(spark, plan, batch.manifest))

    class Overtaken(prepare.TablePreparation):
        def write(self) -> None:
            """See ``Preparation``; somebody else is faster."""
            numbers = '{"relation_oid": 1, "fields": {}}'
            sql = f"ALTER TABLE {target.name.sql} SET TBLPROPERTIES ('{PROPERTY_COLUMNS}' = '{numbers}')"
            spark.sql(sql)
            super().write()

    with pytest.raises(PublishRefused, match="columns changed"):
        Overtaken(spark, batch, target, begin).run()
    assert not loaded(spark, table).branch_ages_ms()


def test_a_column_that_is_renamed_while_the_branch_is_written_keeps_its_values(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """Spark gives NULL to columns that it does not find by the batch's names, and moves no branch."""
    kinds = (("a", "int"), ("b", "string"), ("c", "int"))
    columns = [replace(column(*kind), attribute_number=i) for i, kind in enumerate(kinds, 1)]
    table = source.table("numbered", tuple(columns), key=("a",))
    table.insert(1, "b1", 0)
    table.insert(2, "b2", 0)
    apply_batch(spark, source.stage())
    table.update(a_is(1), {"b": "new", "c": 5})
    names = ["c"]

    def rename(point: str) -> None:
        if point == "apply.after_branch" and names:
            spark.sql(f"ALTER TABLE {name_of(table).sql} RENAME COLUMN {names.pop()} TO cc")

    with crash_points.watched(rename):
        apply_batch(spark, source.stage())
    assert not names
    assert lake_rows(table) == source_rows(table)
