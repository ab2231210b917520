"""A change of a row that the lake lacks is refused, and the table stays as it is."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.errors import RowMissing
from tests.apply.build import Source, column
from tests.apply.conftest import source_rows
from tests.apply.drivers import loaded, name_of
from tests.apply.fold_cases import a_is
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.apply.build import Relation


@pytest.mark.parametrize("toasted", [{"c": 1}, {"a": 9}])
def test_a_partial_update_of_a_row_that_is_not_there(
    spark: SparkSession, source: Source, table: Relation, toasted: dict[str, int]
) -> None:
    apply_batch(spark, source.stage())
    spark.sql(f"DELETE FROM {name_of(table).sql} WHERE a = 2")
    head = loaded(spark, table).head
    table.update(a_is(2), toasted)
    with pytest.raises(RowMissing, match="copy the table again") as raised:
        apply_batch(spark, source.stage())
    assert raised.value.table == "public.t"
    assert loaded(spark, table).head == head


def test_a_deleted_row_without_a_key_that_is_not_there(spark: SparkSession, source: Source) -> None:
    full = source.table("f", (column("a"),), identity="f")
    full.insert(1)
    full.insert(2)
    apply_batch(spark, source.stage())
    spark.sql(f"DELETE FROM {name_of(full).sql} WHERE a = 2")
    full.delete(a_is(2))
    with pytest.raises(RowMissing):
        apply_batch(spark, source.stage())


def _replace_unseen(table: Relation, a: int) -> None:
    """Delete a row, and let another one come under its key without an event."""
    table.delete(a_is(a))
    table.publishes = ""
    table.insert(a, "of the row that came", 0)
    table.publishes = "IUDT"


def _stay(table: Relation, a: int) -> None:
    table.update(a_is(a), {"c": 1})


def _move(table: Relation, a: int) -> None:
    table.update(a_is(a), {"a": 9})


def _stay_and_move(table: Relation, a: int) -> None:
    _stay(table, a)
    _move(table, a)


@pytest.mark.parametrize(
    ("where", "change"),
    slow_but_each(
        3,
        [
            (where, change)
            for where in ("in the target", "in the batch", "marked as deleted")
            for change in (_stay, _move, _stay_and_move)
        ],
    ),
)
def test_a_row_that_came_without_an_event_gets_nothing_of_the_one_before(
    spark: SparkSession,
    source: Source,
    table: Relation,
    lake_rows: Any,
    where: str,
    change: Callable[[Relation, int], None],
) -> None:
    """Its update leaves out a large value, and another row had one under the same key."""
    options: dict[str, Any] = {"soft_delete": where == "marked as deleted"}
    apply_batch(spark, dataclasses.replace(source.stage(), **options))
    a = 2
    if where == "in the batch":
        a = 4
        table.insert(a, "of the row that went", 0)
    _replace_unseen(table, a)
    if where == "marked as deleted":
        apply_batch(spark, dataclasses.replace(source.stage(), **options))
    before = lake_rows(table)
    change(table, a)
    table.insert(5, "whole", 0)
    job = dataclasses.replace(source.stage(), **options)
    with pytest.raises(RowMissing, match="does not hold"):
        apply_batch(spark, job)
    assert lake_rows(table) == before
    apply_batch(spark, dataclasses.replace(job, on_row_refused="quarantine"))
    marks = ("_pgoutput_op",) if options["soft_delete"] else ()
    found = [row for row in lake_rows(table, "a", "b", "c", *marks) if "D" not in row]
    wanted = [row for row in source_rows(table) if row[0] not in {a, 9}]
    assert [row[:3] for row in found] == wanted
