"""Few changes of several slices of one table are one commit, and each slice is as exact as by itself.

What is not here: slices in general (``test_shared_tables.py``), and many changes.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.apply.rows import apply_few
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.batch.checkpoint import SUMMARY_BATCH_ID
from airflow_provider_pgoutput.errors import CommitStateUnknown, PublishRefused
from airflow_provider_pgoutput.slices import SUMMARY_SLICE, SharedProperties, Slice, slices_of
from tests.apply.build import Relation, Source, column, numbered, opened, replay_of
from tests.apply.shared import check, drive_at_once, region_of, run, stage, tables
from tests.apply.test_crashes import Killed
from tests.faults.rest_catalog import Fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob
    from tests.faults.rest_catalog import Commit, RestCatalog

SCHEMAS = ("asia", "eu", "us", "west")
POINTS = (
    "apply.after_columns",
    "apply.after_branch",
    "apply.before_row_delta",
    "apply.after_row_delta",
    "apply.before_publish",
    "apply.after_prepare",
    "apply.after_publish",
    "apply.between_publishes",
    "apply.before_checkpoint",
    "apply.after_checkpoint",
)


def change(relation: Relation, number: random.Random) -> None:
    """One change that says all values of its row. The keys of all slices are the same few numbers."""
    ids = [row["id"] for row in relation.rows]
    free = [i for i in range(9) if i not in ids]
    what = number.choice(["insert", "insert", "update", "move", "delete"])
    values = {"name": f"n{number.random()}", "note": f"note {number.random()}"}
    if what == "insert" and free:
        relation.insert(number.choice(free), *values.values())
    elif ids and what != "insert":
        chosen = number.choice(ids)
        if what == "delete":
            relation.delete(lambda row: row["id"] == chosen)
        elif what == "move" and free:
            relation.update(lambda row: row["id"] == chosen, {"id": number.choice(free), **values})
        else:
            relation.update(lambda row: row["id"] == chosen, values)


def started(spark: SparkSession, source: Source, how: dict[str, Any]) -> list[Relation]:
    """Tables that have been copied to the lake, each with three rows."""
    relations = tables(source, *SCHEMAS)
    for relation in relations:
        for i in range(3):
            relation.insert(i, "first", f"note {relation.full_name}")
    run(spark, (source,), how)
    return relations


def seen_by(spark: SparkSession, relation: Relation) -> IcebergTable:
    slice_ = Slice.of({"region": region_of(relation)})
    found = IcebergTable.load(spark, TableName("lake", relation.source.slot_name, "people", slice_))
    assert found is not None
    return found


def commits(spark: SparkSession, relation: Relation, job: ApplyJob) -> list[list[str]]:
    """The slices that each commit of a batch in main's history names, oldest first."""
    batch_id = opened(spark, job).manifest.batch_id
    summaries = (each.summary() for each in seen_by(spark, relation).history())
    found = [
        each.get(SUMMARY_SLICE) for each in summaries if each.get(SUMMARY_BATCH_ID) == batch_id
    ]
    return [str(each).split(" ") for each in reversed(found)]


def ids_of(relations: Sequence[Relation]) -> list[str]:
    return [Slice.of({"region": region_of(each)}).id for each in relations]


@pytest.mark.spark
@pytest.mark.parametrize("format_version", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_few_changes_of_all_slices_are_one_commit(
    spark: SparkSession,
    source: Source,
    format_version: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Old rows are looked up in more than one scan.
    monkeypatch.setattr(apply_few, "_SLICES_OF_ONE_SCAN", 3)
    number, how = random.Random(format_version), {"format_version": format_version}  # noqa: S311 - a test
    relations = started(spark, source, how)
    for turn in range(4):
        for relation in relations:
            relation.insert(10 + turn, "in each batch", None)
            for _ in range(6):
                change(relation, number)
        (job,) = run(spark, (source,), how)
        check(spark, relations, how)
        assert commits(spark, relations[0], job) == [ids_of(relations)]
        end = opened(spark, job).manifest.end_lsn
        for relation in relations:
            marker = seen_by(spark, relation).marker(source.slot_name)
            assert marker is not None
            assert marker.end_lsn == end
    assert not seen_by(spark, relations[0]).branch_ages_ms()


@pytest.mark.spark
@pytest.mark.slow
def test_a_kill_at_any_point_doubles_nothing(spark: SparkSession, source: Source) -> None:
    number = random.Random(1)  # noqa: S311 - a test
    relations = started(spark, source, {})
    for turn, point in enumerate(POINTS):
        for relation in relations:
            change(relation, number)
            relation.insert(10 + turn, point, None)
        (job,) = stage((source,), {})
        _killed(spark, job, point)
        apply_batch(spark, job)
        check(spark, relations, {})
        assert commits(spark, relations[0], job) == [ids_of(relations)]
    assert not seen_by(spark, relations[0]).branch_ages_ms()


def _killed(spark: SparkSession, job: ApplyJob, point: str) -> None:
    with crash_points.watched(functools.partial(_die_at, point)), pytest.raises(Killed):
        apply_batch(spark, job)


def _die_at(point: str, reached: str) -> None:
    if reached == point:
        raise Killed


@pytest.mark.spark
def test_slices_that_need_more_are_written_by_themselves(
    spark: SparkSession, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is copied, one truncated, one has many changes, others leave values out or send whole old rows."""
    monkeypatch.setattr(apply_few, "MOST_CHANGES", 10)
    relations = started(spark, source, {})
    more = tables(source, "copied", "truncated", "large", "whole", "lean")
    for relation in more:
        relation.insert(1, "first", "note")
    run(spark, (source,), {})
    copied, truncated, large, whole, lean = more
    source.copy(copied)
    copied.insert(2, "after the copy", None)
    truncated.truncate()
    truncated.insert(3, "after the truncate", None)
    for i in range(20):
        large.insert(100 + i, "many", None)
    whole.alter(identity="f")
    whole.update(lambda row: row["id"] == 1, {"name": "sends its old row"})
    lean.update(lambda row: row["id"] == 1, {"name": "leaves its note out"})
    for relation in relations:
        relation.update(lambda row: row["id"] == 1, {"name": "new", "note": "new"})
    (job,) = run(spark, (source,), {})
    check(spark, [*relations, *more], {})
    together, *alone = commits(spark, copied, job)
    assert together == ids_of(relations)
    assert sorted(each for (each,) in alone) == sorted(ids_of(more))


@pytest.mark.spark
def test_another_pipeline_between_prepare_and_publish(
    spark: SparkSession, source: Source, second: Source
) -> None:
    """The slices are prepared together once more."""
    relations = started(spark, source, {})
    others = tables(second, "eu", "us")
    for relation in others:
        relation.insert(1, "first", "note")
    run(spark, (source, second), {})
    for relation in (*relations, *others):
        relation.insert(20, "new", None)
    mine, theirs = stage((source, second), {})
    waiting = [theirs]

    def reach(name: str) -> None:
        if name == "apply.after_prepare" and waiting:
            apply_batch(spark, waiting.pop())

    with crash_points.watched(reach):
        apply_batch(spark, mine)
    check(spark, [*relations, *others], {})
    assert commits(spark, relations[0], mine) == [ids_of(relations)]
    assert commits(spark, relations[0], theirs) == [ids_of(others)]


@pytest.mark.spark
@pytest.mark.parametrize("seed", [0, 1])
def test_two_pipelines_at_once_under_kills(
    spark: SparkSession, source: Source, second: Source, seed: int
) -> None:
    number = random.Random(seed)  # noqa: S311 - a test
    relations = started(spark, source, {}) + tables(second, "eu", "us")
    batches: dict[str, list[ApplyJob]] = {source.slot_name: [], second.slot_name: []}
    for turn in range(4):
        for relation in relations:
            relation.insert(10 + turn, "in each batch", None)
            for _ in range(3):
                change(relation, number)
        for job in stage((source, second), {}):
            batches[opened(spark, job).manifest.slot_name].append(job)
    lock, together = threading.Lock(), 0

    def reach(name: str) -> None:
        nonlocal together
        with lock:
            together += name == "apply.after_row_delta"
            dies = number.random() < 0.06
        if dies:
            raise Killed

    drive_at_once(spark, batches.values(), reach)
    assert together
    check(spark, relations, {})
    for relation in relations:
        for job in batches[relation.source.slot_name]:
            named = [each for ids in commits(spark, relations[0], job) for each in ids]
            assert named.count(ids_of([relation])[0]) == 1


@pytest.mark.spark
def test_another_driver_of_the_same_pipeline_is_further(
    spark: SparkSession, source: Source
) -> None:
    relations = started(spark, source, {})
    jobs = []
    for number in range(2):
        for relation in relations:
            relation.insert(20 + number, "new", None)
        jobs += stage((source,), {})
    done = False

    def reach(name: str) -> None:
        nonlocal done
        if name == "apply.after_prepare" and not done:
            done = True
            for job in jobs:
                apply_batch(spark, job)

    with crash_points.watched(reach):
        apply_batch(spark, jobs[0])
    check(spark, relations, {})
    for job in jobs:
        assert commits(spark, relations[0], job) == [ids_of(relations)]


@pytest.mark.spark
def test_one_slice_is_refused_and_the_others_are_one_commit(
    spark: SparkSession, source: Source
) -> None:
    how = {"on_table_refused": "set_aside"}
    relations = started(spark, source, how)
    for relation in relations:
        relation.insert(20, "new", None)
    refused, *fine = relations
    id_, name, note = refused.version.columns
    other = dataclasses.replace(name, lake_type="boolean", type_name="boolean")
    refused.alter((id_, other, note))
    refused.insert(21, True, None)
    (job,) = run(spark, (source,), how)
    progress = checkpoint.read(spark, job, opened(spark, job).manifest)
    assert [each.table_name for each in progress.set_aside.values()] == [refused.full_name]
    assert commits(spark, fine[0], job) == [ids_of(fine)]
    rows = spark.table(TableName("lake", source.slot_name, "people").sql)
    for relation in fine:
        region = region_of(relation)
        assert rows.where(rows["region"] == region).count() == len(relation.rows)
    assert rows.where(rows["region"] == region_of(refused)).count() == 3


@pytest.mark.spark
@pytest.mark.slow
def test_one_slice_goes_back_and_the_others_stay(spark: SparkSession, source: Source) -> None:
    """Its batches were commits of all slices. It is taken back before them, and gets them again."""
    relations = started(spark, source, {})
    jobs = []
    for number in range(3):
        for relation in relations:
            relation.insert(20 + number, f"batch {number}", None)
            relation.update(
                lambda row: row["id"] == 1, {"name": f"u{number}", "note": f"n{number}"}
            )
        jobs += run(spark, (source,), {})
    name = TableName("lake", source.slot_name, "people")
    back = relations[1]
    spark.sql(f"UPDATE {name.sql} SET name = 'damaged' WHERE region = '{region_of(back)}'")
    before = {each.full_name: seen_by(spark, each).marker(source.slot_name) for each in relations}
    uris = [each.manifest_uri for each in jobs[1:]]
    replay(spark, replay_of(jobs[0], uris, in_place=True, tables=(back.full_name,)))
    check(spark, relations, {})
    for relation in relations:
        assert seen_by(spark, relation).marker(source.slot_name) == before[relation.full_name]
    for relation in relations:
        relation.delete(lambda row: row["id"] == 20)
    (job,) = run(spark, (source,), {})
    check(spark, relations, {})
    assert commits(spark, back, job) == [ids_of(relations)]


@pytest.mark.spark
def test_a_slice_goes_back_to_any_batch(
    spark: SparkSession, source: Source, second: Source
) -> None:
    """Not every commit of several slices has changes of it, and another pipeline makes some of them."""
    number = random.Random(3)  # noqa: S311 - a test
    relations = started(spark, source, {})
    others = tables(second, "eu", "us")
    jobs, chosen = [], list[list[Relation]]()
    for turn in range(5):
        chosen.append(number.sample(relations, 2))
        for relation in (*chosen[-1], *others):
            relation.insert(20 + turn, f"batch {turn}", None)
            change(relation, number)
        jobs += run(spark, (source, second), {})[:1]
        assert commits(spark, relations[0], jobs[-1]) == [
            [each for each in ids_of(relations) if each in ids_of(chosen[-1])]
        ]
    uris = [each.manifest_uri for each in jobs]
    name = TableName("lake", source.slot_name, "people")
    for first in range(1, 5):
        back = number.choice([each for some in chosen[first:] for each in some])
        before = {
            each.full_name: seen_by(spark, each).marker(source.slot_name) for each in relations
        }
        spark.sql(f"UPDATE {name.sql} SET name = 'damaged' WHERE region = '{region_of(back)}'")
        again = replay_of(jobs[0], uris[first:], in_place=True, tables=(back.full_name,))
        for point in ("replay.slice_is_empty", "replay.after_rollback", "apply.after_publish"):
            with (
                crash_points.watched(functools.partial(_die_at, point)),
                pytest.raises(Killed),
            ):
                replay(spark, again)
        replay(spark, again)
        check(spark, [*relations, *others], {})
        for relation in relations:
            assert seen_by(spark, relation).marker(source.slot_name) == before[relation.full_name]
    for relation in (*relations, *others):
        change(relation, number)
    run(spark, (source, second), {})
    check(spark, [*relations, *others], {})


@pytest.mark.spark
def test_a_slice_goes_back_although_another_pipeline_writes(
    spark: SparkSession, source: Source, second: Source
) -> None:
    """It does not begin with the first slice again. A driver of its own pipeline stops it."""
    relations = started(spark, source, {})
    others = tables(second, "eu", "us")
    jobs, theirs = [], []
    for turn in range(3):
        for relation in (*relations, *others):
            relation.insert(20 + turn, f"batch {turn}", None)
        mine, other = stage((source, second), {})
        apply_batch(spark, mine)
        jobs.append(mine)
        theirs.append(other)
    taken, times = 0, 0

    def reach(point: str) -> None:
        nonlocal taken, times
        times += point == "replay.slice_is_empty"
        taken += point == "replay.after_rollback"
        if point == "replay.slice_is_empty" and theirs:
            apply_batch(spark, theirs.pop(0))

    names = tuple(each.full_name for each in relations)
    again = replay_of(
        jobs[0], [each.manifest_uri for each in jobs[1:]], in_place=True, tables=names
    )
    with crash_points.watched(reach):
        replay(spark, again)
    assert (taken, times) == (len(relations), len(relations) + 3)
    check(spark, [*relations, *others], {})
    assert not seen_by(spark, relations[0]).branch_ages_ms()

    for relation in relations:
        relation.insert(30, "newer", None)
    (newer,) = stage((source,), {})

    def overtake(point: str) -> None:
        if point == "replay.slice_is_empty":
            apply_batch(spark, newer)

    with crash_points.watched(overtake), pytest.raises(PublishRefused):
        replay(spark, again)
    check(spark, [*relations, *others], {})


@pytest.mark.spark
def test_keys_of_several_columns_and_of_text(spark: SparkSession, source: Source) -> None:
    columns = numbered((column("id"), column("name", "string"), column("note", "string")))
    relations = [
        source.table("people", columns, key, schema_name=schema)
        for schema, key in (("a", ("id", "name")), ("b", ("name", "id")), ("c", ("name",)))
    ]
    for relation in relations:
        for i in range(3):
            for j in range(3):
                relation.insert(
                    i, f"x{j}" if len(relation.version.key_columns) > 1 else f"x{i}{j}", "first"
                )
    run(spark, (source,), {})
    for relation in relations:
        relation.delete(lambda row: row["id"] == 1 and row["name"].endswith("1"))
        relation.update(lambda row: row["id"] == 2, {"note": "second"})
    (job,) = run(spark, (source,), {})
    check(spark, relations, {})
    assert len(commits(spark, relations[0], job)) == 1


@pytest.mark.spark
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("is_let_in", [True, False])
def test_a_lost_answer_of_the_publish(
    spark: SparkSession,
    source: Source,
    rest_catalog: RestCatalog,
    committed: bool,
    is_let_in: bool,
) -> None:
    """The driver looks whether main has the batch of all slices. If it cannot look, it sets nothing aside."""
    relations = started(spark, source, {})
    for relation in relations:
        relation.insert(20, "new", None)
    how = {"catalog_name": "loses_answers", "on_table_refused": "set_aside"}
    (job,) = stage((source,), how)

    def publishes(commit: Commit) -> bool:
        chosen = commit.table == "people" and "main" in commit.set_references
        if chosen and not is_let_in:
            rest_catalog.denies_table = "people"
        return chosen

    fault = Fault(publishes, 504, committed)
    rest_catalog.fail(fault)
    if not is_let_in:
        with pytest.raises(CommitStateUnknown, match="LakeDenied"):
            apply_batch(spark, job)
        rest_catalog.denies_table = None
    assert not apply_batch(spark, job).set_aside
    assert fault.happened == 1
    check(spark, relations, {})
    assert commits(spark, relations[0], job) == [ids_of(relations)]


def test_properties_that_are_taken_apart_are_those_that_each_slice_sees() -> None:
    one, two = (Slice.of({"tenant": each}) for each in ("one", "two"))
    plain = {"pgoutput.mode": "upsert", "other": "x"}
    for each in (one, two):
        plain |= each.stored({**each.of_table, "pgoutput.slot": f"slot of {each.constants}"})
    shared = SharedProperties(plain)
    assert shared == plain
    assert set(slices_of(shared)) == set(slices_of(plain)) == {one, two}
    for each in (one, two):
        assert each.seen(shared) == each.seen(plain)
        assert each.seen(shared)["pgoutput.slot"] == f"slot of {each.constants}"
        assert each.seen(shared)["pgoutput.mode"] == "upsert"
    assert one.is_in(f"{two.id} {one.id}")
    assert one.is_in(one.id)
    assert not one.is_in(two.id)
    assert not one.is_in(None)
