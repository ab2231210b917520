"""Maintenance: fewer files and snapshots, the same rows, and a pipeline that goes on."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from airflow_provider_pgoutput.apply.iceberg import IcebergTable
from airflow_provider_pgoutput.apply.maintain import _TableMaintenance, maintain
from airflow_provider_pgoutput.apply.names import TableName
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.batch.maintenance import Maintenance
from airflow_provider_pgoutput.batch.plan import Plan
from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused
from tests.apply.build import Source, column
from tests.apply.conftest import source_rows
from tests.apply.fold_cases import a_is

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_DAY_S = 24 * 60 * 60


def loaded(spark: SparkSession, name: TableName) -> IcebergTable:
    found = IcebergTable.load(spark, name)
    assert found is not None
    return found


def count(spark: SparkSession, name: TableName, metadata: str) -> int:
    return spark.table(f"{name.sql}.{metadata}").count()


def plan_of(plan: Plan, **options: Any) -> Plan:
    """Maintenance of the pipeline of a plan: everything goes that may."""
    steps = {"snapshot_retention_s": 0, "compact_options": {"min-input-files": "2"}, **options}
    slot_name = plan.namespace
    return replace(plan, manifest_uri="", maintenance=Maintenance(slot_name=slot_name, **steps))


@pytest.mark.parametrize("format_version", [2, 3])
def test_files_and_snapshots_go_and_the_pipeline_goes_on(
    spark: SparkSession, source: Source, lake_rows: Any, format_version: int
) -> None:
    options = {"tag_retention_days": 0, "format_version": format_version}
    table = source.table('o`d.d "t"', (column("a"), column("b", "string")), key=("a",))
    with source.transaction():
        for a in range(1, 6):
            table.insert(a, f"b{a}")
    plan = replace(source.stage(), **options)
    apply_batch(spark, plan)
    for a in range(1, 4):
        table.update(a_is(a), {"b": "x"})
        plan = replace(source.stage(), **options)
        apply_batch(spark, plan)
    name = TableName("lake", source.slot_name, table.name)
    stray, fresh = strays(loaded(spark, name))

    result = maintain(spark, plan_of(plan, orphan_retention_s=_DAY_S))

    assert result.busy == ()
    assert set(result.tables) == {name.target, f"{source.slot_name}.pgoutput_checkpoint"}
    counts = result.tables[name.target]
    assert counts["files_replaced"] >= 4
    assert counts["orphans_deleted"] == 1
    assert (stray.exists(), fresh.exists()) == (False, True)
    files = [count(spark, name, each) for each in ("data_files", "delete_files", "snapshots")]
    assert files == [1, 0, 1]
    assert lake_rows(table) == source_rows(table)
    assert spark.table(TableName("lake", source.slot_name, "pgoutput_checkpoint").sql).count() == 8
    # No snapshot says any more what was applied.
    assert apply_batch(spark, plan).already_applied
    table.update(a_is(4), {"b": "y"})
    apply_batch(spark, replace(source.stage(), **options))
    assert lake_rows(table) == source_rows(table)


def strays(table: IcebergTable) -> tuple[Path, Path]:
    """A file that a writer left two days ago, and one of a writer that is at work."""
    folder = Path(urlsplit(str(table.java.location())).path) / "data"
    made = folder / "stray.parquet", folder / "fresh.parquet"
    for each in made:
        each.write_bytes(b"")
    old = time.time() - 2 * _DAY_S
    os.utime(made[0], (old, old))
    return made


def test_what_is_kept_and_what_is_refused(spark: SparkSession, source: Source) -> None:
    one, two = (source.table(name, (column("a"),), key=("a",)) for name in ("one", "two"))
    for number in range(2):
        one.insert(number)
        two.insert(number)
        plan = replace(source.stage(), format_version=2)
        apply_batch(spark, plan)
    names = {each: TableName("lake", source.slot_name, each) for each in ("one", "two")}
    spark.sql(f"CREATE TABLE lake.{source.slot_name}.theirs (x int) USING iceberg")

    # A tag keeps its snapshot, as a replay in place may want to go back to it.
    only_one = plan_of(plan, source_tables=("public.one",), compact=False, orphan_retention_s=None)
    assert set(maintain(spark, only_one).tables) == {names["one"].target}
    assert count(spark, names["one"], "snapshots") == 2
    assert count(spark, names["one"], "data_files") == 2

    everything = maintain(spark, plan_of(plan, snapshot_retention_s=None, orphan_retention_s=None))
    assert f"{source.slot_name}.theirs" not in everything.tables
    assert count(spark, names["two"], "data_files") == 1
    assert count(spark, names["two"], "snapshots") > 2

    with pytest.raises(TableRefused, match="no target") as refused:
        maintain(spark, plan_of(plan, source_tables=("public.one", "public.none")))
    assert refused.value.table == "public.none"
    spark.sql(f"ALTER TABLE {names['one'].sql} SET TBLPROPERTIES ('gc.enabled' = 'false')")
    with pytest.raises(TableRefused, match=r"gc\.enabled"):
        maintain(spark, plan_of(plan, source_tables=("public.one",), compact=False))


def test_a_step_that_meets_another_commit_is_left(spark: SparkSession, source: Source) -> None:
    table = source.table("t", (column("a"),), key=("a",))
    table.insert(1)
    plan = source.stage()
    apply_batch(spark, plan)
    found = loaded(spark, TableName("lake", source.slot_name, table.name))
    job = _TableMaintenance(spark, "lake", found, Maintenance(slot_name=source.slot_name))
    # Iceberg's own ValidationException, as for files that are not there any more.
    assert job._call("rollback_to_snapshot", "snapshot_id => 1") is None
    assert job.was_busy


@pytest.mark.parametrize(
    "wrong",
    [{"snapshot_retention_s": -1}, {"keep_snapshots": 0}, {"orphan_retention_s": _DAY_S - 1}],
)
def test_what_would_destroy_is_refused(wrong: dict[str, Any]) -> None:
    plan = Plan("", "file:///staging", "lake", "shop")
    with pytest.raises(ConfigurationError):
        plan_of(plan, **wrong).check()
    good = plan_of(plan, source_tables=("public.one",))
    assert Plan.from_json(good.to_json()) == good
