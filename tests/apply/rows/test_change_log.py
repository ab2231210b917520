"""A change log says which row an update was about, so the rows of the source follow from it."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG
from tests.apply.build import Source, column
from tests.apply.conftest import sort, source_rows
from tests.apply.fold_cases import a_is

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PAGE = Path(__file__).parents[3] / "docs/explanation/schema_changes.md"
_OLD_KEY = "_pgoutput_old_key"


def _apply(spark: SparkSession, source: Source) -> None:
    apply_batch(spark, replace(source.stage(), mode=CHANGE_LOG))


def test_an_update_that_moves_a_row_names_its_old_key(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    columns = (column("a"), column("b", "string"), column("c", "binary"), column("d"))
    plain = source.table("plain", columns, key=("a", "b", "c"), toast=("b",))
    full = source.table("full", columns, key=("a",), identity="f")
    for t in (plain, full):
        t.insert(1, "x", b"\x01\xff", 0)
        t.update(a_is(1), {"d": 1})
        t.update(a_is(1), {"a": 2})
        t.update(a_is(2), {"c": b"\x02"})
        t.delete(a_is(2))
    _apply(spark, source)
    first = {"a": "1", "b": "x", "c": "01ff"}
    assert lake_rows(plain, "_pgoutput_op", "a", "d", _OLD_KEY) == sort(
        [
            ("I", 1, 0, {}),
            ("U", 1, 1, {}),
            ("U", 2, 1, first),
            ("U", 2, 1, first | {"a": "2"}),
            ("D", 2, None, {}),
        ]
    )
    assert lake_rows(full, "_pgoutput_op", "a", "d", _OLD_KEY) == sort(
        [
            ("I", 1, 0, {}),
            ("U", 1, 1, {}),
            ("U", 2, 1, {"a": "1"}),
            ("U", 2, 1, {}),
            ("D", 2, 1, {}),
        ]
    )


def test_a_table_without_a_key_has_the_row_before_an_update(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    columns = (column("a"), column("b", "string"), column("m", "map<string, string>"))
    t = source.table("t", columns, key=(), identity="f")
    t.insert(1, None, [("k", "v")])
    t.update(a_is(1), {"a": 2})
    t.delete(a_is(2))
    _apply(spark, source)
    before = {"a": "1", "b": None, "m": '{"k":"v"}'}
    found = lake_rows(t, "_pgoutput_op", "a", _OLD_KEY)
    assert found == sort([("I", 1, {}), ("U", 2, before), ("D", 2, {})])


@pytest.mark.parametrize("seed", range(3))
def test_the_rows_follow_from_the_log(spark: SparkSession, source: Source, seed: int) -> None:
    """By the query of the page."""
    chosen = random.Random(seed)  # noqa: S311 - no secret
    t = source.table("t", (column("id"), column("v", "string")), key=("id",))
    for number in range(1, 9):
        t.insert(number, "first")
    source.pending.clear()
    source.copy(t)
    _apply(spark, source)
    for batch in range(3):
        for number in range(30):
            _change(t, chosen, f"{batch} {number}")
        _apply(spark, source)
    (query,) = re.findall(r"```sql\n(WITH kept.*?)```", _PAGE.read_text(), re.DOTALL)
    query = query.replace("lake.shop.orders", f"lake.{source.slot_name}.t")
    found = [(row["id"], row["v"]) for row in spark.sql(query).collect()]
    assert sort(found) == source_rows(t)


def _change(t: Any, chosen: random.Random, text: str) -> None:
    ids = [row["id"] for row in t.rows]
    free = sorted(set(range(1, 13)) - set(ids))
    what = chosen.choice(["insert", "update", "move", "move", "swap", "delete", "truncate"])
    if what == "truncate" and chosen.random() < 0.2:
        t.truncate()
    elif what == "insert" and free:
        t.insert(chosen.choice(free), text)
    elif not ids:
        return
    elif what == "update":
        t.update(_id_is(chosen.choice(ids)), {"v": text})
    elif what == "move" and free:
        t.update(_id_is(chosen.choice(ids)), {"id": chosen.choice(free), "v": text})
    elif what == "swap" and len(ids) > 1:
        one, other = chosen.sample(ids, 2)
        with t.source.transaction():
            t.update(_id_is(one), {"id": -1})
            t.update(_id_is(other), {"id": one})
            t.update(_id_is(-1), {"id": other})
    elif what == "delete":
        t.delete(_id_is(chosen.choice(ids)))


def _id_is(value: int) -> Any:
    return lambda row: row["id"] == value
