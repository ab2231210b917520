"""Batches that are refused for one table: the others go on, and the table comes back exactly."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.refused import RefusedTables
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.apply.table.target import targets
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.batch.set_aside import Refusal, SetAside
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeDenied,
    TableRefused,
    TableRolledBack,
)
from tests.apply.build import Relation, Source, column, opened, replay_of
from tests.apply.conftest import source_rows
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.replay import ReplayResult
    from airflow_provider_pgoutput.batch.jobs import ApplyJob


def aside(job: ApplyJob) -> ApplyJob:
    return dataclasses.replace(job, on_table_refused="set_aside")


def roll_back(spark: SparkSession, source: Source, snapshot_id: int) -> None:
    spark.sql(f"CALL lake.system.set_current_snapshot('{source.slot_name}.t', {snapshot_id})")


def head(spark: SparkSession, source: Source, name: str = "t") -> int:
    table = TableName("lake", source.slot_name, name).sql
    spark.sql(f"REFRESH TABLE {table}")
    rows = spark.sql(f"SELECT snapshot_id FROM {table}.refs WHERE name = 'main'").collect()
    return int(rows[0][0])


def test_a_table_that_was_rolled_back_is_set_aside_and_a_copy_brings_it_back(
    spark: SparkSession, source: Source, table: Relation, other: Relation, lake_rows: Any
) -> None:
    other.insert(1, "x")
    apply_batch(spark, aside(source.stage()))
    first = head(spark, source)
    before = source_rows(table)
    table.insert(4, "b4", 0)
    apply_batch(spark, aside(source.stage()))
    roll_back(spark, source, first)
    for number in (5, 6):
        table.insert(number, "b", 0)
        other.insert(number, "y")
        job = source.stage()
        if number == 5:
            with pytest.raises(TableRolledBack):
                apply_batch(spark, job)
        result = apply_batch(spark, aside(job))
        assert list(result.set_aside) == ["public.t"]
        reason = "TableRolledBack: " if number == 5 else "TableRefused: The table lacks an earlier"
        assert result.set_aside["public.t"].startswith(reason)
        assert list(result.published) == [f"{source.slot_name}.other"]
        assert lake_rows(other) == source_rows(other)
        assert lake_rows(table) == before
    # The answer may change: a table that is set aside stays so.
    table.insert(7, "b", 0)
    assert list(apply_batch(spark, source.stage()).set_aside) == ["public.t"]
    source.copy(table)
    table.insert(8, "b", 0)
    assert not apply_batch(spark, aside(source.stage())).set_aside
    assert lake_rows(table) == source_rows(table)
    table.update(lambda row: row["a"] == 8, {"c": 1})
    assert not apply_batch(spark, source.stage()).set_aside
    assert lake_rows(table) == source_rows(table)


#: Trouble that a user makes in the lake, and its end.
TROUBLE = {
    "TableRefused": (
        "ALTER TABLE {} SET TBLPROPERTIES ('write.spark.accept-any-schema' = 'true')",
        "ALTER TABLE {} UNSET TBLPROPERTIES ('write.spark.accept-any-schema')",
    ),
}


def change(table: Relation, number: int) -> None:
    table.insert(number, f"b{number}", 0)
    table.update(lambda row: row["a"] == number, {"c": number})
    table.update(lambda row: row["a"] == number, {"a": -number})
    table.delete(lambda row: row["a"] == 1) if number == 4 else None


def catch_up(spark: SparkSession, jobs: list[ApplyJob], **changed: Any) -> ReplayResult:
    changed = {"in_place": True, "catch_up": True, "tables": ("public.t",), **changed}
    return replay(spark, replay_of(jobs[0], [each.manifest_uri for each in jobs], **changed))


@pytest.mark.parametrize("later", slow_but_each(3, [1, 0, 2]))
def test_a_replay_brings_it_back_when_the_cause_is_gone(
    spark: SparkSession,
    source: Source,
    table: Relation,
    other: Relation,
    lake_rows: Any,
    later: int,
) -> None:
    """It gets each batch that it lacks, once, while the pipeline goes on."""
    apply_batch(spark, source.stage())
    name = TableName("lake", source.slot_name, "t").sql
    begin, end = TROUBLE["TableRefused"]
    spark.sql(begin.format(name))
    jobs = []
    for number in (4, 5, 6):
        change(table, number)
        other.insert(number, "y")
        jobs.append(aside(source.stage()))
    for job in jobs[: 3 - later]:
        assert apply_batch(spark, job).set_aside
    with pytest.raises(TableRefused):
        catch_up(spark, jobs[: 3 - later])
    spark.sql(end.format(name))
    # The cause is gone, and the table still waits: an earlier batch comes first.
    for job in jobs[3 - later :]:
        assert apply_batch(spark, job).set_aside
    result = catch_up(spark, jobs)
    assert result.batches == 3
    assert lake_rows(table) == source_rows(table)
    heads = head(spark, source), head(spark, source, "other")
    assert catch_up(spark, jobs).published == {}
    assert (head(spark, source), head(spark, source, "other")) == heads
    change(table, 7)
    assert not apply_batch(spark, source.stage()).set_aside
    assert lake_rows(table) == source_rows(table)


@pytest.mark.slow
def test_a_replay_that_ends_too_early_leaves_it_set_aside(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    """The pipeline applied another batch meanwhile."""
    apply_batch(spark, source.stage())
    name = TableName("lake", source.slot_name, "t").sql
    begin, end = TROUBLE["TableRefused"]
    spark.sql(begin.format(name))
    jobs = []
    for number in (4, 5):
        change(table, number)
        jobs.append(aside(source.stage()))
        assert apply_batch(spark, jobs[-1]).set_aside
    spark.sql(end.format(name))
    catch_up(spark, jobs[:1])
    change(table, 6)
    jobs.append(aside(source.stage()))
    assert apply_batch(spark, jobs[-1]).set_aside
    catch_up(spark, jobs)
    assert lake_rows(table) == source_rows(table)


def test_a_table_that_somebody_dropped_meanwhile_is_not_begun_anew(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    apply_batch(spark, source.stage())
    name = TableName("lake", source.slot_name, "t").sql
    spark.sql(TROUBLE["TableRefused"][0].format(name))
    change(table, 4)
    job = aside(source.stage())
    assert apply_batch(spark, job).set_aside
    spark.sql(f"DROP TABLE {name}")
    with pytest.raises(TableRefused, match=r"Still set aside: public\.t\..* TableRolledBack"):
        catch_up(spark, [job])


def test_a_first_copy_that_is_refused_is_caught_up(
    spark: SparkSession, source: Source, table: Relation, other: Relation, lake_rows: Any
) -> None:
    """Somebody else's table has the target's name."""
    source.pending.clear()
    other.insert(1, "x")
    source.copy(table)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{source.slot_name}")
    name = TableName("lake", source.slot_name, "t").sql
    spark.sql(f"CREATE TABLE {name} (mine int)")
    spark.sql(f"INSERT INTO {name} VALUES (1)")
    jobs = [aside(source.stage())]
    assert apply_batch(spark, jobs[0]).set_aside
    table.insert(9, "z", 0)
    jobs.append(aside(source.stage()))
    assert apply_batch(spark, jobs[1]).set_aside
    assert lake_rows(other) == source_rows(other)
    spark.sql(f"DROP TABLE {name}")
    catch_up(spark, jobs)
    assert lake_rows(table) == source_rows(table)


@pytest.mark.slow
def test_a_table_that_is_refused_again_does_not_stop_the_others(
    spark: SparkSession, source: Source, table: Relation, other: Relation, lake_rows: Any
) -> None:
    other.insert(1, "x")
    apply_batch(spark, source.stage())
    names = [TableName("lake", source.slot_name, each).sql for each in ("t", "other")]
    begin, end = TROUBLE["TableRefused"]
    for name in names:
        spark.sql(begin.format(name))
    jobs = []
    for number in (4, 5):
        change(table, number)
        other.insert(number, "y")
        jobs.append(aside(source.stage()))
        assert set(apply_batch(spark, jobs[-1]).set_aside) == {"public.t", "public.other"}
    spark.sql(end.format(names[1]))
    with pytest.raises(TableRefused, match=r"Still set aside: public\.t\."):
        catch_up(spark, jobs, tables=("public.t", "public.other"))
    assert lake_rows(other) == source_rows(other)
    spark.sql(end.format(names[0]))
    catch_up(spark, jobs)
    assert lake_rows(table) == source_rows(table)


def test_batches_that_change_nothing_bring_it_back_all_the_same(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    """An empty table is truncated."""
    source.pending.clear()
    table.rows = []
    source.copy(table)
    apply_batch(spark, source.stage())
    name = TableName("lake", source.slot_name, "t").sql
    begin, end = TROUBLE["TableRefused"]
    spark.sql(begin.format(name))
    table.truncate()
    job = aside(source.stage())
    assert apply_batch(spark, job).set_aside
    spark.sql(end.format(name))
    catch_up(spark, [job])
    change(table, 5)
    assert not apply_batch(spark, source.stage()).set_aside
    assert lake_rows(table) == source_rows(table)


def test_a_renamed_table_does_not_come_back_as_another_one(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    """Its older rows are under the former name."""
    apply_batch(spark, source.stage())
    version = dataclasses.replace(table.version, table_name="renamed", version=1, files=())
    table.versions.append(version)
    table.name = "renamed"
    table.insert(4, "b4", 0)
    job = aside(source.stage())
    assert "renamed" in apply_batch(spark, job).set_aside["public.renamed"]
    with pytest.raises(TableRefused, match="was renamed at the source"):
        catch_up(spark, [job], tables=("public.renamed",))
    options = {"public.renamed": TableOptions(target="t")}
    catch_up(spark, [job], tables=("public.renamed",), table_options=options)
    assert lake_rows(table, target="t") == source_rows(table)


@pytest.mark.slow
def test_a_replay_does_not_jump_over_what_an_earlier_table_of_the_name_lacks(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    """Both are set aside. The first one gave its name to the second, which lacks fewer batches."""
    second = source.table("second", table.version.columns, key=("a",))
    second.insert(1, "x", 0)
    apply_batch(spark, source.stage())
    begin, end = TROUBLE["TableRefused"]
    names = [TableName("lake", source.slot_name, each).sql for each in ("t", "second")]
    jobs = []
    for number, name in enumerate(names):
        spark.sql(begin.format(name))
        change(table, 5 + number)
        second.insert(5 + number, "y", 0)
        jobs.append(aside(source.stage()))
        apply_batch(spark, jobs[-1])
    for each, new_name in ((table, "old"), (second, "t")):
        version = dataclasses.replace(each.version, table_name=new_name, version=1, files=())
        each.versions.append(version)
        each.name = new_name
    second.insert(9, "z", 0)
    jobs.append(aside(source.stage()))
    apply_batch(spark, jobs[-1])
    for name in names:
        spark.sql(end.format(name))
    before = lake_rows(table, target="t")
    since = waiting(spark, jobs[-1])[table.oid].since_lsn
    with pytest.raises(TableRefused, match="was renamed at the source"):
        catch_up(spark, jobs[1:])
    assert lake_rows(table, target="t") == before
    assert waiting(spark, jobs[-1])[table.oid].since_lsn == since
    catch_up(spark, jobs[:2], tables=("public.t", "public.second"))
    assert lake_rows(table, target="t") == source_rows(table)


@pytest.mark.slow
def test_a_replay_in_place_does_not_jump_over_what_a_table_lacks(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    name = TableName("lake", source.slot_name, "t").sql
    begin, end = TROUBLE["TableRefused"]
    spark.sql(begin.format(name))
    jobs = []
    for number in (4, 5, 6):
        change(table, number)
        jobs.append(aside(source.stage()))
        assert apply_batch(spark, jobs[-1]).set_aside
    spark.sql(end.format(name))
    with pytest.raises(TableRefused, match="lacks the batches from"):
        catch_up(spark, jobs[1:], catch_up=False)
    catch_up(spark, jobs, catch_up=False)
    assert lake_rows(table) == source_rows(table)
    change(table, 7)
    assert not apply_batch(spark, source.stage()).set_aside
    assert lake_rows(table) == source_rows(table)


@pytest.mark.slow
def test_a_replay_begins_with_a_copy_that_was_staged_meanwhile(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    """Without it the batches before the copy would be refused again: the table was rolled back."""
    apply_batch(spark, source.stage())
    first = head(spark, source)
    change(table, 4)
    apply_batch(spark, source.stage())
    roll_back(spark, source, first)
    change(table, 5)
    jobs = [aside(source.stage())]
    assert apply_batch(spark, jobs[0]).set_aside
    name = TableName("lake", source.slot_name, "t").sql
    begin, end = TROUBLE["TableRefused"]
    spark.sql(begin.format(name))
    source.copy(table)
    change(table, 6)
    jobs.append(aside(source.stage()))
    assert apply_batch(spark, jobs[1]).set_aside
    spark.sql(end.format(name))
    catch_up(spark, jobs)
    assert lake_rows(table) == source_rows(table)
    assert waiting(spark, jobs[1]) == {}


def test_two_tables_with_one_target_do_not_stop_the_others(
    spark: SparkSession,
    source: Source,
    table: Relation,
    other: Relation,
    lake_rows: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The one that has the target goes on. If none has it, both are set aside."""
    apply_batch(spark, source.stage())
    more = [source.table(name, (column("a"),), key=("a",)) for name in ("late", "x", "y")]
    options = {
        "public.late": TableOptions(target="t"),
        "public.x": TableOptions(target="xy"),
        "public.y": TableOptions(target="xy"),
    }
    jobs = []
    for number in (4, 5):
        change(table, number)
        for each in more:
            each.insert(number)
        other.insert(number, "y")
        jobs.append(dataclasses.replace(aside(source.stage()), table_options=options))
    with pytest.raises(ConfigurationError, match="is also that of"):
        apply_batch(spark, dataclasses.replace(jobs[0], on_table_refused="fail"))
    for job in jobs:
        assert set(apply_batch(spark, job).set_aside) == {"public.late", "public.x", "public.y"}
        assert lake_rows(table) == source_rows(table) or job is jobs[0]
    assert lake_rows(other) == source_rows(other)
    caplog.clear()
    for job in jobs:
        assert apply_batch(spark, job).already_applied
        assert apply_batch(spark, dataclasses.replace(job, table_options={})).already_applied
    assert "set aside" not in caplog.text
    names = tuple(each.full_name for each in more)
    catch_up(spark, jobs, tables=names, table_options={})
    for each in more:
        assert lake_rows(each) == source_rows(each)
    assert waiting(spark, jobs[1]) == {}


@pytest.mark.parametrize("mode", slow_but_each(2, ["upsert", "change_log"]))
@pytest.mark.parametrize("unfit", ["own table", "metadata column", "no columns"])
def test_a_table_that_cannot_be_in_the_lake_does_not_stop_the_others(
    spark: SparkSession,
    source: Source,
    table: Relation,
    lake_rows: Any,
    mode: str,
    unfit: str,
) -> None:
    """Before, such a table stopped all. The right option and a replay bring it back, where one can."""
    names = {"metadata column": ("a", "_pgoutput_op")}.get(unfit, ("a", "b"))
    columns = () if unfit == "no columns" else tuple(map(column, names))
    name = "pgoutput_messages" if unfit == "own table" else "bad"
    bad = source.table(name, columns, key=() if unfit == "no columns" else ("a",))
    bad.insert(*range(len(columns)))
    options: dict[str, Any] = {"metadata_columns": ("_pgoutput_op",), "mode": mode}
    jobs = [dataclasses.replace(aside(source.stage()), **options)]
    with pytest.raises(TableRefused):
        apply_batch(spark, dataclasses.replace(jobs[0], on_table_refused="fail"))
    result = apply_batch(spark, jobs[0])
    assert list(result.set_aside) == [bad.full_name]
    assert list(result.published) == [f"{source.slot_name}.t"]
    table.insert(9, "z", 0)
    bad.insert(*range(1, len(columns) + 1))
    jobs.append(dataclasses.replace(aside(source.stage()), **options))
    assert list(apply_batch(spark, jobs[1]).set_aside) == [bad.full_name]
    if mode == "upsert":
        assert lake_rows(table) == source_rows(table)
    with pytest.raises(TableRefused, match="Still set aside"):
        catch_up(spark, jobs, tables=(bad.full_name,))
    if unfit == "own table":
        right = {bad.full_name: TableOptions(target="good")}
        catch_up(spark, jobs, tables=(bad.full_name,), table_options=right)
        assert spark.table(f"lake.{source.slot_name}.good").count() == 2


@pytest.mark.slow
def test_a_table_that_was_made_again_is_no_longer_set_aside_after_its_copy(
    spark: SparkSession, source: Source, table: Relation, other: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    name = TableName("lake", source.slot_name, "t").sql
    begin, end = TROUBLE["TableRefused"]
    spark.sql(begin.format(name))
    change(table, 4)
    assert apply_batch(spark, aside(source.stage())).set_aside
    spark.sql(end.format(name))
    again = source.table("t", (column("a"), column("b", "string")), key=("a",))
    assert again.oid != table.oid
    again.insert(1, "new")
    # Its changes without a copy do not replace the old one.
    assert apply_batch(spark, aside(source.stage())).set_aside
    other.insert(1, "x")
    batch = source.stage()
    apply_batch(spark, batch)
    assert set(waiting(spark, batch)) == {table.oid, again.oid}
    source.copy(again)
    again.insert(2, "newer")
    batch = aside(source.stage())
    assert not apply_batch(spark, batch).set_aside
    assert waiting(spark, batch) == {}
    assert lake_rows(again) == source_rows(again)


def test_tables_that_cannot_be_in_the_lake_do_not_stop_a_batch_of_only_such_tables(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    """Each is refused for a reason of its own, so it is not about the lake."""
    apply_batch(spark, source.stage())
    for name in ("bad", "worse"):
        source.table(name, (column("a"), column("_file")), key=("a",)).insert(1, 2)
    assert set(apply_batch(spark, aside(source.stage())).set_aside) == {
        "public.bad",
        "public.worse",
    }
    table.insert(9, "z", 0)
    assert not apply_batch(spark, aside(source.stage())).set_aside
    assert lake_rows(table) == source_rows(table)


def renamed(table: Relation, name: str) -> None:
    """Rename a table of the source."""
    version = dataclasses.replace(table.version, table_name=name, version=1, files=())
    del table.source.relations[table.full_name]
    table.versions.append(version)
    table.name = name
    table.source.relations[table.full_name] = table


def test_a_table_whose_former_target_another_one_has_stays_set_aside(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    """``t`` is renamed, and a new ``t`` is made. The copy of the old one is refused in its new target."""
    apply_batch(spark, source.stage())
    theirs = TableName("lake", source.slot_name, "t_old").sql
    spark.sql(f"CREATE TABLE {theirs} (mine int)")
    spark.sql(f"INSERT INTO {theirs} VALUES (1)")
    renamed(table, "t_old")
    source.copy(table)
    new = source.table("t", (column("a"), column("b", "string")), key=("a",), oid=table.oid + 1000)
    new.insert(1, "new")
    source.copy(new)
    for number in (5, 6, 7):
        batch = aside(source.stage())
        assert list(apply_batch(spark, batch).set_aside) == ["public.t_old"]
        assert list(waiting(spark, batch)) == [table.oid]
        assert lake_rows(new) == source_rows(new)
        table.insert(number, "b", 0)
        new.insert(number, "x")
    spark.sql(f"DROP TABLE {theirs}")
    source.copy(table)
    batch = aside(source.stage())
    assert not apply_batch(spark, batch).set_aside
    assert waiting(spark, batch) == {}
    assert lake_rows(table) == source_rows(table)


def waiting(spark: SparkSession, job: ApplyJob) -> dict[int, Any]:
    """The tables that are set aside, by OID."""
    return checkpoint.read(spark, job, opened(spark, job).manifest).set_aside


class Killed(BaseException):
    """Ends the apply as a kill would."""


def manifest_of(source: Source, job: ApplyJob) -> Manifest:
    path = source.staging / job.manifest_uri.split("/staging/")[1]
    return Manifest.from_json(path.read_bytes())


def test_the_reason_names_the_column(source: Source) -> None:
    """It is all that the checkpoint table and a later replay say of the cause."""
    source.table("t", (column("a"),), key=("a",)).insert(1)
    job = source.stage()
    (target,) = targets(job, manifest_of(source, job))
    refused = RefusedTables("set_aside", checkpoint.Progress())
    refused.refuse(target, TableRefused("Its type changed.", table="public.t", column="a"))
    _, refusal = refused.set_aside[target.source.relation_oid]
    assert str(refusal) == "TableRefused: Its type changed. (column a)"


def test_what_is_refused_for_each_table_is_about_the_lake(source: Source) -> None:
    refused = RefusedTables("set_aside", checkpoint.Progress())

    def deny() -> None:
        raise LakeDenied("The catalog forbids it.")

    for each in ("t", "u"):
        source.table(each, (column("a"),), key=("a",)).insert(1)
    job = source.stage()
    one, two = targets(job, manifest_of(source, job))
    assert refused.unless_refused(one, deny) is None
    refused.raise_if_about_all()
    assert refused.unless_refused(two, deny) is None
    with pytest.raises(LakeDenied):
        refused.raise_if_about_all()


def test_a_table_that_waits_does_not_hide_that_all_others_are_refused(source: Source) -> None:
    for each in ("t", "u", "v"):
        source.table(each, (column("a"),), key=("a",)).insert(1)
    job = source.stage()
    waits, *others = targets(job, manifest_of(source, job))
    refusal = Refusal("RowMissing", "A row is missing.")
    aside_before = SetAside(waits.source.relation_oid, "public.t", Lsn(1), 1, refusal)
    progress = checkpoint.Progress(set_aside={waits.source.relation_oid: aside_before})
    refused = RefusedTables("set_aside", progress)

    def deny() -> None:
        raise LakeDenied("The catalog forbids it.")

    for target in (waits, *others):
        refused.unless_refused(target, deny)
    with pytest.raises(LakeDenied):
        refused.raise_if_about_all()
