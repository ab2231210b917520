"""Scenarios that have to stop: nothing is published, nothing moves, and the cause has a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import (
    PgoutputError,
    PublicationMissing,
    RowMissing,
    TableRefused,
)
from tests.conformance.compare import connect, quoted
from tests.conformance.many_tables import Tables
from tests.conformance.pipeline import CATALOG, Pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def start(
    conninfo: str,
    name: str,
    spark: SparkSession,
    catalog_properties: dict[str, str],
    folder: Path,
    statements: tuple[str, ...],
) -> Pipeline:
    with connect(conninfo) as session:
        for statement in statements:
            session.execute(statement)
    pipeline = Pipeline(
        conninfo=conninfo,
        slot_name=name,
        publication_names=("p",),
        namespace=name,
        staging=folder,
        catalog_properties=catalog_properties,
        spark=spark,
    )
    pipeline.apply(pipeline.stage())
    pipeline.advance()
    return pipeline


def test_c26_a_partial_update_of_a_missing_row_is_refused(
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
) -> None:
    """C26: the row is gone from the target, so the unchanged value cannot be known."""
    pipeline = start(
        postgres_database,
        "c26",
        spark,
        lake_catalog_properties,
        tmp_path,
        (
            "CREATE TABLE t(a int primary key, b text, c int)",
            "ALTER TABLE t ALTER b SET STORAGE EXTERNAL",
            "CREATE PUBLICATION p FOR TABLE t",
            "INSERT INTO t VALUES (1, repeat('k', 9000), 0), (2, 'short', 0)",
        ),
    )
    table = quoted(CATALOG, "c26", "t")
    spark.sql(f"DELETE FROM {table} WHERE a = 1")
    with connect(postgres_database) as session:
        session.execute("UPDATE t SET c = 1")
    before, checkpoint = pipeline.snapshot_ids(), pipeline.checkpoint()
    batch = pipeline.stage()
    for _attempt in range(2):
        with pytest.raises(RowMissing) as refusal:
            pipeline.apply(batch)
        assert refusal.value.table == "public.t"
        assert refusal.value.advice
        assert "k" * 20 not in str(refusal.value)
    assert pipeline.snapshot_ids() == before
    assert pipeline.checkpoint() == checkpoint
    assert [tuple(row) for row in spark.sql(f"SELECT a, c FROM {table}").collect()] == [(2, 0)]


@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_c92_a_dropped_publication_stops_the_run(
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
    transport: str,
) -> None:
    """C92: PostgreSQL 18 would skip the changes with a warning; neither slot nor lake may move."""
    name = f"c92_{transport}"
    pipeline = start(
        postgres_database,
        name,
        spark,
        lake_catalog_properties,
        tmp_path,
        (
            "CREATE TABLE t(a int primary key, b text)",
            "CREATE PUBLICATION p FOR TABLE t",
        ),
    )
    with connect(postgres_database) as session:
        session.execute("INSERT INTO t VALUES (1, 'a')")
        session.execute("DROP PUBLICATION p")
        session.execute("INSERT INTO t VALUES (2, 'b')")
    before = (pipeline.confirmed_flush_lsn(), pipeline.checkpoint(), pipeline.snapshot_ids())
    with pytest.raises(PublicationMissing) as refusal:
        pipeline.stage(transport=transport)
    assert "p" in str(refusal.value)
    assert refusal.value.advice
    after = (pipeline.confirmed_flush_lsn(), pipeline.checkpoint(), pipeline.snapshot_ids())
    assert after == before


@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_c92_a_publication_created_late_stops_the_run(
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
    transport: str,
) -> None:
    """C92: the publication was dropped and made again; changes in between would be left out."""
    name = f"c92_late_{transport}"
    pipeline = start(
        postgres_database,
        name,
        spark,
        lake_catalog_properties,
        tmp_path,
        (
            "CREATE TABLE t(a int primary key, b text)",
            "CREATE PUBLICATION p FOR TABLE t",
        ),
    )
    with connect(postgres_database) as session:
        session.execute("DROP PUBLICATION p")
        session.execute("INSERT INTO t VALUES (1, 'before')")
        session.execute("CREATE PUBLICATION p FOR TABLE t")
        session.execute("INSERT INTO t VALUES (2, 'after')")
    before = (pipeline.confirmed_flush_lsn(), pipeline.checkpoint(), pipeline.snapshot_ids())
    with pytest.raises(
        PublicationMissing, match="drop the slot and run once with on_slot_lost='copy'"
    ):
        pipeline.stage(transport=transport)
    after = (pipeline.confirmed_flush_lsn(), pipeline.checkpoint(), pipeline.snapshot_ids())
    assert after == before


#: What a scenario has beside its table ``t`` before the first copy.
MORE_SETUP = {
    "C59": (
        "CREATE SCHEMA s1",
        "CREATE TABLE s1.w(c int primary key)",
        "ALTER PUBLICATION p ADD TABLES IN SCHEMA s1",
    )
}
#: By scenario: statements that the lake cannot follow, the error, and words of its message.
REFUSED: dict[str, tuple[tuple[str, ...], type[PgoutputError], tuple[str, ...]]] = {
    "C54": (
        (
            "ALTER TABLE t ALTER b TYPE int USING length(b)",
            "INSERT INTO t VALUES (2, 6)",
        ),
        TableRefused,
        ("public.t", "column b", "type"),
    ),
    "C57": (
        (
            "DROP TABLE t",
            "CREATE TABLE t(a int primary key, b int)",
            "ALTER PUBLICATION p ADD TABLE t",
            "INSERT INTO t VALUES (1, 2)",
        ),
        TableRefused,
        ("public.t", "dropped and created again"),
    ),
    "C58": (
        ("ALTER TABLE t RENAME TO t_new", "INSERT INTO t_new VALUES (2, 'y')"),
        TableRefused,
        ("public.t_new", "renamed"),
    ),
    "C59": (
        (
            "BEGIN",
            "INSERT INTO s1.w VALUES (1)",
            "ALTER SCHEMA s1 RENAME TO s2",
            "CREATE SCHEMA s1",
            "CREATE TABLE s1.w(c int primary key)",
            "ALTER PUBLICATION p ADD TABLES IN SCHEMA s1",
            "INSERT INTO s1.w VALUES (2)",
            "INSERT INTO s2.w VALUES (3)",
            "COMMIT",
        ),
        TableRefused,
        ("s1.w", "renamed to s2.w, and another made under its name"),
    ),
}


@pytest.mark.parametrize("scenario", list(REFUSED))
def test_a_change_that_the_lake_cannot_follow_is_refused(
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
    scenario: str,
) -> None:
    """C54, C57, C58, C59: nothing is published, however often it is tried."""
    statements, error, words = REFUSED[scenario]
    pipeline = start(
        postgres_database,
        scenario.lower(),
        spark,
        lake_catalog_properties,
        tmp_path,
        (
            "CREATE TABLE t(a int primary key, b text)",
            "CREATE PUBLICATION p FOR TABLE t",
            "INSERT INTO t VALUES (1, 'x')",
            *MORE_SETUP.get(scenario, ()),
        ),
    )
    before, checkpoint = pipeline.snapshot_ids(), pipeline.checkpoint()
    with connect(postgres_database) as session:
        for statement in statements:
            session.execute(statement)
    for _attempt in range(2):
        with pytest.raises(error) as refusal:
            pipeline.apply(pipeline.stage())
        assert all(word in str(refusal.value) for word in words), refusal.value
        assert refusal.value.advice
    after = pipeline.snapshot_ids()
    assert {name: after[name] for name in before} == before
    assert pipeline.checkpoint() == checkpoint


@pytest.mark.parametrize("binary", [False, True])
def test_a_row_that_comes_into_the_filter_without_its_large_values_is_refused(
    pipeline: Pipeline, binary: bool
) -> None:
    """What the lake held of the row before it left is no substitute: it changed outside the filter."""
    pipeline.capture_options["options"] = StreamOptions(binary=binary)
    tables = Tables(pipeline)
    tables.run(
        "CREATE TABLE f (a int PRIMARY KEY, b int, c text)",
        "ALTER TABLE f ALTER c SET STORAGE EXTERNAL",
        "INSERT INTO f SELECT g, g, repeat('x', 9000) FROM generate_series(4, 7) g",
        "CREATE PUBLICATION p FOR TABLE f WHERE (a > 5)",
    )
    tables.execute(
        "UPDATE f SET a = 1 WHERE a = 7",
        "UPDATE f SET c = repeat('y', 9000) WHERE a = 1",
        "UPDATE f SET a = 7 WHERE a = 1",
    )
    refused = "a large value that the update did not change"
    assert tables.refused(TableRefused, refused) == "public.f"
    tables.execute("UPDATE f SET b = 70 WHERE a = 7")
    tables.run("UPDATE f SET b = 60 WHERE a = 6", copy_tables=("public.f",))
    rows = tables.lake_rows("f")
    assert rows == {("6", "60", "x" * 9000): 1, ("7", "70", "y" * 9000): 1}
    tables.execute("ALTER TABLE f REPLICA IDENTITY FULL", "UPDATE f SET a = 5 + 3 WHERE a = 4")
    tables.run()
    assert ("8", "4", "x" * 9000) in tables.lake_rows("f")
