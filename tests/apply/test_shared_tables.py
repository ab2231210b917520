"""Several tables of one source, or of several, are written to one table of the lake.

What is not here: their columns, and options that do not go together (``test_shared_columns.py``).
"""

from __future__ import annotations

import contextlib
import random
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.apply.table.start import refuse_other_sharing
from airflow_provider_pgoutput.apply.table.target import targets
from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.batch.checkpoint import QUARANTINE_TABLE
from airflow_provider_pgoutput.batch.jobs import ReplayJob
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.errors import (
    PublishRefused,
    TableRefused,
)
from airflow_provider_pgoutput.slices import Slice
from airflow_provider_pgoutput.tasks.plan_options import table_options
from tests.apply.build import Source, opened, replay_of
from tests.apply.conftest import sort
from tests.apply.shared import (
    COLUMNS,
    change,
    check,
    drive_at_once,
    region_of,
    run,
    stage,
    tables,
)
from tests.apply.test_crashes import Killed
from tests.docs.blocks import blocks_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob

MODES: dict[str, dict[str, Any]] = {
    "upsert": {},
    "partitioned": {"partitioned_by": ("region",)},
    "soft": {"soft_delete": True},
    "copy-on-write": {"write_mode": "copy-on-write"},
    "format 3": {"format_version": 3},
    "history": {"mode": "history"},
    "change_log": {"mode": "change_log"},
    "full": {},
}


@pytest.mark.spark
@pytest.mark.parametrize("mode", [each for each in MODES if each != "change_log"])
def test_each_table_has_its_own_rows(
    spark: SparkSession, source: Source, second: Source, mode: str
) -> None:
    how, number = MODES[mode], random.Random(mode)  # noqa: S311 - a test
    identity = "f" if mode == "full" else "d"
    relations = tables(source, "eu", "us", identity=identity)
    relations += tables(second, "eu", identity=identity)
    for relation in relations:
        for _ in range(6):
            relation.insert(len(relation.rows), "first", f"note {relation.full_name}")
    # Few changes are applied without a Spark job, many with one.
    for turn, changes in enumerate((2, 30, 2, 250, 20)):
        run(spark, (source, second), how)
        check(spark, relations, how)
        for _ in range(changes):
            change(number.choice(relations), number)
        if turn == 2:
            copied = number.choice(relations)
            copied.source.copy(copied)
            copied.insert(99, "after the copy", None)
    name = TableName("lake", source.slot_name, "people")
    table = IcebergTable.load(spark, name)
    assert table is not None
    assert set(table.branch_ages_ms()) == set()


@pytest.mark.spark
def test_a_log_has_the_entries_of_each_table(spark: SparkSession, source: Source) -> None:
    eu, us = tables(source, "eu", "us")
    for relation in (eu, us):
        relation.insert(1, "a", None)
    us.truncate()
    run(spark, (source,), MODES["change_log"])
    source.copy(us)
    eu.delete(lambda row: row["id"] == 1)
    run(spark, (source,), MODES["change_log"])
    frame = spark.table(TableName("lake", source.slot_name, "people").sql)
    found = frame.select("_pgoutput_op", "id", "region").collect()
    ours = region_of(eu), region_of(us)
    wanted = [("I", 1, ours[0]), ("I", 1, ours[1]), ("T", None, ours[1]), ("D", 1, ours[0])]
    assert sort(tuple(row) for row in found if row["_pgoutput_op"] != "T" or row["region"]) == sort(
        [*wanted, *([("T", None, ours[1])] if len(found) > len(wanted) else [])]
    )


@pytest.mark.spark
@pytest.mark.parametrize(
    "point",
    [
        "apply.after_columns",
        "apply.after_branch",
        "apply.before_publish",
        "apply.after_prepare",
        "apply.after_publish",
        "apply.between_publishes",
        "apply.before_checkpoint",
        "apply.after_checkpoint",
    ],
)
def test_a_kill_between_two_tables_doubles_nothing(
    spark: SparkSession, source: Source, second: Source, point: str
) -> None:
    number = random.Random(point)  # noqa: S311 - a test
    relations = tables(source, "eu", "us") + tables(second, "eu")
    for relation in relations:
        for i in range(5):
            relation.insert(i, "first", f"note {i}")
    for _ in range(2):
        mine, theirs = stage((source, second), {})
        for reached in (1, 2, 3):
            _killed(spark, mine, point, reached)
        apply_batch(spark, theirs)
        apply_batch(spark, mine)
        check(spark, relations, {})
        for _ in range(40):
            change(number.choice(relations), number)


def _killed(spark: SparkSession, job: ApplyJob | ReplayJob, point: str, reached: int) -> None:
    seen = 0

    def reach(name: str) -> None:
        nonlocal seen
        seen += name == point
        if name == point and seen == reached:
            raise Killed

    with crash_points.watched(reach):
        try:
            replay(spark, job) if isinstance(job, ReplayJob) else apply_batch(spark, job)
        except Killed:
            return


@pytest.mark.spark
def test_another_driver_between_prepare_and_publish_makes_them_take_turns(
    spark: SparkSession, source: Source, second: Source
) -> None:
    relations = tables(source, "eu") + tables(second, "eu")
    for relation in relations:
        relation.insert(1, "first", "note")
    run(spark, (source, second), {})
    for relation in relations:
        relation.update(lambda row: row["id"] == 1, {"name": "new"})
    mine, theirs = stage((source, second), {})
    done = False

    def reach(name: str) -> None:
        nonlocal done
        if name == "apply.after_prepare" and not done:
            done = True
            apply_batch(spark, theirs)

    with crash_points.watched(reach):
        apply_batch(spark, mine)
    check(spark, relations, {})


@pytest.mark.spark
@pytest.mark.parametrize("mode", ["upsert", "partitioned", "soft", "history", "full"])
def test_a_replay_in_place_takes_back_the_slices_of_its_own_source(
    spark: SparkSession, source: Source, second: Source, mode: str
) -> None:
    how, number = MODES[mode], random.Random(mode)  # noqa: S311 - a test
    identity = "f" if mode == "full" else "d"
    relations = tables(source, "eu", "us", identity=identity)
    relations += tables(second, "eu", identity=identity)
    for relation in relations:
        relation.insert(1, "first", "note")
    mine: list[ApplyJob] = []
    for _ in range(4):
        mine.append(run(spark, (source, second), how)[0])
        for _ in range(20):
            change(number.choice(relations), number)
    mine.append(run(spark, (source, second), how)[0])
    name = TableName("lake", source.slot_name, "people")
    damage = "name = 'damaged'" if how.get("mode") != "history" else "id = id + 1000"
    mine_only = f"region LIKE '{source.slot_name} %' OR region = '{region_of(relations[0])}'"
    spark.sql(f"UPDATE {name.sql} SET {damage} WHERE {mine_only}")
    again = replay_of(mine[-1], [each.manifest_uri for each in mine[2:]], in_place=True)
    for point in ("replay.slice_is_empty", "replay.after_rollback", "replay.after_batch"):
        _killed(spark, again, point, 1)
    replay(spark, again)
    check(spark, relations, how)
    for _ in range(10):
        change(number.choice(relations), number)
    run(spark, (source, second), how)
    check(spark, relations, how)


@pytest.mark.spark
@pytest.mark.further
@pytest.mark.parametrize("seed", range(3))
def test_two_sources_at_once_under_kills(
    spark: SparkSession, source: Source, second: Source, seed: int
) -> None:
    number = random.Random(seed)  # noqa: S311 - a test
    relations = tables(source, "eu", "us") + tables(second, "eu")
    for relation in relations:
        relation.insert(1, "first", "note")
    how = {"history": {"mode": "history"}, "upsert": {}}[number.choice(["history", "upsert"])]
    batches: dict[str, list[ApplyJob]] = {source.slot_name: [], second.slot_name: []}
    for _ in range(4):
        for each, job in zip((source, second), stage((source, second), how), strict=True):
            batches[each.slot_name].append(job)
        for _ in range(30):
            change(number.choice(relations), number)
    for each, job in zip((source, second), stage((source, second), how), strict=True):
        batches[each.slot_name].append(job)
    # The first batch makes the table, for both.
    lock, kills = threading.Lock(), [0]

    def reach(_: str) -> None:
        with lock:
            dies = number.random() < 0.04
            kills[0] += dies
        if dies:
            raise Killed

    drive_at_once(spark, batches.values(), reach)
    assert kills[0] > 0
    check(spark, relations, how)


@pytest.mark.spark
@pytest.mark.parametrize("copies", [True, False])
def test_a_driver_that_comes_back_between_two_slices_changes_nothing(
    spark: SparkSession, source: Source, copies: bool
) -> None:
    eu, us = tables(source, "eu", "us")
    jobs = []
    for number in range(3):
        for relation in (eu, us):
            relation.insert(number, f"n{number}", "note")
            if number == 1 and copies:
                source.copy(relation)
            elif number == 1:
                # It leaves the note out, so the slices are not written together.
                relation.update(lambda row: row["id"] == 0, {"name": "changed"})
        jobs += stage((source,), {})
    apply_batch(spark, jobs[0])
    done = False

    def reach(name: str) -> None:
        nonlocal done
        if name == "apply.between_publishes" and not done:
            done = True
            # Another driver took over, and is further by now.
            apply_batch(spark, jobs[1])
            apply_batch(spark, jobs[2])

    with crash_points.watched(reach), pytest.raises(PublishRefused):
        apply_batch(spark, jobs[1])
    check(spark, (eu, us), {})
    apply_batch(spark, jobs[1])
    check(spark, (eu, us), {})


@pytest.mark.spark
def test_the_tag_of_a_batch_shows_all_slices_as_of_its_end(
    spark: SparkSession, source: Source, second: Source
) -> None:
    eu, us = tables(source, "eu", "us")
    (other,) = tables(second, "eu")
    mine = []
    for number in range(3):
        for relation in (eu, us, other):
            relation.insert(number, f"n{number}", "note")
        job, theirs = stage((source, second), {})
        mine.append(job)
        # The other slot publishes between the two slices of this one.
        with crash_points.watched(_once("apply.between_publishes", spark, theirs)):
            apply_batch(spark, job)
    # One slice alone gets the last two batches again.
    uris = [each.manifest_uri for each in mine[1:]]
    replay(spark, replay_of(mine[0], uris, in_place=True, tables=("eu.people",)))
    check(spark, (eu, us, other), {})
    name = TableName("lake", source.slot_name, "people")
    for number, job in enumerate(mine):
        tag = f"pgoutput_{source.slot_name}_{opened(spark, job).manifest.end_lsn.sortable}"
        rows = spark.sql(f"SELECT region, id FROM {name.sql} VERSION AS OF '{tag}'").collect()
        for relation in (eu, us):
            found = sorted(row["id"] for row in rows if row["region"] == region_of(relation))
            assert found == list(range(number + 1))


def _once(point: str, spark: SparkSession, job: ApplyJob) -> Callable[[str], None]:
    waiting = [job]

    def reach(name: str) -> None:
        if name == point and waiting:
            apply_batch(spark, waiting.pop())

    return reach


@pytest.mark.spark
def test_the_shards_of_the_page(spark: SparkSession, source: Source, second: Source) -> None:
    block = blocks_of("how-to/shared_tables.md")[1].text
    shards = ("eu-1", "eu-2")
    for each, shard in zip((source, second), shards, strict=True):
        names: dict[str, Any] = {}
        exec(block.replace("eu-1", shard), names)  # noqa: S102 - it is the page's own
        orders = each.table("orders", COLUMNS, ("id",))
        orders.insert(1, shard, None)
        options = table_options(names["table_options"])
        job = replace(each.stage(), namespace=source.slot_name, table_options=options)
        apply_batch(spark, job)
    frame = spark.table(TableName("lake", source.slot_name, "orders").sql)
    found = sort(tuple(row) for row in frame.select("id", "name", "shard").collect())
    assert found == [(1, shard, shard) for shard in shards]


@pytest.mark.spark
def test_a_slice_that_is_set_aside_waits_until_it_comes_back(
    spark: SparkSession, source: Source
) -> None:
    eu, us = tables(source, "eu", "us")
    jobs = []

    def run(**more: Any) -> ApplyJob:
        (job,) = stage((source,), {"on_table_refused": "set_aside", **more})
        apply_batch(spark, job)
        jobs.append(job)
        return job

    for relation in (eu, us):
        relation.insert(1, "a", "note")
        relation.insert(2, "b", "note")
    run()
    name = TableName("lake", source.slot_name, "people")
    spark.sql(f"DELETE FROM {name.sql} WHERE id = 2 AND region = '{region_of(us)}'")
    us.update(lambda row: row["id"] == 2, {"name": "changed"})  # leaves the note out
    eu.update(lambda row: row["id"] == 1, {"name": "changed"})
    run()
    us.insert(3, "c", None)
    eu.insert(3, "c", None)
    job = run()
    progress = checkpoint.read(spark, job, opened(spark, job).manifest)
    assert [each.table_name for each in progress.set_aside.values()] == ["us.people"]
    source.copy(us)
    us.insert(4, "d", None)
    run()
    check(spark, (eu, us), {})


@pytest.mark.spark
def test_the_first_slice_of_a_new_table_may_make_nothing_of_it(
    spark: SparkSession, source: Source
) -> None:
    eu, us, asia = tables(source, "eu", "us", "asia")
    eu.truncate()
    us.truncate()
    asia.insert(1, "a", "note")
    run(spark, (source,), {})
    check(spark, (asia,), {})
    eu.insert(1, "later", None)
    run(spark, (source,), {})
    check(spark, (eu, us, asia), {})


def test_a_name_that_another_table_had_before_is_no_sign_of_a_rollback(source: Source) -> None:
    """A table is known by its OID. Only one that was made again is known by its name."""
    (eu,) = tables(source, "eu")
    eu.insert(1, "a", None)
    (job,) = stage((source,), {})
    path = source.staging / job.manifest_uri.split("/staging/")[1]
    (target,) = targets(job, Manifest.from_json(path.read_bytes()))
    progress = checkpoint.Progress(of_sources={(target.name.target, "eu.people"): Lsn(9)})
    assert progress.end_of(target.name, target.source) == Lsn(9)
    progress.of_sources[eu.oid] = Lsn(8)
    assert progress.end_of(target.name, target.source) == Lsn(8)


@pytest.mark.parametrize(
    ("system", "oid", "name", "is_refused"),
    [
        ("7301", "same", "eu.before", True),
        ("7301", "other", "eu.people", False),
        ("7300", "other", "eu.people", True),
        ("7300", "same", "us.people", False),
    ],
)
def test_rows_of_this_source_with_other_constants_are_found_on_earlier_systems_by_name(
    source: Source, system: str, oid: str, name: str, is_refused: bool
) -> None:
    (eu,) = tables(source, "eu")
    eu.insert(1, "a", None)
    (job,) = stage((source,), {})
    path = source.staging / job.manifest_uri.split("/staging/")[1]
    manifest = Manifest.from_json(path.read_bytes())
    (target,) = targets(job, manifest)
    other = Slice.of({"region": "other"})
    whole = other.stored(
        {
            **other.of_table,
            lake_names.PROPERTY_SLOT: source.slot_name,
            lake_names.PROPERTY_SYSTEM_IDENTIFIER: system,
            lake_names.PROPERTY_RELATION_OID: str(eu.oid + (oid == "other")),
            lake_names.PROPERTY_SOURCE_TABLE: name,
        }
    )
    refused = pytest.raises(TableRefused, match="with other constants")
    with refused if is_refused else contextlib.nullcontext():
        refuse_other_sharing(target, whole, manifest)


@pytest.mark.spark
def test_a_copy_of_one_slice_ends_no_entry_of_another(spark: SparkSession, source: Source) -> None:
    eu, us = tables(source, "eu", "us")
    how = {"on_row_refused": "quarantine"}
    for relation in (eu, us):
        relation.insert(1, "a", "note")
        relation.insert(2, "b", "note")
    run(spark, (source,), how)
    name = TableName("lake", source.slot_name, "people")
    spark.sql(f"DELETE FROM {name.sql} WHERE id = 2 AND region = '{region_of(us)}'")
    us.update(lambda row: row["id"] == 2, {"name": "changed"})  # leaves the note out
    run(spark, (source,), how)
    entries = TableName("lake", source.slot_name, QUARANTINE_TABLE)
    for _ in range(2):
        spark.catalog.refreshTable(entries.sql)
        assert [row["table_name"] for row in spark.table(entries.sql).collect()] == ["us.people"]
        source.copy(eu)
        eu.insert(len(eu.rows) + 1, "c", None)
        run(spark, (source,), how)


@pytest.mark.spark
def test_a_table_that_is_gone_leaves_rows_that_anybody_may_delete(
    spark: SparkSession, source: Source
) -> None:
    """Then the others go on. A new table with the same constants begins with its copy."""
    eu, us = tables(source, "eu", "us")
    for relation in (eu, us):
        relation.insert(1, "a", "note")
    run(spark, (source,), {})
    del source.relations[us.full_name]
    eu.update(lambda row: row["id"] == 1, {"name": "alone"})
    run(spark, (source,), {})
    check(spark, (eu, us), {})
    name = TableName("lake", source.slot_name, "people")
    spark.sql(f"DELETE FROM {name.sql} WHERE region = '{region_of(us)}'")
    eu.insert(2, "b", None)
    run(spark, (source,), {})
    check(spark, (eu,), {})
    again = source.table("people", COLUMNS, ("id",), toast=("note",), oid=17000, schema_name="us")
    again.insert(7, "anew", None)
    source.copy(again)
    run(spark, (source,), {})
    again.insert(8, "after the copy", None)
    run(spark, (source,), {})
    check(spark, (eu, again), {})
