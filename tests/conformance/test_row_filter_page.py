"""The examples of PostgreSQL's page on row filters, with the page's own results, from source to lake.

Each step of the page is one batch. Afterwards new pipelines copy the tables, with every combination of
publications that the page explains: a copy has to hold what the stream left.

Source: https://www.postgresql.org/docs/current/logical-replication-row-filter.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.compare import connect, quoted
from tests.conformance.pipeline import CATALOG, Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


TABLES = (
    "CREATE TABLE t1(a int, b int, c text, PRIMARY KEY(a,c))",
    "CREATE TABLE t2(d int, e int, f int, PRIMARY KEY(d))",
    "CREATE TABLE t3(g int, h int, i int, PRIMARY KEY(g))",
)
PUBLICATIONS = (
    "CREATE PUBLICATION p1 FOR TABLE t1 WHERE (a > 5 AND c = 'NSW')",
    "CREATE PUBLICATION p2 FOR TABLE t1, t2 WHERE (e = 99)",
    "CREATE PUBLICATION p3 FOR TABLE t2 WHERE (d = 10), t3 WHERE (g = 10)",
)
T1_ROWS = (
    "INSERT INTO t1 VALUES (2, 102, 'NSW'), (3, 103, 'QLD'), (4, 104, 'VIC'), (5, 105, 'ACT'),"
    " (6, 106, 'NSW'), (7, 107, 'NT'), (8, 108, 'QLD'), (9, 109, 'NSW')"
)
#: Statements of the page on ``t1``, and what its subscriber of ``p1`` shows after each.
STEPS = (
    (T1_ROWS, [(6, 106, "NSW"), (9, 109, "NSW")]),
    ("UPDATE t1 SET b = 999 WHERE a = 6", [(6, 999, "NSW"), (9, 109, "NSW")]),
    (
        "UPDATE t1 SET a = 555 WHERE a = 2",
        [(6, 999, "NSW"), (9, 109, "NSW"), (555, 102, "NSW")],
    ),
    ("UPDATE t1 SET c = 'VIC' WHERE a = 9", [(6, 999, "NSW"), (555, 102, "NSW")]),
)
#: Our own: rows that match one filter of t2, the other, both, none; and of t3.
MORE_ROWS = (
    "INSERT INTO t2 VALUES (1, 99, 0), (10, 0, 0), (10 + 100, 98, 0), (2, NULL, 0)",
    "INSERT INTO t3 VALUES (10, 0, 0), (11, 10, 10)",
)
PARTITIONED = (
    "CREATE TABLE parent(a int PRIMARY KEY) PARTITION BY RANGE(a)",
    "CREATE TABLE child PARTITION OF parent DEFAULT",
)
PARTITION_ROWS = (
    "INSERT INTO parent VALUES (2), (4), (6)",
    "INSERT INTO child VALUES (3), (5), (7)",
)


@pytest.fixture
def pipeline_of(
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
) -> Iterator[Callable[..., Pipeline]]:
    """Make a pipeline with a slot and a namespace of its own, and do its first run."""

    def make(name: str, *publication_names: str) -> Pipeline:
        pipeline = Pipeline(
            conninfo=postgres_database,
            slot_name=f"row_filter_{name}",
            publication_names=publication_names,
            namespace=f"row_filter_{name}",
            staging=tmp_path,
            catalog_properties=lake_catalog_properties,
            spark=spark,
        )
        run(pipeline)
        return pipeline

    yield make
    with connect(postgres_database) as session:
        session.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = current_database()"
        )


def run(pipeline: Pipeline) -> None:
    pipeline.apply(pipeline.stage())


def rows(pipeline: Pipeline, table: str) -> list[tuple[Any, ...]]:
    # A session of its own: one that has seen the table keeps its snapshot.
    frame = pipeline.spark.newSession().table(quoted(CATALOG, pipeline.namespace, table))
    columns = [quoted(each) for each in frame.columns if not each.startswith("_pgoutput_")]
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def execute(conninfo: str, *statements: str) -> None:
    with connect(conninfo) as session:
        for statement in statements:
            session.execute(statement)


def test_the_examples_of_t1(postgres_database: str, pipeline_of: Callable[..., Pipeline]) -> None:
    """Rows that match are sent; an update that crosses the filter becomes an insert or a delete."""
    execute(postgres_database, *TABLES, *PUBLICATIONS)
    subscriber = pipeline_of("s1", "p1")
    for statement, expected in STEPS:
        execute(postgres_database, statement)
        run(subscriber)
        assert rows(subscriber, "t1") == expected, statement
    execute(postgres_database, *MORE_ROWS)
    run(subscriber)
    assert set(subscriber.snapshot_ids()) == {"t1", "pgoutput_checkpoint"}

    copied = pipeline_of("copied", "p1")
    assert rows(copied, "t1") == STEPS[-1][1]

    together = pipeline_of("together", "p1", "p2", "p3")
    with connect(postgres_database) as session:
        everything = sorted(session.execute("SELECT * FROM t1").fetchall())
    # p2 publishes t1 without a filter, which makes that of p1 void; those of t2 are alternatives.
    assert rows(together, "t1") == everything
    assert rows(together, "t2") == [(1, 99, 0), (10, 0, 0)]
    assert rows(together, "t3") == [(10, 0, 0)]
    execute(
        postgres_database,
        # Their filters are on a column that is not in the key, so PostgreSQL takes inserts only.
        "INSERT INTO t2 VALUES (20, 99, 1), (21, 1, 99), (22, NULL, 99)",
        "UPDATE t3 SET g = 10 + g",
    )
    run(together)
    assert rows(together, "t2") == [(1, 99, 0), (10, 0, 0), (20, 99, 1)]
    assert rows(together, "t3") == []


@pytest.mark.parametrize(
    ("name", "wide"),
    [("all_tables", "FOR ALL TABLES"), ("in_schema", "FOR TABLES IN SCHEMA public")],
)
def test_a_publication_that_takes_no_filter_makes_others_void(
    postgres_database: str, pipeline_of: Callable[..., Pipeline], name: str, wide: str
) -> None:
    """In the copy as in the stream; and what ``publish`` leaves out is copied all the same."""
    execute(
        postgres_database,
        *TABLES,
        *PUBLICATIONS,
        f"CREATE PUBLICATION wide {wide} WITH (publish = 'delete')",
        T1_ROWS,
        *MORE_ROWS,
    )
    pipeline = pipeline_of(name, "p1", "p3", "wide")
    with connect(postgres_database) as session:
        for table in ("t1", "t2", "t3"):
            everything = sorted(session.execute(f"SELECT * FROM {table}").fetchall())
            assert rows(pipeline, table) == everything
    # ``wide`` publishes deletes only, so the filters of the others still decide about inserts, and
    # a TRUNCATE, which p3 publishes, passes all filters.
    execute(
        postgres_database,
        "INSERT INTO t1 VALUES (20, 0, 'NSW'), (21, 0, 'QLD')",
        "DELETE FROM t1 WHERE a = 3",
        "TRUNCATE t3",
        "INSERT INTO t3 VALUES (10, 7, 7), (12, 7, 7)",
    )
    run(pipeline)
    assert (20, 0, "NSW") in rows(pipeline, "t1")
    assert not {(21, 0, "QLD"), (3, 103, "QLD")} & set(rows(pipeline, "t1"))
    assert rows(pipeline, "t3") == [(10, 7, 7)]


@pytest.mark.parametrize(
    ("publication", "table", "expected"),
    [
        pytest.param(
            "FOR TABLE parent WHERE (a < 5), child WHERE (a >= 5)"
            " WITH (publish_via_partition_root=true)",
            "parent",
            [(2,), (3,), (4,)],
            id="via_root",
        ),
        pytest.param(
            "FOR TABLE parent, child WHERE (a >= 5) WITH (publish_via_partition_root=false)",
            "child",
            [(5,), (6,), (7,)],
            id="as_partitions",
        ),
    ],
)
def test_the_examples_of_a_partitioned_table(
    postgres_database: str,
    pipeline_of: Callable[..., Pipeline],
    publication: str,
    table: str,
    expected: list[tuple[int]],
) -> None:
    """``publish_via_partition_root`` decides whose filter holds, in the stream and in the copy."""
    execute(postgres_database, *PARTITIONED, f"CREATE PUBLICATION p4 {publication}")
    subscriber = pipeline_of(f"{table}_streamed", "p4")
    execute(postgres_database, *PARTITION_ROWS)
    run(subscriber)
    assert rows(subscriber, table) == expected
    assert rows(pipeline_of(f"{table}_copied", "p4"), table) == expected


def test_filters_and_column_lists_with_names_that_need_quoting(
    postgres_database: str, pipeline_of: Callable[..., Pipeline]
) -> None:
    """The filter is SQL of the server's; the names in it are quoted as the server quotes them."""
    execute(
        postgres_database,
        'CREATE SCHEMA "a.b ""c"""',
        'CREATE TABLE "a.b ""c"""."straße; --"("k ""q""" int PRIMARY KEY, "ü.v" text, "left out" text)',
        'CREATE PUBLICATION "p ""5"", o\'clock" FOR TABLE "a.b ""c"""."straße; --"("k ""q""", "ü.v")'
        ' WHERE ("k ""q""" > 1 AND "k ""q""" <> 7)',
        "INSERT INTO \"a.b \"\"c\"\"\".\"straße; --\" VALUES (1, 'no', ''), (2, 'it''s', ''), (7, 'no', '')",
    )
    pipeline = pipeline_of("names", 'p "5", o\'clock')
    execute(
        postgres_database,
        "INSERT INTO \"a.b \"\"c\"\"\".\"straße; --\" VALUES (0, 'no', ''), (3, 'ü', '')",
    )
    batch = pipeline.stage()
    pipeline.apply(batch)
    (table,) = batch.manifest.tables
    target = pipeline.plan(batch).target_name(table.schema_name, table.table_name)
    assert rows(pipeline, target) == [(2, "it's"), (3, "ü")]
