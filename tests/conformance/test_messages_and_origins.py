"""Scenarios C85 and C86: logical messages, end to end, over both transports.

They need a slot of their own, with other options than the scenarios that share one.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.capture.source.plugin_options import StreamOptions
from tests.conformance.compare import quoted
from tests.conformance.pipeline import CATALOG, Pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_numbers = itertools.count(1)
both_transports = pytest.mark.parametrize("transport", ["sql", "walsender"])


@pytest.fixture
def pipeline(
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
    transport: str,
) -> Pipeline:
    """A pipeline of a table ``t`` published by ``p``, over one transport."""
    execute(postgres_database, "CREATE TABLE t(a int PRIMARY KEY, b text)")
    execute(postgres_database, "CREATE PUBLICATION p FOR TABLE t")
    name = f"beside_{next(_numbers)}"
    return Pipeline(
        conninfo=postgres_database,
        slot_name=name,
        publication_names=("p",),
        namespace=name,
        staging=tmp_path,
        catalog_properties=lake_catalog_properties,
        spark=spark,
        capture_options={"transport": transport},
    )


def execute(conninfo: str, *statements: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as session:
        for statement in statements:
            session.execute(statement)


def run_twice(pipeline: Pipeline, **options: Any) -> None:
    """Carry everything to the lake, and apply the last batch again without a checkpoint."""
    for batch in pipeline.drain(pipeline.flush_lsn(), **options):
        pipeline.apply(batch)
    pipeline.spark.sql(f"DROP TABLE {table(pipeline, 'pgoutput_checkpoint')}")
    pipeline.apply(batch)


def table(pipeline: Pipeline, name: str) -> str:
    return quoted(CATALOG, pipeline.namespace, name)


def rows(pipeline: Pipeline, name: str, *columns: str) -> list[tuple[Any, ...]]:
    frame = pipeline.spark.newSession().table(table(pipeline, name))
    found = frame.selectExpr(*columns).collect()
    return [
        tuple(bytes(each) if isinstance(each, bytearray) else each for each in row) for row in found
    ]


C85 = (
    "SELECT pg_logical_emit_message(true, 'app', 'kept')",
    "INSERT INTO t VALUES (1, 'x')",
    "BEGIN",
    "SELECT pg_logical_emit_message(false, 'app', 'kept too')",
    "INSERT INTO t VALUES (3, 'y')",
    "SELECT pg_logical_emit_message(true, 'app', 'rolled back')",
    "ROLLBACK",
    # What was written last is on the disk then.
    "SELECT pg_switch_wal()",
)


@both_transports
@pytest.mark.parametrize("limits", [{}, {"max_changes": 1}], ids=["one_batch", "per_transaction"])
def test_c85_logical_messages_reach_their_table_once(
    pipeline: Pipeline, limits: dict[str, int]
) -> None:
    options: dict[str, Any] = {"options": StreamOptions(messages=True), **limits}
    pipeline.apply(pipeline.stage(**options))
    execute(pipeline.conninfo, *C85)
    run_twice(pipeline, **options)
    assert rows(pipeline, "t", "a", "b") == [(1, "x")]
    found = rows(
        pipeline, "pgoutput_messages", "transactional", "prefix", "content", "commit_lsn IS NULL"
    )
    assert sorted(found) == [
        (False, "app", b"kept too", True),
        (True, "app", b"kept", False),
    ]


@both_transports
def test_c86_without_messages_there_are_none(pipeline: Pipeline) -> None:
    pipeline.apply(pipeline.stage())
    execute(pipeline.conninfo, *C85)
    run_twice(pipeline)
    assert rows(pipeline, "t", "a", "b") == [(1, "x")]
    assert "pgoutput_messages" not in pipeline.snapshot_ids()
