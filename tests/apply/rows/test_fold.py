"""Every case of the fold, end to end: the lake equals the source, however the stream is cut."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.rows import apply_few, table_state
from tests.apply.conftest import source_rows
from tests.apply.fold_cases import CASES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob
    from tests.apply.build import Relation, Source


def _comparable(rows: list[tuple[Any, ...]]) -> list[str]:
    """NaN equals NaN, and -0.0 does not equal 0.0."""
    return sorted(repr([float("nan") if _is_nan(v) else v for v in row]) for row in rows)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _batches(source: Source, cut: str) -> tuple[list[ApplyJob], list[Relation]]:
    """Run all cases side by side, a step of each at a time, and stage as ``cut`` says."""
    running = [case(source) for case in CASES]
    plans, relations, step = [], [], 0
    while running:
        alive = []
        for each in running:
            relation = next(each, None)
            if relation is not None:
                alive.append(each)
                if step == 0:
                    relations.append(relation)
        running = alive
        if cut == "each step" or (cut == "first step" and step == 0):
            plans.append(source.stage())
        step += 1
    plans.append(source.stage())
    return plans, relations


@pytest.mark.parametrize(
    ("cut", "tasks"),
    [
        ("nowhere", "one task"),
        ("nowhere", "several tasks"),
        pytest.param("first step", "one task", marks=pytest.mark.exhaustive),
        pytest.param("each step", "one task", marks=pytest.mark.exhaustive),
        ("each step", "no task where there need be none"),
    ],
)
def test_the_lake_equals_the_source(
    spark: SparkSession,
    source: Source,
    lake_rows: Any,
    cut: str,
    tasks: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "need" not in tasks:
        monkeypatch.setattr(apply_few, "MOST_CHANGES", 0)
    if tasks == "several tasks":
        monkeypatch.setattr(table_state, "_ROWS_OF_ONE_TASK", 0)
    plans, relations = _batches(source, cut)
    for plan in plans:
        apply_batch(spark, plan)
    differences = {}
    for relation in relations:
        found = _comparable([tuple(map(_plain, row)) for row in lake_rows(relation)])
        if found != (wanted := _comparable(source_rows(relation))):
            differences[relation.name] = (found, wanted)
    assert not differences
    for plan in plans:
        assert apply_batch(spark, plan).already_applied


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(sorted(value.items()))
    return bytes(value) if isinstance(value, bytearray) else value
