"""Random sessions with changes of shape, from the source into the lake: it then holds what the source does.

The statements are those of ``tests/capture/random_sessions.py``: rows and ALTER TABLE in open, rolled
back and prepared transactions. Where the stream does not tell what the source holds, the table is
copied, so that nothing is left open; ``tests/capture/torture.py`` judges what is staged when nothing is
copied. Every table is read with Spark and with pyiceberg. ``PGOUTPUT_SCHEMA_SEEDS=3,8`` runs these seeds.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.capture.source.plugin_options import StreamOptions
from tests.capture.random_sessions import RandomSessions
from tests.conformance.compare import connect, difference, quoted, source_columns
from tests.conformance.many_tables import Tables
from tests.conformance.pipeline import CATALOG
from tests.faults.workload import LOG_TABLE, SETUP, UPSERT_TABLES

if TYPE_CHECKING:
    from tests.conformance.pipeline import Pipeline
    from tests.conformance.scenario import Row

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

#: ``make torture LAKE=1 SEED=1 RUNS=100`` does more.
SEEDS = [int(seed) for seed in os.environ.get("PGOUTPUT_SCHEMA_SEEDS", "1,2").split(",")]
_ROUNDS, _STEPS = 4, 60
#: The server tells of a shape when the next row of the table changes.
_ANNOUNCED = ("INSERT INTO account(id) VALUES (0)", "DELETE FROM account WHERE id = 0")


@pytest.mark.parametrize("seed", SEEDS)
def test_random_changes_of_shape_reach_the_lake(pipeline: Pipeline, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test has to repeat itself
    pipeline.capture_options.update(
        schema_policy=SchemaPolicy("copy", "copy", "copy"),
        options=StreamOptions(binary=chance.random() < 0.5),
        transport=chance.choice(("sql", "walsender")),
    )
    pipeline.plan_options.update(
        format_version=chance.choice((2, 3)),
        write_mode=chance.choice(("merge-on-read", "copy-on-write")),
        drop_columns=chance.random() < 0.5,
    )
    tables = Tables(pipeline, logs=(f"public.{LOG_TABLE}",))
    tables.run(*SETUP)
    with RandomSessions(pipeline.conninfo, seed) as sessions:
        for _ in range(_ROUNDS):
            sessions.run(_STEPS)
            tables.execute(*_ANNOUNCED)
            limits = {"max_changes": chance.choice((1, 20, None))}
            tables.batches += pipeline.drain(pipeline.flush_lsn(), **limits)
            if chance.random() < 0.5:
                pipeline.advance()
            tables.assert_equal(*UPSERT_TABLES, LOG_TABLE, key="id")
            for name in UPSERT_TABLES:
                _assert_spark_reads(pipeline, tables, name)
    print(f"seed {seed}: {sessions.done}, {len(tables.batches)} batches")
    assert sessions.done["add"] > 0, "nothing changed its shape"


def _assert_spark_reads(pipeline: Pipeline, tables: Tables, name: str) -> None:
    with connect(pipeline.conninfo) as session:
        columns = source_columns(session, "public", name)
    target = quoted(CATALOG, pipeline.namespace, name)
    pipeline.spark.catalog.refreshTable(target)
    frame = pipeline.spark.table(target).select(*map(quoted, columns))
    found: Counter[Row] = Counter(
        tuple(None if value is None else str(value) for value in row) for row in frame.collect()
    )
    wanted = tables.source_rows(name)
    assert found == wanted, f"{name}: {difference(found, wanted)}"
