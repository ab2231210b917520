"""Scenarios C85 to C88: logical messages and origins, end to end, over both transports.

They need a slot of their own, with other options than the scenarios that share one.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import RowMissing
from tests.conformance.compare import quoted
from tests.conformance.pipeline import CATALOG, Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


_numbers = itertools.count(1)
SQL, WALSENDER = "sql", "walsender"
LIMITS: dict[str, dict[str, int]] = {"one_batch": {}, "per_transaction": {"max_changes": 1}}


def transports(**by_case: str) -> list[Any]:
    """Each case over one transport; over the other one with ``ALL=1``.

    What a transport carries is staged alike: the scenarios are staged over both.
    """
    return [
        pytest.param(
            LIMITS.get(case, case),
            transport,
            id=f"{case}-{transport}",
            marks=() if transport == always else pytest.mark.exhaustive,
        )
        for case, always in by_case.items()
        for transport in (SQL, WALSENDER)
    ]


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


@pytest.mark.parametrize(
    ("limits", "transport"), transports(one_batch=SQL, per_transaction=WALSENDER)
)
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


@pytest.mark.parametrize("transport", [SQL, pytest.param(WALSENDER, marks=pytest.mark.exhaustive)])
def test_c86_without_messages_there_are_none(pipeline: Pipeline) -> None:
    pipeline.apply(pipeline.stage())
    execute(pipeline.conninfo, *C85)
    run_twice(pipeline)
    assert rows(pipeline, "t", "a", "b") == [(1, "x")]
    assert "pgoutput_messages" not in pipeline.snapshot_ids()


@pytest.fixture
def origins(postgres_database: str) -> Iterator[tuple[str, str]]:
    """Names of two origins; the server has them as long as the test runs."""
    names = ("up", 'do"wn')
    execute(
        postgres_database, *(f"SELECT pg_replication_origin_create('{each}')" for each in names)
    )
    yield names
    execute(postgres_database, *(f"SELECT pg_replication_origin_drop('{each}')" for each in names))


def replicate(conninfo: str, origin: str, lsn: str, *statements: str) -> None:
    """Run a transaction as the apply worker of a subscription does."""
    execute(
        conninfo,
        f"SELECT pg_replication_origin_session_setup('{origin}')",
        "BEGIN",
        f"SELECT pg_replication_origin_xact_setup('{lsn}', now())",
        *statements,
        "COMMIT",
        "SELECT pg_replication_origin_session_reset()",
    )


LOGGED = ("a", "_pgoutput_origin", "_pgoutput_origin_lsn")


@pytest.mark.parametrize(("origin", "transport"), transports(any=SQL, none=WALSENDER))
def test_c87_origins_are_named_or_left_out(
    pipeline: Pipeline, origins: tuple[str, str], origin: str
) -> None:
    pipeline = replace(pipeline, plan_options={"mode": "change_log"})
    options: dict[str, Any] = {"options": StreamOptions(origin=origin)}
    pipeline.apply(pipeline.stage(**options))
    execute(pipeline.conninfo, "INSERT INTO t VALUES (1, 'local')")
    replicate(pipeline.conninfo, origins[0], "0/AABBCCDD", "INSERT INTO t VALUES (2, 'remote')")
    run_twice(pipeline, **options)
    wanted: list[tuple[Any, ...]] = [(1, None, None)]
    if origin == "any":
        wanted.append((2, "up", 0xAABBCCDD))
    assert sorted(rows(pipeline, "t", *LOGGED)) == wanted


@pytest.mark.parametrize(
    ("limits", "transport"), transports(one_batch=WALSENDER, per_transaction=SQL)
)
def test_c88_an_origin_is_that_of_its_transaction_alone(
    pipeline: Pipeline, origins: tuple[str, str], limits: dict[str, int]
) -> None:
    execute(pipeline.conninfo, "INSERT INTO t VALUES (0, 'copied')")
    pipeline = replace(pipeline, plan_options={"mode": "change_log"})
    pipeline.apply(pipeline.stage())
    replicate(
        pipeline.conninfo,
        origins[0],
        "1/10",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO t VALUES (2)",
    )
    replicate(pipeline.conninfo, origins[1], "0/20", "INSERT INTO t VALUES (3)")
    execute(pipeline.conninfo, "INSERT INTO t VALUES (4)")
    replicate(pipeline.conninfo, origins[1], "0/30", "INSERT INTO t VALUES (5)")
    execute(pipeline.conninfo, "INSERT INTO t VALUES (6)")
    run_twice(pipeline, **limits)
    first, second = origins
    assert sorted(rows(pipeline, "t", *LOGGED)) == [
        (0, None, None),
        (1, first, 0x1_0000_0010),
        (2, first, 0x1_0000_0010),
        (3, second, 0x20),
        (4, None, None),
        (5, second, 0x30),
        (6, None, None),
    ]


@pytest.mark.parametrize("transport", [WALSENDER, pytest.param(SQL, marks=pytest.mark.exhaustive)])
def test_c87_tables_that_are_updated_take_rows_of_any_origin(
    pipeline: Pipeline, origins: tuple[str, str]
) -> None:
    """Also one without a key, whose rows are compared as wholes."""
    execute(
        pipeline.conninfo,
        "CREATE TABLE f(a int, b text)",
        "ALTER TABLE f REPLICA IDENTITY FULL",
        "ALTER PUBLICATION p ADD TABLE f",
        "INSERT INTO t VALUES (1, 'x'), (2, 'x')",
        "INSERT INTO f VALUES (1, 'x'), (1, 'x')",
    )
    pipeline.apply(pipeline.stage())
    remote = "UPDATE t SET a = 3 WHERE a = 1", "DELETE FROM f WHERE ctid = '(0,1)'"
    replicate(pipeline.conninfo, origins[0], "0/10", *remote)
    execute(pipeline.conninfo, "UPDATE t SET b = 'y' WHERE a = 2", "INSERT INTO f VALUES (2, 'y')")
    run_twice(pipeline)
    assert sorted(rows(pipeline, "t", "a", "b")) == [(2, "y"), (3, "x")]
    assert sorted(rows(pipeline, "f", "a", "b")) == [(1, "x"), (2, "y")]


@pytest.mark.parametrize("transport", [SQL, pytest.param(WALSENDER, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("keeps_deleted", [False, True])
def test_c87_a_row_of_another_origin_has_no_value_of_an_earlier_row(
    pipeline: Pipeline, origins: tuple[str, str], keeps_deleted: bool
) -> None:
    """The source replicated the row, ``origin`` leaves it out, and an update leaves out its large value."""
    pipeline.plan_options["soft_delete"] = keeps_deleted
    options: dict[str, Any] = {"options": StreamOptions(origin="none")}
    execute(
        pipeline.conninfo,
        "ALTER TABLE t ADD n int",
        "ALTER TABLE t ALTER b SET STORAGE EXTERNAL",
        "INSERT INTO t VALUES (1, repeat('earlier', 1000), 0), (2, 'x', 0)",
    )
    pipeline.apply(pipeline.stage(**options))
    execute(pipeline.conninfo, "DELETE FROM t WHERE a = 1")
    if keeps_deleted:
        # Without soft delete both are in one batch, and the target still has the earlier row.
        pipeline.apply(pipeline.stage(**options))
    remote = "INSERT INTO t VALUES (1, repeat('of another server', 1000), 0)"
    replicate(pipeline.conninfo, origins[0], "0/10", remote)
    execute(pipeline.conninfo, "UPDATE t SET n = 1 WHERE a = 1")
    batch = pipeline.stage(**options)
    before = pipeline.snapshot_ids()
    with pytest.raises(RowMissing):
        pipeline.apply(batch)
    assert pipeline.snapshot_ids() == before
    pipeline.apply(pipeline.stage(**options, copy_tables=("public.t",)))
    assert sorted(rows(pipeline, "t", "a", "b", "n")) == [
        (1, "of another server" * 1000, 1),
        (2, "x", 0),
    ]
