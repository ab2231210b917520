"""A lake that was loaded from outside: the stream begins before the load, and nothing is doubled or lost."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch import checkpoint as words
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.doctor.observe import examine_pipeline
from airflow_provider_pgoutput.doctor.repair import rebuild_checkpoint
from airflow_provider_pgoutput.errors import RowMissing, TableRefused
from airflow_provider_pgoutput.lake.state import open_catalog
from tests.conformance.compare import connect, lake_fields, quoted, read_lake, read_source
from tests.conformance.pipeline import CATALOG, Pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


TABLES = (
    "CREATE TABLE t(a int primary key, b text, c int)",
    "CREATE TABLE emptied(a int primary key)",
    "CREATE TABLE later(a int primary key, b text)",
    "CREATE TABLE keyless(a int)",
    "ALTER TABLE keyless REPLICA IDENTITY FULL",
    "ALTER TABLE t ALTER b SET STORAGE EXTERNAL",
    "CREATE PUBLICATION p FOR TABLE t, emptied, later",
    "INSERT INTO t SELECT g, repeat('x', 9000), 0 FROM generate_series(1, 6) g",
    "INSERT INTO emptied VALUES (1), (2)",
    "INSERT INTO later VALUES (1, 'loaded')",
)
#: What commits after the slot was made and before the tables are loaded.
OVERLAP = (
    "INSERT INTO t VALUES (7, 'new', 1), (8, 'gone soon', 1)",
    "UPDATE t SET c = 2 WHERE a = 1",
    "DELETE FROM t WHERE a = 2",
    "DELETE FROM t WHERE a = 8",
    "TRUNCATE emptied",
    "INSERT INTO emptied VALUES (3)",
)
AFTER = (
    "UPDATE t SET c = 3 WHERE a IN (1, 3)",
    "DELETE FROM t WHERE a = 4",
    "INSERT INTO t VALUES (2, 'again', 4)",
    "INSERT INTO emptied VALUES (4)",
)


def execute(conninfo: str, *statements: str) -> None:
    with connect(conninfo) as session:
        for statement in statements:
            session.execute(statement)


def load(pipeline: Pipeline, table: str, columns: str) -> None:
    """Load a table as somebody else would: with other means, and without a word of ours in it."""
    with connect(pipeline.conninfo) as session:
        rows = session.execute(f"SELECT * FROM {table}").fetchall()
    name = quoted(CATALOG, pipeline.namespace, table)
    pipeline.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quoted(CATALOG, pipeline.namespace)}")
    pipeline.spark.sql(f"CREATE TABLE {name} ({columns}) USING iceberg")
    pipeline.spark.createDataFrame(rows, columns).coalesce(1).writeTo(name).append()


def loaded(
    conninfo: str,
    name: str,
    spark: SparkSession,
    catalog_properties: dict[str, str],
    folder: Path,
) -> Pipeline:
    """A pipeline whose slot is older than the load of its tables."""
    execute(conninfo, *TABLES)
    with connect(conninfo) as session:
        row = session.execute(
            "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", (name,)
        ).fetchone()
    assert row is not None
    return Pipeline(
        conninfo=conninfo,
        slot_name=name,
        publication_names=("p",),
        namespace=name,
        staging=folder,
        catalog_properties=catalog_properties,
        spark=spark,
        capture_options={"initial_copy": "never", "start_lsn": Lsn.parse(row[0])},
    )


def notes_of(spark: SparkSession, name: str) -> dict[int, str]:
    spark.catalog.refreshTable(name)
    return {row["a"]: row["note"] for row in spark.table(name).collect()}


def assert_equal(pipeline: Pipeline, *tables: str) -> None:
    with connect(pipeline.conninfo) as session:
        for table in tables:
            name = quoted(CATALOG, pipeline.namespace, table)
            fields = [
                field
                for field in lake_fields(pipeline.spark.newSession(), name).values()
                if not field.name.startswith("_pgoutput_")
            ]
            found = read_lake(pipeline.spark, name, fields)
            assert found == read_source(session, "public", table, fields), table


def test_the_overlap_of_load_and_stream_is_told_apart_by_key(
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
) -> None:
    pipeline = loaded(postgres_database, "loaded", spark, lake_catalog_properties, tmp_path)
    execute(postgres_database, *OVERLAP)
    load(pipeline, "t", "a int, b string, c int")
    load(pipeline, "emptied", "a int")
    load(pipeline, "later", "a int, b string")
    names = [quoted(CATALOG, pipeline.namespace, table) for table in ("t", "later")]
    for name in names:
        spark.sql(f"ALTER TABLE {name} ADD COLUMN note string")
        spark.sql(f"UPDATE {name} SET note = concat('n', a)")
    notes = [notes_of(spark, name) for name in names]
    execute(postgres_database, *AFTER)
    # A limit does not cut the first batch, which has to reach past the load.
    first = pipeline.stage(max_changes=1)
    assert first.manifest.changes >= len(OVERLAP) + len(AFTER)
    assert first.manifest.start_lsn == pipeline.capture_options["start_lsn"]
    pipeline.apply(first)
    pipeline.advance()
    # What the source does not know stays with its rows.
    found = notes_of(spark, names[0])
    assert any(found.values())
    assert all(found[a] == notes[0][a] for a in found.keys() & notes[0].keys())
    spark.sql(f"ALTER TABLE {names[0]} DROP COLUMN note")
    assert_equal(pipeline, "t", "emptied")
    # A table of which the first batch holds nothing is taken over by a later one.
    execute(postgres_database, "UPDATE later SET b = 'changed'", "INSERT INTO t VALUES (9, 'n', 9)")
    pipeline.apply(pipeline.stage(max_changes=1))
    pipeline.apply(pipeline.stage())
    assert notes_of(spark, names[1]) == notes[1]
    spark.sql(f"ALTER TABLE {names[1]} DROP COLUMN note")
    assert_equal(pipeline, "later")
    before = pipeline.snapshot_ids()
    pipeline.apply(first)
    assert pipeline.snapshot_ids() == before
    assert_equal(pipeline, "t", "emptied", "later")


def test_a_checkpoint_that_was_rebuilt_before_the_first_batch_was_whole(
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
) -> None:
    """As after a crash between the publishes of two tables: one has the batch, the other only the load."""
    pipeline = loaded(postgres_database, "loaded_rebuilt", spark, lake_catalog_properties, tmp_path)
    execute(postgres_database, *OVERLAP)
    load(pipeline, "t", "a int, b string, c int")
    load(pipeline, "emptied", "a int")
    load(pipeline, "later", "a int, b string")
    first = pipeline.stage()
    pipeline.apply(first)
    for name in ("t", words.CHECKPOINT_TABLE):
        spark.sql(f"DROP TABLE {quoted(CATALOG, pipeline.namespace, name)}")
    load(pipeline, "t", "a int, b string, c int")
    observed, _ = examine_pipeline(
        postgres_database,
        pipeline.slot_name,
        catalog := open_catalog(CATALOG, lake_catalog_properties),
        pipeline.namespace,
        None,
    )
    start = pipeline.capture_options["start_lsn"]
    assert rebuild_checkpoint(catalog, pipeline.namespace, observed) == start
    # The batch is gone too: it is staged again, with what came since, and no limit cuts it.
    shutil.rmtree(tmp_path / pipeline.slot_name)
    execute(postgres_database, *AFTER)
    again = pipeline.stage(max_changes=1)
    assert again.manifest.start_lsn == start
    assert again.manifest.changes >= first.manifest.changes + len(AFTER)
    pipeline.apply(again)
    assert_equal(pipeline, "t", "emptied", "later")


def test_what_the_overlap_leaves_open_is_refused(
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
) -> None:
    """Never a guess: rows that no key tells apart, and values of keys that moved meanwhile."""
    pipeline = loaded(postgres_database, "loaded_open", spark, lake_catalog_properties, tmp_path)
    execute(postgres_database, "ALTER PUBLICATION p ADD TABLE keyless")
    execute(postgres_database, "INSERT INTO keyless VALUES (1)", "DELETE FROM t WHERE a = 6")
    # The row under key 1 in the load is not the one that was there at the slot's position.
    execute(postgres_database, "UPDATE t SET a = 10 WHERE a = 1", "UPDATE t SET a = 1 WHERE a = 5")
    load(pipeline, "t", "a int, b string, c int")
    load(pipeline, "keyless", "a int")
    before = pipeline.snapshot_ids()
    with pytest.raises((TableRefused, RowMissing)):
        pipeline.apply(pipeline.stage())
    with pytest.raises(RowMissing, match="moves keys") as refusal:
        pipeline.apply(pipeline.stage(copy_tables=["public.keyless"]))
    assert refusal.value.table == "public.t"
    with pytest.raises(TableRefused, match="no key") as refused:
        pipeline.apply(pipeline.stage(copy_tables=["public.t"]))
    assert refused.value.table == "public.keyless"
    # The first apply of a namespace makes the checkpoint table, to look at what the catalog keeps.
    assert pipeline.snapshot_ids() == {**before, "pgoutput_checkpoint": None}
    assert pipeline.checkpoint() is None
    both = pipeline.stage(copy_tables=["public.t", "public.keyless"])
    pipeline.apply(both)
    assert_equal(pipeline, "t", "keyless")


def test_without_start_lsn_rows_of_others_are_left_alone(
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
) -> None:
    pipeline = loaded(postgres_database, "not_loaded", spark, lake_catalog_properties, tmp_path)
    load(pipeline, "emptied", "a int")
    execute(postgres_database, "INSERT INTO emptied VALUES (9)")
    with pytest.raises(TableRefused, match="start_lsn"):
        pipeline.apply(pipeline.stage(start_lsn=None))
