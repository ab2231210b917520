"""Columns that the user renames, and columns that have the same text in all rows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused
from airflow_provider_pgoutput.tasks.plan_options import table_options
from tests.apply.build import Relation, Source, column, numbered, replay_of
from tests.apply.conftest import sort, source_rows
from tests.apply.drivers import loaded, name_of
from tests.apply.test_crashes import Killed
from tests.docs.blocks import blocks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob

ACME = {"tenant": "acme"}


def options(**of_table: Any) -> dict[str, Any]:
    return {"table_options": {"public.t": TableOptions(**of_table)}}


def staged(source: Source, chosen: dict[str, Any] | None = None, **more: Any) -> ApplyJob:
    return replace(source.stage(), **(chosen or {}), **more)


def lake(spark: SparkSession, table: Relation, *names: str, where: str = "true") -> list[Any]:
    name = name_of(table)
    spark.catalog.refreshTable(name.sql)
    frame = spark.table(name.sql).where(where)
    return sort(tuple(row) for row in frame.select(*names).collect())


def with_constant(table: Relation, text: str = "acme") -> list[Any]:
    return sort((*row, text) for row in source_rows(table))


@pytest.fixture
def people(source: Source) -> Relation:
    columns = numbered((column("id"), column("name", "string"), column("note", "string")))
    table = source.table("t", columns, key=("id",), toast=("note",))
    for i in range(1, 4):
        table.insert(i, f"n{i}", f"note {i}")
    return table


MODES: list[Any] = [
    pytest.param({}, marks=pytest.mark.slow),
    {"format_version": 3},
    {"write_mode": "copy-on-write"},
    {"soft_delete": True},
    {"mode": "history"},
]


@pytest.mark.spark
@pytest.mark.parametrize("how", MODES, ids=str)
def test_every_way_to_write_a_row_knows_the_names_and_the_constant(
    spark: SparkSession, source: Source, people: Relation, how: dict[str, Any]
) -> None:
    chosen = {
        **options(renamed_columns={"id": "number", "note": "text"}, constant_columns=ACME),
        **how,
    }
    names = ("number", "name", "text", "tenant")
    now = {"history": "_pgoutput_is_current"}.get(how.get("mode", ""), "true")
    now = "_pgoutput_op <> 'D'" if how.get("soft_delete") else now

    def check() -> None:
        apply_batch(spark, staged(source, chosen))
        assert lake(spark, people, *names, where=now) == with_constant(people)
        assert lake(spark, people, "tenant", where="tenant IS NULL OR tenant <> 'acme'") == []

    check()
    people.update(lambda row: row["id"] == 1, {"name": "other"})  # leaves the note out
    people.insert(7, "n7", None)
    people.delete(lambda row: row["id"] == 2)
    check()
    people.update(lambda row: row["id"] == 3, {"id": 33})
    check()
    for i in range(100, 400):
        people.insert(i, f"n{i}", f"note {i}")
    people.update_all(lambda row: {"name": f"{row['name']}!"})
    check()
    people.truncate()
    people.insert(1, "again", None)
    check()
    source.copy(people)
    people.insert(2, "after the copy", None)
    check()


@pytest.mark.spark
def test_a_table_without_a_key_and_a_log_know_them(spark: SparkSession, source: Source) -> None:
    columns = numbered((column("a"), column("b", "string")))
    keyless = source.table("k", columns, identity="f")
    log = source.table("t", columns, key=("a",))
    chosen = {
        "table_options": {
            "public.k": TableOptions(renamed_columns={"b": "text"}, constant_columns=ACME),
            "public.t": TableOptions(
                mode="change_log", renamed_columns={"b": "text"}, constant_columns=ACME
            ),
        }
    }
    for table in (keyless, log):
        for a in (1, 1, 2) if table is keyless else (1, 2):
            table.insert(a, f"b{a}")
    apply_batch(spark, staged(source, chosen))
    for table in (keyless, log):
        table.delete(lambda row: row["a"] == 1)
        table.update(lambda row: row["a"] == 2, {"b": "new"})
    apply_batch(spark, staged(source, chosen))
    assert lake(spark, keyless, "a", "text", "tenant") == with_constant(keyless)
    assert lake(spark, log, "_pgoutput_op", "a", "text", "tenant") == sort(
        [
            ("I", 1, "b1", "acme"),
            ("I", 2, "b2", "acme"),
            ("D", 1, None, "acme"),
            ("U", 2, "new", "acme"),
        ]
    )


@pytest.mark.spark
@pytest.mark.parametrize("mode", ["upsert", "change_log", "history"])
def test_a_constant_that_comes_later_or_changes_holds_for_all_rows(
    spark: SparkSession, source: Source, people: Relation, mode: str
) -> None:
    apply_batch(spark, staged(source, mode=mode))
    for text in ("acme", "it's"):
        people.update(lambda row: row["id"] == 1, {"name": text})
        chosen = options(constant_columns={"tenant": text})
        apply_batch(spark, staged(source, chosen, mode=mode))
        assert set(lake(spark, people, "tenant")) == {(text,)}
        found = loaded(spark, people).properties["pgoutput.constant-columns"]
        assert json.loads(found) == {"tenant": text}
    people.insert(8, "n8", None)
    apply_batch(spark, staged(source, mode=mode))
    assert (None,) in lake(spark, people, "tenant", where="id = 8")
    assert lake(spark, people, "tenant", where="id = 3") == [("it's",)]


@pytest.mark.spark
def test_a_copy_changes_the_constant_of_rows_that_are_marked_as_deleted(
    spark: SparkSession, source: Source, people: Relation
) -> None:
    people.delete(lambda row: row["id"] == 2)
    apply_batch(spark, staged(source, options(constant_columns=ACME), soft_delete=True))
    people.insert(9, "n9", None)
    source.copy(people)
    apply_batch(spark, staged(source, options(constant_columns={"tenant": "b"}), soft_delete=True))
    assert set(lake(spark, people, "tenant")) == {("b",)}


@pytest.mark.spark
def test_a_killed_attempt_leaves_a_column_that_the_next_one_fills(
    spark: SparkSession, source: Source, people: Relation
) -> None:
    apply_batch(spark, source.stage())
    people.insert(9, "n9", None)
    job = staged(source, options(constant_columns=ACME))
    for point in ("apply.after_columns", "apply.after_branch", "apply.before_publish"):
        killed_at(spark, job, point)
        assert set(lake(spark, people, "id")) == {(1,), (2,), (3,)}
    apply_batch(spark, job)
    assert lake(spark, people, "id", "name", "note", "tenant") == with_constant(people)


def killed_at(spark: SparkSession, job: ApplyJob, point: str) -> None:
    def reach(name: str) -> None:
        if name == point:
            raise Killed

    with crash_points.watched(reach), pytest.raises(Killed):
        apply_batch(spark, job)


@pytest.mark.spark
def test_a_replay_in_place_gives_rows_of_before_the_text_of_now(
    spark: SparkSession, source: Source, people: Relation
) -> None:
    apply_batch(spark, source.stage())
    jobs = []
    for i in (10, 11):
        people.insert(i, f"n{i}", None)
        jobs.append(staged(source, options(constant_columns=ACME)))
        apply_batch(spark, jobs[-1])
    replay(spark, replay_of(jobs[0], [each.manifest_uri for each in jobs], in_place=True))
    assert lake(spark, people, "id", "name", "note", "tenant") == with_constant(people)


@pytest.mark.spark
def test_a_column_that_is_renamed_at_the_source_and_here_is_one_column(
    spark: SparkSession, source: Source, people: Relation
) -> None:
    apply_batch(spark, source.stage())
    people.insert(4, "n4", None)
    apply_batch(spark, staged(source, options(renamed_columns={"name": "title"})))
    assert lake(spark, people, "id", "title", "note") == source_rows(people)
    renamed = people.version.columns
    for row in people.rows:
        row["label"] = row.pop("name")
    people.alter((renamed[0], replace(renamed[1], name="label"), renamed[2]))
    for row in people.rows:
        row["label"] = row["label"] or ""
    people.insert(5, "n5", None)
    apply_batch(spark, staged(source, options(renamed_columns={"label": "title"})))
    assert lake(spark, people, "id", where="title = 'n5'") == [(5,)]
    assert "label" not in spark.table(name_of(people).sql).columns


@pytest.mark.spark
def test_names_that_are_taken_are_refused(
    spark: SparkSession, source: Source, people: Relation
) -> None:
    apply_batch(spark, source.stage())
    spark.sql(f"ALTER TABLE {name_of(people).sql} ADD COLUMN own STRING")
    people.insert(4, "n4", None)
    job = source.stage()
    for chosen, message in (
        ({"renamed_columns": {"id": "name"}}, "has the name of another column"),
        ({"constant_columns": {"note": "x"}}, "has the name of another column"),
        ({"constant_columns": {"_pgoutput_seq": "x"}}, "is reserved"),
        ({"constant_columns": {"own": "x"}}, "that the target has already"),
    ):
        with pytest.raises(TableRefused, match=message):
            apply_batch(spark, replace(job, **options(**chosen)))
    for chosen in (
        {"constant_columns": {"a": "x"}, "renamed_columns": {"id": "a"}},
        {"renamed_columns": {"id": ""}},
        {"renamed_columns": {"id": "a", "name": "a"}},
    ):
        with pytest.raises(ConfigurationError):
            replace(job, **options(**chosen)).check()


@pytest.mark.spark
def test_the_options_of_the_page(spark: SparkSession, source: Source) -> None:
    blocks = (each.text for each in blocks_of("reference/tables.md"))
    (block,) = (text for text in blocks if "constant_columns" in text)
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102 - it is the page's own
    columns = numbered((column("id"), column("cust_nm", "string"), column("city", "string")))
    table = source.table("customers", columns, key=("id",))
    chosen = {"table_options": table_options(names["table_options"])}
    for i in range(3):
        table.insert(i, f"n{i}", "Bern")
    apply_batch(spark, staged(source, chosen))
    table.update(lambda row: row["id"] == 1, {"cust_nm": "Ann"})
    apply_batch(spark, staged(source, chosen))
    found = lake(spark, table, "customer_id", "name", "city", "tenant")
    assert found == with_constant(table)
    assert [str(each) for each in loaded(spark, table).java.spec().fields()] != []
