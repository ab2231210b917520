"""Apply ends at each named point between two durable steps, and is run again: once, whole, no leftovers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import FILL_PREFIX, IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.rows import apply_few
from airflow_provider_pgoutput.batch.answers import SET_ASIDE
from airflow_provider_pgoutput.batch.checkpoint import SUMMARY_END_LSN
from airflow_provider_pgoutput.errors import CommitStateUnknown, LakeDenied
from tests.apply.build import Source, column
from tests.apply.conftest import source_rows
from tests.apply.fold_cases import a_is
from tests.faults.rest_catalog import Fault

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob
    from airflow_provider_pgoutput.batch.table_version import Column
    from tests.apply.build import Relation
    from tests.faults.rest_catalog import Commit, RestCatalog

POINTS = (
    "apply.after_branch",
    "apply.after_copy",
    "apply.after_delete",
    "apply.after_append",
    "apply.before_publish",
    "apply.after_prepare",
    "apply.after_publish",
    "apply.between_publishes",
    "apply.after_side_append",
    "apply.after_side_publish",
    "apply.before_checkpoint",
    "apply.after_checkpoint",
)
#: What only the driver's own way passes, and what is passed on the way of Spark in its place.
OF_FEW = ("apply.before_row_delta", "apply.after_row_delta")
OF_MANY = ("apply.after_branch", "apply.after_delete", "apply.after_append", "apply.before_publish")


class Killed(BaseException):
    """Ends the apply as a kill would: nothing of ours catches it."""


def _two_tables(source: Source) -> tuple[ApplyJob, ApplyJob, list[Relation]]:
    """A first batch, and a second one with changes of one table and a copy of the other.

    Both hold logical messages.
    """
    one = source.table("one", (column("a"), column("b", "string")), key=("a",))
    two = source.table("two", (column("a"), column("b", "string")), key=("a",))
    for relation in (one, two):
        relation.insert(1, "x")
        relation.insert(2, "y")
    source.message(b"first", transactional=False)
    first = source.stage()
    source.copy(two)
    for relation in (one, two):
        relation.update(a_is(1), {"a": 5})
        relation.delete(a_is(2))
        relation.insert(3, "z")
    source.message(b"second", transactional=True)
    source.message(b"third", transactional=False)
    return first, source.stage(), [one, two]


def _ours(spark: SparkSession, relation: Relation) -> tuple[int, list[str]]:
    """How many commits in main's history carry our keys, and the branches that are left."""
    name = TableName("lake", relation.source.slot_name, relation.name)
    table = IcebergTable.load(spark, name)
    assert table is not None
    count, snapshot = 0, table.java.currentSnapshot()
    while snapshot is not None:
        count += snapshot.summary().get(SUMMARY_END_LSN) is not None
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.java.snapshot(parent)
    return count, list(table.branch_ages_ms())


@pytest.mark.parametrize(
    ("point", "most_changes"),
    [*((each, None) for each in (*POINTS, *OF_FEW)), *((each, 0) for each in OF_MANY)],
)
def test_an_apply_that_was_killed_is_run_again(
    spark: SparkSession,
    source: Source,
    lake_rows: Any,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    most_changes: int | None,
) -> None:
    if most_changes is not None:
        monkeypatch.setattr(apply_few, "MOST_CHANGES", most_changes)
    first, second, relations = _two_tables(source)
    apply_batch(spark, first)
    reached: list[str] = []

    def reach(name: str) -> None:
        if name == point and not reached:
            reached.append(name)
            raise Killed

    with crash_points.watched(reach), pytest.raises(Killed):
        apply_batch(spark, second)
    again = apply_batch(spark, second)
    assert again.already_applied == (point == "apply.after_checkpoint")
    for relation in relations:
        assert lake_rows(relation) == source_rows(relation)
        assert _ours(spark, relation) == (2, [])
    messages = spark.table(f"lake.{source.slot_name}.pgoutput_messages").orderBy("lsn")
    assert [bytes(row["content"]) for row in messages.collect()] == [b"first", b"second", b"third"]
    rows = spark.table(f"lake.{source.slot_name}.pgoutput_checkpoint")
    # Two batches of two tables, and a row for each batch.
    assert rows.count() == 6


@pytest.mark.parametrize("committed", [True, False])
def test_a_catalog_that_does_not_say_whether_it_committed(
    spark: SparkSession,
    source: Source,
    lake_rows: Any,
    monkeypatch: pytest.MonkeyPatch,
    committed: bool,
) -> None:
    first, second, relations = _two_tables(source)
    apply_batch(spark, first)
    real = IcebergTable.publish
    lost: list[Any] = []

    def without_an_answer(self: IcebergTable, *given: Any, **named: Any) -> int:
        if lost:
            return real(self, *given, **named)
        lost.append(self.name)
        if committed:
            real(self, *given, **named)
        raise CommitStateUnknown("The answer was lost.")

    monkeypatch.setattr(IcebergTable, "publish", without_an_answer)
    apply_batch(spark, second)
    assert lost
    for relation in relations:
        assert lake_rows(relation) == source_rows(relation)
        assert _ours(spark, relation) == (2, [])


@pytest.mark.parametrize("committed", [True, False])
def test_a_lost_answer_and_a_look_that_is_denied_set_nothing_aside(
    spark: SparkSession,
    source: Source,
    lake_rows: Any,
    rest_catalog: RestCatalog,
    committed: bool,
) -> None:
    """The table may have the batch, or get it later. So only another try may decide."""
    first, second, relations = _two_tables(source)
    apply_batch(spark, first)
    job = dataclasses.replace(second, catalog_name="loses_answers", on_table_refused=SET_ASIDE)

    def publishes_and_is_the_last_that_is_let_in(commit: Commit) -> bool:
        chosen = commit.table == "one" and "main" in commit.set_references
        if chosen:
            rest_catalog.denies_table = "one"
        return chosen

    fault = Fault(publishes_and_is_the_last_that_is_let_in, 504, committed)
    rest_catalog.fail(fault)
    with pytest.raises(CommitStateUnknown, match="LakeDenied") as stop:
        apply_batch(spark, job)
    assert fault.happened == 1
    assert isinstance(stop.value.__cause__, LakeDenied)
    assert stop.value.table == f"{source.slot_name}.one"
    rows = spark.table(f"lake.{source.slot_name}.pgoutput_checkpoint")
    assert rows.where("set_aside IS NOT NULL").count() == 0
    rest_catalog.denies_table = None
    assert not apply_batch(spark, job).set_aside
    for relation in relations:
        assert lake_rows(relation) == source_rows(relation)
        assert _ours(spark, relation) == (2, [])


@pytest.mark.parametrize("changed_before", [True, False])
def test_a_type_that_got_a_new_column_gets_no_other_when_the_apply_is_run_again(
    spark: SparkSession,
    source: Source,
    lake_rows: Any,
    changed_before: bool,
) -> None:
    """The schema is committed before the rows are: each attempt finds the target changed already."""
    one, two, text = (
        dataclasses.replace(column(name, kind), attribute_number=number)
        for name, kind, number in (("a", "int", 1), ("b", "int", 2), ("b", "string", 2))
    )
    relation = source.table("t", (one, two), key=("a",))
    for a in (1, 2, 3):
        relation.insert(a, a * 10)
    first = source.stage()
    if changed_before:
        relation.update(a_is(1), {"b": 11})
    relation.alter((one, text))
    relation.rows[1]["b"] = "20"
    relation.update(a_is(2), {"b": "two"})
    second = dataclasses.replace(source.stage(), keep_retyped_columns=True)
    apply_batch(spark, first)

    with crash_points.watched(_killed_before_publishing):
        for _ in range(2):
            with pytest.raises(Killed):
                apply_batch(spark, second)
    apply_batch(spark, second)
    table = spark.table(f"lake.{source.slot_name}.t")
    assert [each for each in table.columns if not each.startswith("_")] == ["a", "b__old_2", "b"]
    assert lake_rows(relation, "a", "b", "b__old_2") == [
        (1, None, 11 if changed_before else 10),
        (2, "two", 20),
        (3, None, 30),
    ]


def _numbered(number: int, name: str, **more: Any) -> Column:
    return dataclasses.replace(column(name, **more), attribute_number=number)


@pytest.mark.parametrize("format_version", [2, 3])
def test_what_older_rows_show_is_there_when_a_batch_without_the_column_comes_between(
    spark: SparkSession, source: Source, lake_rows: Any, format_version: int
) -> None:
    """An attempt at a longer batch added the column, and was killed; the column is renamed later, too."""
    ids = (_numbered(1, "a"), _numbered(2, "b"))
    relation = source.table("t", ids, key=("a",))
    relation.insert(1, 10)
    apply_batch(spark, dataclasses.replace(source.stage(), format_version=format_version))
    relation.insert(2, 20)
    relation.update(a_is(1), {"b": 11})
    relation.alter((*ids, _numbered(3, "c", missing="7")))
    relation.insert(3, 30, 8)
    waiting, start = list(source.pending), source.staged_to
    longer = source.stage()
    with crash_points.watched(_killed_before_publishing), pytest.raises(Killed):
        apply_batch(spark, longer)
    source.pending, source.staged_to = waiting, start
    apply_batch(spark, source.stage(transactions=2))
    relation.alter((*ids, _numbered(3, "d", missing="7")))
    relation.rows[2]["d"] = 8
    relation.update(a_is(3), {"b": 31})
    apply_batch(spark, source.stage())
    assert lake_rows(relation) == source_rows(relation) == [(1, 11, 7), (2, 20, 7), (3, 31, 8)]
    properties = spark.sql(f"SHOW TBLPROPERTIES lake.{source.slot_name}.t").collect()
    assert not [row["key"] for row in properties if row["key"].startswith(FILL_PREFIX)]


def _killed_before_publishing(name: str) -> None:
    if name == "apply.before_publish":
        raise Killed
