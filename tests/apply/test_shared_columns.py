"""Columns of tables that share one table of the lake, and options of theirs that do not go together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused
from tests.apply.build import Source, column
from tests.apply.conftest import sort, source_rows
from tests.apply.shared import COLUMNS, check, region_of, run, stage, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_columns_that_come_with_a_default_in_one_table_after_another(
    spark: SparkSession, source: Source
) -> None:
    eu, us = tables(source, "eu", "us")
    for relation in (eu, us):
        relation.insert(1, "a", "note")
        relation.insert(2, "b", "note")
    run(spark, (source,), {"format_version": 3})
    for relation, default in ((eu, "7"), (us, "9")):
        new = replace(column("grade", missing=default), attribute_number=4)
        relation.alter((*relation.version.columns, new))
        relation.insert(3, "c", None, 5)
        run(spark, (source,), {"format_version": 3})
        relation.update(lambda row: row["id"] == 1, {"name": "again"})
    run(spark, (source,), {"format_version": 3})
    frame = spark.table(TableName("lake", source.slot_name, "people").sql)
    found = sort(
        tuple(row) for row in frame.select("id", "name", "note", "grade", "region").collect()
    )
    assert found == sort((*row, region_of(each)) for each in (eu, us) for row in source_rows(each))


@pytest.mark.spark
def test_what_would_change_the_rows_of_others_is_refused(
    spark: SparkSession, source: Source
) -> None:
    eu, us = tables(source, "eu", "us")
    for relation in (eu, us):
        relation.insert(1, "a", "note")
    run(spark, (source,), {})
    eu.insert(2, "b", None)
    (job,) = stage((source,), {})
    options = job.table_options
    other = replace(options["eu.people"], constant_columns={"region": "other"})
    for changed, message in (
        ({"eu.people": other}, "with other constants"),
        ({"eu.people": TableOptions(target="people")}, "is shared by"),
        (
            {"eu.people": replace(options["eu.people"], constant_columns={"land": "x"})},
            "is shared by",
        ),
        ({"eu.people": options["us.people"]}, "with other constants|also that of"),
    ):
        with pytest.raises((TableRefused, ConfigurationError), match=message):
            apply_batch(spark, replace(job, table_options={**options, **changed}))
    apply_batch(spark, job)
    renamed = (COLUMNS[0], replace(COLUMNS[1], name="label"), COLUMNS[2])
    for row in eu.rows:
        row["label"] = row["name"]
    rows = [{**row} for row in eu.rows]
    eu.alter(renamed)
    eu.rows = [{k: v for k, v in row.items() if k != "name"} for row in rows]
    eu.insert(3, "c", None)
    (job,) = stage((source,), {})
    with pytest.raises(TableRefused, match="other tables share the column 'name'"):
        apply_batch(spark, job)
    named = replace(job.table_options["eu.people"], renamed_columns={"label": "name"})
    apply_batch(spark, replace(job, table_options={**job.table_options, "eu.people": named}))
    check(spark, (eu, us), {})


@pytest.mark.spark
def test_a_column_that_is_dropped_and_made_again_in_one_table(
    spark: SparkSession, source: Source
) -> None:
    eu, us = tables(source, "eu", "us")
    for relation in (eu, us):
        relation.insert(1, "a", "note")
    (job,) = stage((source,), {})
    apply_batch(spark, job)
    again = (COLUMNS[0], COLUMNS[2], replace(COLUMNS[1], attribute_number=4))
    for row in eu.rows:
        row["name"] = None
    eu.alter(again)
    eu.insert(2, "note", "b")
    us.insert(2, "b", "note")
    (job,) = stage((source,), {})
    with pytest.raises(TableRefused, match="share the column 'name'"):
        apply_batch(spark, job)
    named = replace(job.table_options["eu.people"], renamed_columns={"name": "label"})
    apply_batch(spark, replace(job, table_options={**job.table_options, "eu.people": named}))
    frame = spark.table(TableName("lake", source.slot_name, "people").sql)
    found = frame.select("id", "note", "name", "label", "region")
    assert sort(tuple(row) for row in found.collect()) == sort(
        [
            (1, "note", "a", None, region_of(eu)),
            (2, "note", None, "b", region_of(eu)),
            (1, "note", "a", None, region_of(us)),
            (2, "note", "b", None, region_of(us)),
        ]
    )


@pytest.mark.spark
def test_columns_that_swap_their_names_in_one_table(spark: SparkSession, source: Source) -> None:
    eu, us = tables(source, "eu", "us")
    for relation in (eu, us):
        relation.insert(1, "a", "note")
    (job,) = stage((source,), {})
    apply_batch(spark, job)
    eu.alter((COLUMNS[0], replace(COLUMNS[1], name="note"), replace(COLUMNS[2], name="name")))
    eu.rows = [{"id": 1, "note": "a", "name": "note"}]
    eu.insert(2, "b", "other")
    (job,) = stage((source,), {})
    with pytest.raises(TableRefused) as refused:
        apply_batch(spark, job)
    assert "renamed_columns={'note': 'name', 'name': 'note'}" in str(refused.value)
    names = {"note": "name", "name": "note"}
    named = replace(job.table_options["eu.people"], renamed_columns=names)
    apply_batch(spark, replace(job, table_options={**job.table_options, "eu.people": named}))
    frame = spark.table(TableName("lake", source.slot_name, "people").sql)
    found = frame.select("id", "name", "note", "region").collect()
    assert sort(tuple(row) for row in found) == sort(
        [
            (1, "a", "note", region_of(eu)),
            (2, "b", "other", region_of(eu)),
            (1, "a", "note", region_of(us)),
        ]
    )


def test_a_shared_table_needs_a_constant() -> None:
    with pytest.raises(ConfigurationError, match="which rows are this table's"):
        TableOptions(shared=True).check("public.t")


@pytest.mark.parametrize(
    "options",
    [
        TableOptions(constant_columns={"_pgoutput_slice": "eu"}),
        TableOptions(renamed_columns={"a": "_PGOUTPUT_op"}),
    ],
)
def test_no_column_gets_a_name_like_the_pipelines_own(options: TableOptions) -> None:
    with pytest.raises(ConfigurationError, match="begin with '_pgoutput_'"):
        options.check("public.t")


@pytest.mark.spark
def test_what_two_pipelines_have_to_give_differently_or_alike(
    spark: SparkSession, source: Source, second: Source
) -> None:
    for each in (source, second):
        tables(each, "eu")[0].insert(1, "a", None)
    mine, theirs = stage((source, second), {"soft_delete": True})
    apply_batch(spark, mine)
    with pytest.raises(TableRefused, match="with soft_delete=True"):
        apply_batch(spark, replace(theirs, soft_delete=False))
    with pytest.raises(TableRefused, match="with these constants are written from another slot"):
        apply_batch(spark, replace(theirs, table_options=mine.table_options))
