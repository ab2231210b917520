"""A batch is applied only to the table that its own pipeline wrote, in the state that it left."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.rows import prepare
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.apply.table.start import start
from airflow_provider_pgoutput.apply.table.target import targets
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    PublishRefused,
    TableRefused,
    TableRolledBack,
)
from tests.apply.build import Source, column, opened
from tests.apply.conftest import source_rows
from tests.apply.drivers import loaded, name_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
    from tests.apply.build import Relation


def test_somebody_elses_table_is_refused(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name_of(table).namespace_sql}")
    spark.sql(f"CREATE TABLE {name_of(table).sql} (a INT, b STRING, c INT) USING iceberg")
    spark.sql(f"INSERT INTO {name_of(table).sql} VALUES (1, 'theirs', 0)")
    with pytest.raises(TableRefused):
        apply_batch(spark, source.stage())


def test_a_table_of_another_system_is_refused(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    apply_batch(spark, source.stage())
    source.system_identifier = "another"
    table.insert(4, "b4", 0)
    with pytest.raises(TableRefused, match="another PostgreSQL system"):
        apply_batch(spark, source.stage())


def test_a_table_that_was_created_again_at_the_source_is_refused(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    apply_batch(spark, source.stage())
    table.oid += 1
    table.insert(4, "b4", 0)
    with pytest.raises(TableRefused, match="created again"):
        apply_batch(spark, source.stage())


def test_a_renamed_table_is_refused_until_its_target_is_named(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    table.name = "t_new"
    table.insert(4, "b4", 0)
    plan = source.stage()
    with pytest.raises(TableRefused, match="renamed"):
        apply_batch(spark, plan)
    apply_batch(spark, replace(plan, table_options={"public.t_new": TableOptions(target="t")}))
    assert lake_rows(table, target="t") == source_rows(table)


def test_two_tables_with_one_target_are_refused(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    other = source.table("t", (column("a"),), key=("a",), schema_name="s")
    other.insert(1)
    plan = replace(source.stage(), table_options={"s.t": TableOptions(target="t")})
    with pytest.raises(ConfigurationError):
        apply_batch(spark, plan)


def test_of_two_first_runs_on_one_target_the_later_one_leaves_the_table_alone(
    spark: SparkSession, source: Source, tmp_path: Path, lake_rows: Any
) -> None:
    """Another pipeline made the table after this one looked for it and found none."""
    owner = source.table("t", (column("a"),), key=("a",))
    owner.insert(1)
    first = source.stage()
    other = Source(tmp_path / "other", "another_slot", "999")
    other.table("t", (column("a"), column("z", "string")), key=("a",)).insert(7, "z")
    plan = replace(other.stage(), namespace=source.slot_name)
    batch = opened(spark, plan)
    (target,) = targets(plan, batch.manifest)
    progress = checkpoint.read(spark, plan, batch.manifest)
    begin = start(spark, target, batch.manifest, progress)

    class Overtaken(prepare.TablePreparation):
        def create(self) -> IcebergTable:
            """See ``Preparation``; somebody else is faster."""
            apply_batch(spark, first)
            return super().create()

    with pytest.raises(PublishRefused, match="made the table"):
        Overtaken(spark, batch, target, begin).run()
    with pytest.raises(TableRefused, match="another slot"):
        apply_batch(spark, plan)
    owner.insert(2)
    apply_batch(spark, source.stage())
    assert lake_rows(owner) == source_rows(owner)
    assert [str(each) for each in spark.table(target.name.sql).columns] == ["a"]


def test_a_table_that_was_rolled_back_is_refused_until_it_is_copied_again(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    first = loaded(spark, table).head
    table.insert(4, "b4", 0)
    apply_batch(spark, source.stage())
    loaded(spark, table).java.manageSnapshots().setCurrentSnapshot(first).commit()
    table.insert(5, "b5", 0)
    pending, staged_to = list(source.pending), source.staged_to
    with pytest.raises(TableRolledBack, match="copy the table again"):
        apply_batch(spark, source.stage())
    assert loaded(spark, table).head == first
    source.pending, source.staged_to = pending, staged_to
    source.copy(table)
    apply_batch(spark, source.stage())
    assert lake_rows(table) == source_rows(table)


def test_a_table_that_was_rolled_back_to_what_is_not_ours_is_refused(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    """Where our own snapshots before it have expired, only the property says what was published since."""
    apply_batch(spark, source.stage())
    spark.sql(f"INSERT INTO {name_of(table).sql} VALUES (99, 'theirs', 0)")
    found = loaded(spark, table)
    theirs = found.head
    for tag in [each for each in found.java.refs() if each != "main"]:
        found.java.manageSnapshots().removeTag(tag).commit()
    found.java.expireSnapshots().expireSnapshotId(found.java.currentSnapshot().parentId()).commit()
    table.insert(4, "b4", 0)
    apply_batch(spark, source.stage())
    assert not loaded(spark, table).applied(source.slot_name).was_rolled_back
    loaded(spark, table).java.manageSnapshots().setCurrentSnapshot(theirs).commit()
    assert loaded(spark, table).applied(source.slot_name).was_rolled_back
    table.insert(5, "b5", 0)
    with pytest.raises(TableRolledBack, match="copy the table again"):
        apply_batch(spark, source.stage())
    assert loaded(spark, table).head == theirs
