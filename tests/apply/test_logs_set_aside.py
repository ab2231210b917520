"""Refused batches of a change log: a replay brings their rows, and a copy hides no gap."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.batch.jobs import TableOptions
from tests.apply.build import Relation, Source, column
from tests.apply.test_set_aside import Killed, aside, catch_up, change, head, roll_back

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob


def test_a_copy_does_not_end_what_a_change_log_lacks(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    def log_of(job: ApplyJob) -> ApplyJob:
        return dataclasses.replace(aside(job), mode="change_log")

    apply_batch(spark, log_of(source.stage()))
    first = head(spark, source)
    change(table, 4)
    apply_batch(spark, log_of(source.stage()))
    second = head(spark, source)
    roll_back(spark, source, first)
    change(table, 5)
    jobs = [log_of(source.stage())]
    assert apply_batch(spark, jobs[0]).set_aside
    source.copy(table)
    copied = len(table.rows)
    change(table, 6)
    jobs.append(log_of(source.stage()))
    assert apply_batch(spark, jobs[1]).set_aside
    roll_back(spark, source, second)
    catch_up(spark, jobs)
    ops = [op for (op,) in lake_rows(table, "_pgoutput_op")]
    assert sorted(ops) == sorted("III" + "IUUD" + "IUU" + "C" * copied + "IUU")


def log_of(job: ApplyJob, target: str = "t") -> ApplyJob:
    """The job, with ``public.t`` as a change log in this target."""
    options = {"public.t": TableOptions(target=target)}
    return dataclasses.replace(aside(job), mode="change_log", table_options=options)


def test_a_copy_does_not_begin_a_change_log_in_a_target_that_lacks_batches(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    """Neither in a target that has no rows yet, nor in one that it had before."""
    theirs = TableName("lake", source.slot_name, "t").sql
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{source.slot_name}")
    spark.sql(f"CREATE TABLE {theirs} (mine int)")
    spark.sql(f"INSERT INTO {theirs} VALUES (1)")
    # Another table is applied, so the batch is not refused as a whole.
    other = source.table("other", (column("a"),), key=("a",))
    other.insert(1)
    jobs = [log_of(source.stage())]
    assert apply_batch(spark, jobs[0]).set_aside
    first = sorted(["I"] * len(table.rows))
    spark.sql(f"DROP TABLE {theirs}")
    source.copy(table)
    copied = ["C"] * len(table.rows)
    other.insert(2)
    jobs.append(log_of(source.stage()))
    assert apply_batch(spark, jobs[1]).set_aside
    catch_up(spark, jobs)
    ops = [op for (op,) in lake_rows(table, "_pgoutput_op")]
    assert sorted(ops) == sorted(first + copied)
    # It goes on in t_again. The copy that should bring it back to t comes after a refused batch.
    source.copy(table)
    other.insert(3)
    assert not apply_batch(spark, log_of(source.stage(), "t_again")).set_aside
    change(table, 5)
    assert apply_batch(spark, log_of(source.stage())).set_aside
    for number, target in enumerate(("t", "T", "T_again"), start=4):
        source.copy(table)
        other.insert(number)
        assert apply_batch(spark, log_of(source.stage(), target)).set_aside
    source.copy(table)
    other.insert(7)
    assert not apply_batch(spark, log_of(source.stage(), "t_third")).set_aside


def test_a_copy_into_another_target_begins_a_new_change_log(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    """So a change log comes back also when the batches that it lacks are deleted."""
    apply_batch(spark, log_of(source.stage()))
    first = head(spark, source)
    change(table, 4)
    apply_batch(spark, log_of(source.stage()))
    roll_back(spark, source, first)
    change(table, 5)
    assert apply_batch(spark, log_of(source.stage())).set_aside
    before = lake_rows(table)
    source.copy(table)
    copied = len(table.rows)
    change(table, 6)
    assert not apply_batch(spark, log_of(source.stage(), "t_again")).set_aside
    change(table, 7)
    assert not apply_batch(spark, log_of(source.stage(), "t_again")).set_aside
    ops = [op for (op,) in lake_rows(table, "_pgoutput_op", target="t_again")]
    assert sorted(ops) == sorted("C" * copied + "IUU" + "IUU")
    assert lake_rows(table) == before


def test_a_copy_does_not_hide_a_gap_that_a_kill_left_in_a_change_log(
    spark: SparkSession, source: Source, table: Relation, other: Relation, lake_rows: Any
) -> None:
    """The copy into the new target was published, and the checkpoint does not know it."""
    apply_batch(spark, log_of(source.stage()))
    source.copy(table)
    other.insert(1, "x")
    copy = log_of(source.stage(), "t_again")

    def kill(name: str) -> None:
        if name == "apply.before_checkpoint":
            raise Killed

    with crash_points.watched(kill), pytest.raises(Killed):
        apply_batch(spark, copy)
    # The next try is refused, because the target is a wrong one.
    assert apply_batch(spark, log_of(copy, "pgoutput_messages")).set_aside
    change(table, 5)
    assert apply_batch(spark, log_of(source.stage(), "t_again")).set_aside
    source.copy(table)
    other.insert(2, "y")
    refusals = apply_batch(spark, log_of(source.stage(), "t_again")).set_aside
    assert "a copy does not bring them" in refusals["public.t"]
    source.copy(table)
    copied = len(table.rows)
    other.insert(3, "z")
    assert not apply_batch(spark, log_of(source.stage(), "t_third")).set_aside
    ops = [op for (op,) in lake_rows(table, "_pgoutput_op", target="t_third")]
    assert ops == ["C"] * copied
