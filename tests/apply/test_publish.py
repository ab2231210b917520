"""Publishing moves a table only from where it was prepared, and leaves the batch's marks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.iceberg.session import Sessions
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.publish import publish
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.errors import PublishRefused
from tests.apply.build import Source, opened
from tests.apply.conftest import source_rows
from tests.apply.drivers import loaded, name_of, prepared, race
from tests.apply.fold_cases import a_is

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.apply.build import Relation


def test_main_moved_between_prepare_and_publish(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    table.update(a_is(1), {"c": 1})
    batch, waiting, progress = prepared(spark, source.stage())
    spark.sql(f"CALL lake.system.rewrite_data_files(table => '{name_of(table).target}',"
              " options => map('rewrite-all', 'true'))")  # fmt: skip
    moved_to = loaded(spark, table).head
    publish(Sessions(spark), batch, waiting, progress)
    assert lake_rows(table) == source_rows(table)
    assert loaded(spark, table).head != moved_to


def test_a_second_driver_is_refused_and_changes_nothing(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    table.insert(4, "b4", 0)
    plan = source.stage()
    _, zombie, _ = prepared(spark, plan)
    stale = loaded(spark, table)
    apply_batch(spark, plan)
    head = loaded(spark, table).head
    manifest = opened(spark, plan).manifest
    for seen in (stale, loaded(spark, table)):
        with pytest.raises(PublishRefused):
            seen.publish(zombie.branch, zombie.base, zombie.head, manifest, 7)
    assert loaded(spark, table).head == head
    assert lake_rows(table) == source_rows(table)


def test_a_main_that_keeps_moving_ends_the_apply(
    spark: SparkSession,
    source: Source,
    table: Relation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apply_batch(spark, source.stage())
    table.insert(4, "b4", 0)
    batch, waiting, progress = prepared(spark, source.stage())
    real = IcebergTable.publish

    def after_somebody_else(self: IcebergTable, *arguments: Any) -> int:
        self.java.newFastAppend().commit()
        self.java.refresh()
        return real(self, *arguments)

    monkeypatch.setattr(IcebergTable, "publish", after_somebody_else)
    with pytest.raises(PublishRefused):
        publish(Sessions(spark), batch, waiting, progress)


def test_drivers_that_race_leave_one_result(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    table.update(a_is(1), {"c": 1})
    table.insert(9, "b9", 0)
    race(spark, source.stage())
    assert lake_rows(table) == source_rows(table)


def test_publishing_tags_removes_the_branch_and_records_the_batch(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    plan = source.stage()
    apply_batch(spark, plan)
    manifest = opened(spark, plan).manifest
    found = loaded(spark, table)
    assert set(found.java.refs()) == {"main", f"pgoutput_{manifest.end_lsn.sortable}"}
    marker = found.marker(source.slot_name)
    assert marker is not None
    assert (marker.batch_id, marker.end_lsn) == (manifest.batch_id, manifest.end_lsn)
    progress = checkpoint.read(spark, plan, manifest)
    assert progress.end_lsn == manifest.end_lsn
    assert progress.tables == {name_of(table).target: manifest.end_lsn}


def test_the_marker_survives_expiry_of_its_snapshot(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    plan = source.stage()
    apply_batch(spark, replace(plan, tag_retention_days=0))
    spark.sql(f"INSERT INTO {name_of(table).sql} VALUES (99, 'theirs', 0)")
    found = loaded(spark, table)
    found.java.expireSnapshots().expireSnapshotId(found.java.currentSnapshot().parentId()).commit()
    found.java.refresh()
    marker = found.marker(source.slot_name)
    assert marker is not None
    assert marker.end_lsn == opened(spark, plan).manifest.end_lsn
