"""Maintenance: fewer files and snapshots, the same rows, and a pipeline that goes on."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import Sql, TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.maintain import (
    _CONFLICTS,
    TableMaintenance,
    maintain,
)
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.batch.checkpoint import BRANCH_PREFIX
from airflow_provider_pgoutput.batch.jobs import Job, MaintenanceJob, TableOptions, job_from_json
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeUnavailable,
    TableRefused,
    TableRolledBack,
)
from tests.apply.build import Source, column
from tests.apply.conftest import source_rows
from tests.apply.fold_cases import a_is

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DAY_S = 24 * 60 * 60


def loaded(spark: SparkSession, name: TableName) -> IcebergTable:
    found = IcebergTable.load(spark, name)
    assert found is not None
    return found


def count(spark: SparkSession, name: TableName, metadata: str) -> int:
    spark.catalog.refreshTable(name.sql)
    return spark.table(f"{name.sql}.{metadata}").count()


def plan_of(job: Job, **options: Any) -> MaintenanceJob:
    """Maintenance of the pipeline of a job: everything goes that may."""
    steps = {
        "snapshot_retention_seconds": 0,
        "compact_options": {"min-input-files": "2"},
        **options,
    }
    shared = {each.name: getattr(job, each.name) for each in fields(Job)}
    return MaintenanceJob(**{**shared, "slot_name": job.namespace, **steps})


def test_old_metadata_files_go_with_the_commits(spark: SparkSession, source: Source) -> None:
    """Nobody else removes them: a pipeline that runs every minute would leave thousands a day."""
    table = source.table("t", (column("a"),), key=("a",))
    few = TableOptions(properties={"write.metadata.previous-versions-max": "3"})
    for a in range(4):
        table.insert(a)
        apply_batch(spark, replace(source.stage(), table_options={"public.t": few}))
    location = loaded(spark, TableName("lake", source.slot_name, "t")).java.location()
    folder = Path(urlsplit(str(location)).path) / "metadata"
    assert len(list(folder.glob("*.metadata.json"))) == 4
    checkpoint = loaded(spark, TableName("lake", source.slot_name, "pgoutput_checkpoint"))
    assert checkpoint.properties["write.metadata.delete-after-commit.enabled"] == "true"


@pytest.mark.parametrize("format_version", [2, 3])
def test_files_and_snapshots_go_and_the_pipeline_goes_on(
    spark: SparkSession, source: Source, lake_rows: Any, format_version: int
) -> None:
    options: dict[str, Any] = {"tag_retention_days": 0, "format_version": format_version}
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

    result = maintain(spark, plan_of(plan, orphan_retention_seconds=_DAY_S))

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


def test_what_a_batch_left_stays_as_long_as_its_rows_are_needed(
    spark: SparkSession, source: Source
) -> None:
    """The checkpoint names it, and not the compaction that has the same rows: a replay begins there."""
    table = source.table("t", (column("a"),), key=("a",))
    name = TableName("lake", source.slot_name, "t")
    for a in range(2):
        table.insert(a)
        plan = replace(source.stage(), tag_retention_days=0)
        apply_batch(spark, plan)
    left = loaded(spark, name).head
    compacted = maintain(spark, plan_of(plan, snapshot_retention_seconds=None))
    assert compacted.tables[name.target]["files_replaced"] == 2
    assert loaded(spark, name).head != left
    expire = plan_of(plan, compact=False, snapshot_retention_seconds=1)
    for _ in range(2):
        time.sleep(1.1)
        maintain(spark, expire)
        assert left in snapshots(spark, name)
    # Nobody needs it when another batch has followed, and the retention is over.
    table.insert(2)
    apply_batch(spark, replace(source.stage(), tag_retention_days=0))
    time.sleep(1.1)
    maintain(spark, expire)
    assert left not in snapshots(spark, name)


def snapshots(spark: SparkSession, name: TableName) -> set[int]:
    spark.catalog.refreshTable(name.sql)
    return {row["snapshot_id"] for row in spark.table(f"{name.sql}.snapshots").collect()}


def test_a_table_without_files_and_one_that_is_written_have_no_orphans(
    spark: SparkSession, source: Source
) -> None:
    """A table of which an empty copy came has no folder of rows; a branch is of an apply at work."""
    empty, busy = (source.table(each, (column("a"),), key=("a",)) for each in ("empty", "busy"))
    source.copy(empty)
    busy.insert(1)
    plan = source.stage()
    apply_batch(spark, plan)
    names = {each: TableName("lake", source.slot_name, each) for each in ("empty", "busy")}
    table = loaded(spark, names["busy"])
    stray, _ = strays(table)
    branch = f"{BRANCH_PREFIX}of_an_apply"
    table.create_branch(branch, table.head)
    wanted = plan_of(plan, orphan_retention_seconds=_DAY_S)

    result = maintain(spark, wanted)
    assert result.busy == (names["busy"].target,)
    assert result.tables[names["empty"].target]["orphans_deleted"] == 0
    assert stray.exists()

    table.java.refresh()
    table.remove_branches([branch])
    assert maintain(spark, wanted).busy == ()
    assert not stray.exists()


def test_a_table_is_not_empty_because_a_summary_counts_none(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """A commit to a branch that is gone makes it again, and counts from zero."""
    table = source.table("t", (column("a"), column("b", "string")), key=("a",))
    for a in range(3):
        table.insert(a, "before")
    apply_batch(spark, source.stage())
    name = TableName("lake", source.slot_name, "t")
    held = loaded(spark, name)
    held.create_branch("gone", held.head)
    held.java.refresh()
    held.remove_branches(["gone"])
    held.mark("gone", {})
    head = loaded(spark, name).branch_head("gone")
    spark.sql(f"CALL lake.system.fast_forward('{name.target}', 'main', 'gone')")
    found = loaded(spark, name)
    assert found.head == head
    assert found.java.currentSnapshot().summary().get("total-records") == "0"
    assert not found.is_empty
    table.update(a_is(1), {"b": "after"})
    apply_batch(spark, source.stage())
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
        plan = source.stage()
        apply_batch(spark, plan)
    names = {each: TableName("lake", source.slot_name, each) for each in ("one", "two")}
    spark.sql(f"CREATE TABLE lake.{source.slot_name}.theirs (x int) USING iceberg")

    # A tag keeps its snapshot, as a replay in place may want to go back to it.
    only_one = plan_of(plan, tables=("public.one",), compact=False, orphan_retention_seconds=None)
    assert set(maintain(spark, only_one).tables) == {names["one"].target}
    assert count(spark, names["one"], "snapshots") == 2
    assert count(spark, names["one"], "data_files") == 2

    everything = maintain(
        spark, plan_of(plan, snapshot_retention_seconds=None, orphan_retention_seconds=None)
    )
    assert f"{source.slot_name}.theirs" not in everything.tables
    assert count(spark, names["two"], "data_files") == 1
    assert count(spark, names["two"], "snapshots") > 2

    with pytest.raises(TableRefused, match="no target") as refused:
        maintain(spark, plan_of(plan, tables=("public.one", "public.none")))
    assert refused.value.table == "public.none"
    with pytest.raises(ConfigurationError, match="no-such-option") as refused_option:
        maintain(spark, plan_of(plan, compact_options={"no-such-option": "1"}))
    assert "compact_options" in str(refused_option.value)
    spark.sql(f"ALTER TABLE {names['one'].sql} SET TBLPROPERTIES ('gc.enabled' = 'false')")
    with pytest.raises(TableRefused, match=r"gc\.enabled"):
        maintain(spark, plan_of(plan, tables=("public.one",), compact=False))


def test_what_was_seen_in_the_retention_can_be_read(spark: SparkSession, source: Source) -> None:
    """However long ago it was made: a compaction replaces what was made a month ago a moment ago."""
    table = source.table("t", (column("a"),), key=("a",))
    table.insert(1)
    plan = replace(source.stage(), tag_retention_days=0)
    apply_batch(spark, plan)
    name = TableName("lake", source.slot_name, table.name)

    head = loaded(spark, name).head
    made = time.time()
    time.sleep(6)
    compact = {"snapshot_retention_seconds": None, "compact_options": {"rewrite-all": "true"}}
    maintain(spark, plan_of(plan, **compact))
    assert head != loaded(spark, name).head
    # Back to when the first snapshot was there and the compaction was not.
    maintain(
        spark, plan_of(plan, compact=False, snapshot_retention_seconds=int(time.time() - made) - 2)
    )
    assert head in snapshots(spark, name)
    maintain(spark, plan_of(plan, compact=False))
    assert head not in snapshots(spark, name)


def test_only_a_rewrite_that_meets_another_commit_is_left_for_the_next_time(
    spark: SparkSession, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = source.table("t", (column("a"),), key=("a",))
    table.insert(1)
    plan = source.stage()
    apply_batch(spark, plan)
    found = loaded(spark, TableName("lake", source.slot_name, table.name))
    job = TableMaintenance(spark, found, plan_of(plan), False)
    # Iceberg's own ValidationException, which a rewrite meets when its files are not there any more.
    procedure, argument = "rollback_to_snapshot", Sql("snapshot_id => 1")
    with pytest.raises(LakeUnavailable, match="ValidationException"):
        job._call(procedure, argument)
    monkeypatch.setitem(_CONFLICTS, procedure, _CONFLICTS["rewrite_data_files"])
    assert job._call(procedure, argument) is None
    assert job.was_busy


def test_what_went_wrong_with_a_table_is_said_and_the_others_are_maintained(
    spark: SparkSession, source: Source
) -> None:
    """One was rolled back, one lies in a folder with another; the third is as it should be."""
    back, fine, shared = (
        source.table(name, (column("a"),), key=("a",)) for name in ("back", "fine", "shared")
    )
    for number in range(2):
        for each in (back, fine, shared):
            each.insert(number)
        plan = source.stage()
        apply_batch(spark, plan)
    names = {each: TableName("lake", source.slot_name, each) for each in ("back", "fine", "shared")}
    spark.sql(f"ALTER TABLE {names['shared'].sql} RENAME TO {source.slot_name}.was_shared")
    location = loaded(spark, TableName("lake", source.slot_name, "was_shared")).java.location()
    spark.sql(f"CREATE TABLE {names['shared'].sql} (a int) USING iceberg LOCATION '{location}'")
    snapshots = spark.table(f"{names['back'].sql}.snapshots")
    first = snapshots.where("summary['total-records'] = '1'").first()
    assert first is not None
    spark.sql(
        f"CALL lake.system.set_current_snapshot('{names['back'].target}', {first['snapshot_id']})"
    )
    stray, _ = strays(loaded(spark, TableName("lake", source.slot_name, "was_shared")))

    with pytest.raises(TableRolledBack) as refused:
        maintain(spark, plan_of(plan, orphan_retention_seconds=_DAY_S))

    assert refused.value.table == names["back"].target
    assert count(spark, names["back"], "data_files") == 1
    assert count(spark, names["fine"], "data_files") == 1
    assert stray.exists()


def test_a_table_that_is_dropped_meanwhile_keeps_no_other_from_its_maintenance(
    spark: SparkSession, source: Source
) -> None:
    one, two, three = (source.table(f"t{i}", (column("a"),), key=("a",)) for i in (1, 2, 3))
    for number in range(2):
        for each in (one, two, three):
            each.insert(number)
        plan = replace(source.stage(), tag_retention_days=0)
        apply_batch(spark, plan)
    names = [TableName("lake", source.slot_name, each.name) for each in (one, two, three)]

    class Dropper(logging.Handler):
        """Drops the second table when the first is done."""

        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith(f"{names[0].target}: "):
                spark.sql(f"DROP TABLE {names[1].sql}")

    dropper = Dropper(logging.INFO)
    maintain_logger = logging.getLogger(maintain.__module__)
    maintain_logger.setLevel(logging.INFO)
    maintain_logger.addHandler(dropper)
    try:
        with pytest.raises(LakeUnavailable) as refused:
            maintain(spark, plan_of(plan, compact=False))
    finally:
        maintain_logger.removeHandler(dropper)
        maintain_logger.setLevel(logging.NOTSET)
    assert refused.value.table == names[1].target
    assert [count(spark, each, "snapshots") for each in (names[0], names[2])] == [1, 1]


def test_before_the_first_apply_there_is_nothing_to_do(spark: SparkSession) -> None:
    plan = plan_of(
        Job(staging_uri="file:///staging", catalog_name="lake", namespace="not_there_yet")
    )
    assert not maintain(spark, plan).tables
    with pytest.raises(TableRefused, match="no target"):
        maintain(spark, plan_of(plan, tables=("public.t",)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"snapshot_retention_seconds": -1},
        {"keep_snapshots": 0},
        {"orphan_retention_seconds": _DAY_S - 1},
    ],
)
def test_what_would_destroy_is_refused(wrong: dict[str, Any]) -> None:
    plan = Job(staging_uri="file:///staging", catalog_name="lake", namespace="shop")
    with pytest.raises(ConfigurationError):
        plan_of(plan, **wrong).check()
    good = plan_of(plan, tables=("public.one",))
    assert job_from_json(good.to_json()) == good
