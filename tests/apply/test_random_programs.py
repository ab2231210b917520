"""Random programs of row changes: whatever the source did and wherever the stream is cut, the lake equals it.

The seed is the test's parameter; a failing one can be run again by its id.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.rows import apply_few, apply_keyed, table_state
from tests.apply.build import Source, column
from tests.apply.conftest import source_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.apply.build import Relation

COLUMNS = (column("a"), column("b", "string"), column("c"), column("d", "string"))
_KEYS = 12


def _tables(source: Source, keyed_toast: tuple[str, ...]) -> list[Relation]:
    return [
        source.table("keyed", COLUMNS, key=("a",), toast=keyed_toast),
        source.table("pair", COLUMNS, key=("a", "d"), toast=keyed_toast),
        source.table("full", COLUMNS, key=("a",), identity="f", toast=("b",)),
        source.table("bag", COLUMNS, identity="f", toast=("b", "d")),
    ]


def _random_change(random_: random.Random, relation: Relation) -> None:
    """One change that the source would accept: keys stay unique."""
    key = relation.version.key_columns

    def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in key)

    row = {
        "a": random_.randrange(_KEYS),
        "b": random_.choice([None, "big" + str(random_.randrange(3))]),
        "c": random_.randrange(3),
        "d": "d" + str(random_.randrange(2)),
    }
    row |= {each.name: random_.randrange(3) for each in relation.version.columns[len(row) :]}
    taken = key and any(key_of(each) == key_of(row) for each in relation.rows)
    action = random_.choices("IUMDT", (6, 6, 4, 3, 0.2))[0]
    if action == "I" and not taken:
        relation.insert(*row.values())
    elif action == "T":
        relation.truncate()
    elif relation.rows and action in "UMD":
        victim = random_.choice(relation.rows)
        changed = random_.sample(["b", "c"], random_.randrange(3))
        changes = {name: row[name] for name in changed}
        if action == "M" and not taken:
            changes |= {"a": row["a"], "d": row["d"]}
        if action == "D":
            relation.delete(lambda each: each is victim)
        else:
            relation.update(lambda each: each is victim, changes)


def _swap(random_: random.Random, relation: Relation) -> None:
    """What only a deferrable key allows: two rows change keys."""
    if len(relation.rows) > 1:
        one, other = random_.sample(relation.rows, 2)
        first, second = one["a"], other["a"]
        relation.update(lambda each: each is one, {"a": second})
        relation.update(lambda each: each is other, {"a": first})


def _rewrite(random_: random.Random, relation: Relation) -> None:
    """What only a catalog knows: a column comes with another value in each row that is there."""
    columns = relation.version.columns
    relation.alter(columns=(*columns, column(f"later{len(columns)}")))
    for row in relation.rows:
        row[relation.version.columns[-1].name] = random_.randrange(3)


@pytest.mark.parametrize(
    "tasks", ["no task", pytest.param("one task", marks=pytest.mark.exhaustive), "several tasks"]
)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))]
)
def test_the_lake_equals_the_source(
    spark: SparkSession,
    source: Source,
    lake_rows: Any,
    seed: int,
    tasks: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As of tables so large that a closer look at the keys is worth it.
    monkeypatch.setattr(apply_keyed, "_MANY_ROWS", 0)
    monkeypatch.setattr(apply_keyed, "_KEYS_FOR_WORDS", 0)
    if tasks != "no task":
        monkeypatch.setattr(apply_few, "MOST_CHANGES", 0)
    if tasks == "several tasks":
        monkeypatch.setattr(table_state, "_ROWS_OF_ONE_TASK", 0)
    random_ = random.Random(seed)  # noqa: S311 - not for secrets
    # The driver leaves changes with values that were not sent to Spark.
    tables = _tables(source, () if tasks == "no task" else ("b", "d"))
    reached: list[str] = []
    with crash_points.watched(reached.append):
        _run(spark, source, tables, random_)
    for relation in tables:
        assert lake_rows(relation) == source_rows(relation), relation.name
    assert ("apply.after_row_delta" in reached) == (tasks == "no task")


def _run(
    spark: SparkSession, source: Source, tables: list[Relation], random_: random.Random
) -> None:
    for _ in range(4):
        for _ in range(random_.randrange(1, 25)):
            with source.transaction():
                for _ in range(random_.randrange(1, 6)):
                    _random_change(random_, random_.choice(tables))
                    if random_.random() < 0.05:
                        _rewrite(random_, tables[2])
                if random_.random() < 0.3:
                    _swap(random_, tables[2])
        plan = source.stage(random_.randrange(1, len(source.pending) + 1))
        apply_batch(spark, plan)
    # It tells what rows hold that nobody changed since their table was rewritten.
    tables[2].update_all({})
    apply_batch(spark, source.stage())
