"""Tables of many columns: no plan of Spark becomes deeper with each of them, which would end its JVM.

What is not here: as many columns as PostgreSQL allows, out of a real server
(``tests/conformance/test_wide_and_odd_tables.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.pipeline import apply_batch
from tests.apply.build import Source, column
from tests.apply.conftest import source_rows
from tests.apply.fold_cases import a_is

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.apply.build import Relation

NAMES = tuple(f"c{number}" for number in range(110))


def _wide(source: Source, name: str = "t", **how: Any) -> Relation:
    """A table with a column ``a`` and many others."""
    return source.table(name, (column("a"), *(column(each, "string") for each in NAMES)), **how)


def test_values_left_out_of_updates_and_of_moves(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    updated = _wide(source, "updated", key=("a",), toast=NAMES)
    moved = _wide(source, "moved", key=("a",), toast=NAMES)
    for a in (1, 2):
        updated.insert(a, *(f"{a} {name}" for name in NAMES))
        moved.insert(a, *(f"{a} {name}" for name in NAMES))
    apply_batch(spark, source.stage())
    updated.update(a_is(1), {"c7": "new"})
    with source.transaction():
        moved.update(a_is(1), {"a": 3, "c8": None})
        moved.update(a_is(2), {"a": 1, "c9": "new"})
        moved.update(a_is(3), {"a": 2})
    apply_batch(spark, source.stage())
    assert lake_rows(updated) == source_rows(updated)
    assert lake_rows(moved) == source_rows(moved)


def test_soft_delete(spark: SparkSession, source: Source, lake_rows: Any) -> None:
    """A delete tells the key only, and all values are kept."""
    table = _wide(source, key=("a",))
    table.insert(1, *NAMES)
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    table.delete(a_is(1))
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    assert lake_rows(table, "a", *NAMES, "_pgoutput_op") == [(1, *NAMES, "D")]


def test_whole_rows_without_a_key(spark: SparkSession, source: Source, lake_rows: Any) -> None:
    names = tuple(f"c{number}" for number in range(300))
    table = source.table("t", (column("a"), *(column(each) for each in names)), identity="f")
    for a in (1, 1, 2):
        table.insert(a, *range(300))
    apply_batch(spark, source.stage())
    table.delete(a_is(1))
    table.update(a_is(2), {"c1": None})
    apply_batch(spark, source.stage())
    assert lake_rows(table) == source_rows(table)
