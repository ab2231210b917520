"""Tables of which the stage task left changes out: apply loses nothing more of them, and hides no gap."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.pipeline import apply_batch, tables_that_left
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.batch.membership import PublishedSet, TableMembership
from airflow_provider_pgoutput.batch.passed_over import PassedOver
from airflow_provider_pgoutput.batch.set_aside import Refusal, SetAside
from airflow_provider_pgoutput.errors import TableRefused
from tests.apply.build import Relation, Source, opened, replay_of
from tests.apply.conftest import source_rows
from tests.apply.test_set_aside import Killed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob


def staged_until(source: Source, table: Relation, lsn: Lsn) -> ApplyJob:
    """Stage a batch as the stage task does that sets a table aside from an LSN on."""
    job = source.stage()
    folder = source.staging
    manifest = Manifest.from_json((folder / job.manifest_uri.split("/staging/")[1]).read_text())
    parts = tuple(
        dataclasses.replace(each, until_lsn=str(lsn)) if each.name == table.full_name else each
        for each in manifest.tables
    )
    entry = PassedOver(
        table.oid, table.full_name, str(lsn), 1, "A value.", "ValueRefused", "copy the table."
    )
    return source.write(dataclasses.replace(manifest, tables=parts, passed_over=(entry,)))


def waiting(spark: SparkSession, job: ApplyJob) -> dict[int, Any]:
    """The tables that are set aside, by OID."""
    return checkpoint.read(spark, job, opened(spark, job).manifest).set_aside


@pytest.mark.parametrize("mode", ["upsert", "change_log"])
@pytest.mark.parametrize("is_longer", [False, True])
def test_a_batch_that_is_staged_anew_after_a_kill_brings_what_was_left_out(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any, mode: str, is_longer: bool
) -> None:
    """The part of the table was published, and the checkpoint does not know it."""
    apply_batch(spark, dataclasses.replace(source.stage(), mode=mode))
    before = source.staged_to
    table.insert(4, "b4", 0)
    since = Lsn(source.lsn)
    table.insert(5, "b5", 0)
    taken = [*source.pending]
    job = dataclasses.replace(staged_until(source, table, since), mode=mode)

    def kill(name: str) -> None:
        if name == "apply.before_checkpoint":
            raise Killed

    with crash_points.watched(kill), pytest.raises(Killed):
        apply_batch(spark, job)
    assert [a for (a,) in lake_rows(table, "a")] == [1, 2, 3, 4]
    if is_longer:
        table.update(lambda row: row["a"] == 4, {"c": 1})
    source.pending, source.staged_to = [*taken, *source.pending], before
    again = dataclasses.replace(source.stage(), mode=mode)
    result = apply_batch(spark, again)
    assert not result.set_aside
    if mode == "upsert":
        assert lake_rows(table) == source_rows(table)
    else:
        expected = [1, 2, 3, 4, 5] + ([4] if is_longer else [])
        assert sorted(a for (a,) in lake_rows(table, "a")) == sorted(expected)
    table.insert(6, "b6", 0)
    apply_batch(spark, dataclasses.replace(source.stage(), mode=mode))
    assert 6 in [a for (a,) in lake_rows(table, "a")]


def test_the_same_batch_after_a_kill_is_not_applied_twice(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, dataclasses.replace(source.stage(), mode="change_log"))
    table.insert(4, "b4", 0)
    since = Lsn(source.lsn)
    table.insert(5, "b5", 0)
    job = dataclasses.replace(staged_until(source, table, since), mode="change_log")

    def kill(name: str) -> None:
        if name == "apply.before_checkpoint":
            raise Killed

    with crash_points.watched(kill), pytest.raises(Killed):
        apply_batch(spark, job)
    assert list(apply_batch(spark, job).set_aside) == ["public.t"]
    assert sorted(a for (a,) in lake_rows(table, "a")) == [1, 2, 3, 4]


@pytest.mark.parametrize("mode", ["upsert", "change_log"])
def test_a_refused_copy_after_what_was_left_out(
    spark: SparkSession, source: Source, table: Relation, other: Relation, lake_rows: Any, mode: str
) -> None:
    """A replay brings the copy of a table in mode upsert. A change log would keep its gap, and is refused."""

    def stage(job: ApplyJob) -> ApplyJob:
        return dataclasses.replace(job, mode=mode, on_table_refused="set_aside")

    other.insert(1, "x")
    apply_batch(spark, stage(source.stage()))
    table.insert(4, "b4", 0)
    since = Lsn(source.lsn)
    table.insert(5, "b5", 0)
    jobs = [stage(staged_until(source, table, since))]
    assert list(apply_batch(spark, jobs[0]).set_aside) == ["public.t"]
    name = f"lake.{source.slot_name}.t"
    if mode == "upsert":
        trouble = "'write.spark.accept-any-schema'"
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({trouble} = 'true')")
    source.copy(table)
    table.insert(6, "b6", 0)
    other.insert(2, "y")
    jobs.append(stage(source.stage()))
    assert list(apply_batch(spark, jobs[1]).set_aside) == ["public.t"]
    (found,) = waiting(spark, jobs[1]).values()
    assert (found.since_lsn, found.needs_copy, found.lacks_unstaged) == (since, False, True)
    assert found.replay_lsn == opened(spark, jobs[1]).manifest.start_lsn
    if mode == "upsert":
        spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ({trouble})")
    rows = lake_rows(table)
    for uris in (jobs, jobs[1:]):
        again = replay_of(
            jobs[0],
            [each.manifest_uri for each in uris],
            in_place=True,
            catch_up=True,
            tables=("public.t",),
        )
        if mode == "upsert":
            replay(spark, again)
            assert lake_rows(table) == source_rows(table)
            assert waiting(spark, jobs[1]) == {}
        else:
            with pytest.raises(TableRefused, match="a copy does not bring them"):
                replay(spark, again)
            assert lake_rows(table) == rows
            assert list(waiting(spark, jobs[1])) == [table.oid]


@pytest.mark.parametrize("had_rows", [False, True])
@pytest.mark.parametrize("needs_copy", [False, True])
@pytest.mark.parametrize("is_published", [False, True])
def test_a_table_that_leaves_the_publications_leaves_the_list_if_only_a_copy_could_help(
    had_rows: bool, needs_copy: bool, is_published: bool
) -> None:
    """A replay may bring the others back."""
    member = TableMembership(7, "public.t", ())
    manifest = Manifest(
        "s", "7", 1, "db", ("p",), Lsn(16), Lsn(32), (),
        published=PublishedSet((), (member,) if is_published else ()),
    )  # fmt: skip
    waits = SetAside(7, "public.t", Lsn(8), 1, Refusal("ValueRefused", "A value."), needs_copy)
    progress = checkpoint.Progress(
        Lsn(16), target_of={7: "n.t"} if had_rows else {}, set_aside={7: waits}
    )
    leaves = not is_published and (needs_copy or not had_rows)
    assert tables_that_left(manifest, progress) == (((7, "public.t"),) if leaves else ())


def test_a_table_that_has_another_oid_by_now_is_not_said_to_be_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was made again, or another server was adopted."""
    published = PublishedSet((), (TableMembership(8, "public.t", ()),))
    manifest = Manifest(
        "s", "7", 1, "db", ("p",), Lsn(16), Lsn(32), (), published=published
    )  # fmt: skip
    waits = SetAside(7, "public.t", Lsn(8), 1, Refusal("ValueRefused", "A value."))
    with caplog.at_level("INFO"):
        left = tables_that_left(manifest, checkpoint.Progress(Lsn(16), set_aside={7: waits}))
    assert left == ((7, "public.t"),)
    assert [each.getMessage() for each in caplog.records] == [
        "public.t has another OID now. What was set aside under OID 7 is over."
    ]
