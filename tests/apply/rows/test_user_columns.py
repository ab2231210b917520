"""Columns that users added to a target: a row keeps its values in them, and gets nothing of another row's."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from tests.apply.build import Source, numbered
from tests.apply.conftest import source_rows
from tests.apply.fold_cases import ABC, a_is

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.apply.build import Relation


def noted(
    spark: SparkSession, source: Source, rows: int, soft_delete: bool = False, **options: Any
) -> Relation:
    """A table in the lake whose rows have notes of a user's."""
    t = source.table("t", numbered(ABC), **options)
    for a in range(1, rows + 1):
        t.insert(a, "x", 0)
    apply_batch(spark, replace(source.stage(), soft_delete=soft_delete))
    name = TableName("lake", source.slot_name, "t").sql
    spark.sql(f"ALTER TABLE {name} ADD COLUMN note string")
    spark.sql(f"UPDATE {name} SET note = concat('n', a)")
    return t


@pytest.mark.parametrize(
    ("identity", "soft_delete", "one_by_one"),
    [
        # Each two of the three are seen together in every run of the tests.
        pytest.param(
            identity,
            soft_delete,
            one_by_one,
            id=f"{identity}-{'soft delete' * soft_delete}-{'one by one' if one_by_one else 'one batch'}",
            marks=() if (identity == "f") ^ soft_delete == one_by_one else pytest.mark.exhaustive,
        )
        for identity in ("d", "f")
        for soft_delete in (False, True)
        for one_by_one in (False, True)
    ],
)
def test_a_row_that_came_under_a_key_has_nothing_of_the_one_before(
    spark: SparkSession,
    source: Source,
    lake_rows: Any,
    identity: str,
    soft_delete: bool,
    one_by_one: bool,
) -> None:
    t = noted(spark, source, 8, soft_delete, key=("a",), identity=identity)
    with source.transaction():
        t.update(a_is(1), {"a": 9})
        t.update(a_is(2), {"a": 1})
        t.update(a_is(9), {"a": 2})
    t.delete(a_is(3))
    t.insert(3, "again", 0)
    with source.transaction():
        t.delete(a_is(4))
        t.update(a_is(5), {"a": 4})
    t.update(a_is(6), {"c": 1})
    t.update(a_is(6), {"b": "y"})
    t.update(a_is(7), {"c": 2})
    t.delete(a_is(7))
    # To another key and back again is a row that came, too.
    t.update(a_is(8), {"a": 10})
    t.update(a_is(10), {"a": 8})
    while source.pending:
        apply_batch(
            spark, replace(source.stage(1 if one_by_one else None), soft_delete=soft_delete)
        )
    rows = lake_rows(t, "a", "note", *(["_pgoutput_op"] if soft_delete else []))
    found = {row[0]: row[1] for row in rows if row[-1] != "D"}
    assert found == {1: None, 2: None, 3: None, 4: None, 6: "n6", 8: None}
    if soft_delete:
        gone = {row[0]: row[1] for row in rows if row[-1] == "D"}
        # Whole rows are netted, so of a row of one transaction alone nothing is known.
        assert gone.pop(9, None) is None
        assert gone == {5: "n5", 7: "n7", 10: None}
    else:
        assert lake_rows(t) == source_rows(t)


def test_a_copy_leaves_each_row_what_users_put_beside_it(
    spark: SparkSession, source: Source, lake_rows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    t = noted(spark, source, 3, key=("a",))
    t.update(a_is(1), {"b": "y"})
    t.delete(a_is(2))
    t.insert(4, "new", 0)
    source.pending.clear()  # Nobody saw it.
    source.copy(t)
    t.update(a_is(3), {"c": 1})
    apply_batch(spark, source.stage())
    assert lake_rows(t, "a", "b", "c", "note") == [
        (1, "y", 0, "n1"),
        (3, "x", 1, "n3"),
        (4, "new", 0, None),
    ]
    assert not [each for each in caplog.records if "the copy replaced" in each.getMessage()]


def test_a_copy_gives_a_row_that_came_back_nothing_of_the_deleted_one(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = noted(spark, source, 3, soft_delete=True, key=("a",))
    t.delete(a_is(1))
    t.delete(a_is(2))
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    t.insert(1, "back", 0)
    source.pending.clear()  # Nobody saw it.
    source.copy(t)
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    assert lake_rows(t, "a", "note", "_pgoutput_op") == [
        (1, None, "C"),
        (2, "n2", "D"),
        (3, "n3", "C"),
    ]


@pytest.mark.parametrize("why", ["no key", "another table"])
def test_a_copy_that_cannot_tell_the_rows_says_what_goes(
    spark: SparkSession,
    source: Source,
    lake_rows: Any,
    caplog: pytest.LogCaptureFixture,
    why: str,
) -> None:
    t = noted(spark, source, 2, key=() if why == "no key" else ("a",), identity="f")
    if why == "another table":
        t.oid += 1
    t.insert(3, "x", 0)
    source.pending.clear()  # Nobody saw it.
    source.copy(t)
    apply_batch(spark, source.stage())
    assert lake_rows(t, "a", "note") == [(1, None), (2, None), (3, None)]
    (warning,) = [
        each
        for each in caplog.records
        if each.levelno == logging.WARNING and "the copy replaced" in each.getMessage()
    ]
    assert f"{source.slot_name}.t" in warning.getMessage()
    assert " note," in warning.getMessage()
    assert "n1" not in warning.getMessage()


def test_a_copy_gives_no_row_what_rows_had_that_were_not_told_apart_by_its_key(
    spark: SparkSession, source: Source, lake_rows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    t = noted(spark, source, 3, key=("a",))
    t.delete(a_is(1))
    t.update(a_is(2), {"c": 2})
    t.update(a_is(3), {"c": 3})
    # The lake has three rows with 0, and a fourth row is the one that has it now.
    t.insert(4, "new", 0)
    t.alter(key=("c",))
    source.pending.clear()  # Nobody saw it.
    source.copy(t)
    apply_batch(spark, source.stage())
    assert lake_rows(t, "a", "note") == [(2, None), (3, None), (4, None)]
    (warning,) = [
        each.getMessage()
        for each in caplog.records
        if each.levelno == logging.WARNING and "which new row is which old one" in each.getMessage()
    ]
    assert " note," in warning
