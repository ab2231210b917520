"""Change log, soft delete, copy-on-write, partitions, metadata columns, and what other readers see."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG, TableOptions
from airflow_provider_pgoutput.batch.table_version import StagedFile
from tests.apply.build import COMMIT_TIME, Source, column, numbered
from tests.apply.conftest import source_rows
from tests.apply.fold_cases import ABC, BIG, a_is

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_change_log_holds_every_change_once(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table("t", ABC, key=("a",), toast=("b",))
    t.insert(1, BIG, 0)
    source.pending.clear()
    source.copy(t)
    first = replace(source.stage(), mode=CHANGE_LOG)
    t.update(a_is(1), {"c": 1})
    t.update(a_is(1), {"a": 2})
    t.delete(a_is(2))
    t.truncate()
    second = replace(source.stage(), mode=CHANGE_LOG)
    for plan in (first, second, second, first):
        apply_batch(spark, plan)
    rows = lake_rows(t, "_pgoutput_op", "a", "b", "c", "_pgoutput_unchanged")
    assert Counter(map(repr, rows)) == Counter(
        map(
            repr,
            [
                ("C", 1, BIG, 0, None),
                ("U", 1, None, 1, ["b"]),
                ("U", 2, None, 1, ["b"]),
                ("D", 2, None, None, []),
                ("T", None, None, None, []),
            ],
        )
    )
    positions = lake_rows(t, "_pgoutput_commit_lsn", "_pgoutput_seq")
    assert len(set(positions)) == len(positions)


def test_a_soft_deleted_row_stays_with_its_last_values(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table("t", ABC, key=("a",), toast=("b",))
    for a in (1, 2, 3, 4):
        t.insert(a, BIG + str(a), 0)
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    t.update(a_is(1), {"c": 1})
    t.delete(a_is(1))
    t.delete(a_is(2))
    t.update(a_is(3), {"a": 30})
    t.insert(2, "again", 5)
    t.insert(5, "brief", 0)
    t.delete(a_is(5))
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    assert lake_rows(t, "a", "b", "c", "_pgoutput_op") == [
        (1, BIG + "1", 1, "D"),
        (2, "again", 5, "I"),
        (3, BIG + "3", 0, "D"),
        (30, BIG + "3", 0, "U"),
        (4, BIG + "4", 0, "I"),
        (5, "brief", 0, "D"),
    ]
    t.truncate()
    t.insert(1, "new", 9)
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    assert lake_rows(t, "a", "_pgoutput_op") == [
        (1, "I"), (2, "D"), (3, "D"), (30, "D"), (4, "D"), (5, "D"),
    ]  # fmt: skip


def test_a_truncate_keeps_the_last_values_of_what_came_before_it_in_its_batch(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table("t", ABC, key=("a",), toast=("b",))
    t.insert(1, BIG, 0)
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    t.update(a_is(1), {"c": 1})
    t.insert(7, "x", 0)
    t.truncate()
    t.insert(8, "y", 0)
    t.insert(7, "again", 2)
    t.truncate()
    t.insert(9, "z", 0)
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    assert lake_rows(t, "a", "b", "c", "_pgoutput_op") == [
        (1, BIG, 1, "D"),
        (7, "again", 2, "D"),
        (8, "y", 0, "D"),
        (9, "z", 0, "I"),
    ]


def test_a_row_whose_equal_was_deleted_is_not_marked(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """Without a key rows that are equal have one image; its newest change is the delete."""
    t = source.table("t", ABC, identity="f")
    t.insert(1, "x", 0)
    t.insert(1, "x", 0)
    t.delete(a_is(1))
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    assert lake_rows(t, "a", "_pgoutput_op") == [(1, "I")]
    t.delete(a_is(1))
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    assert lake_rows(t, "a", "_pgoutput_op") == [(1, "D")]


def test_a_copy_keeps_the_rows_that_were_deleted(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table("t", ABC, key=("a",))
    for a in (1, 2, 3):
        t.insert(a, "x", 0)
    t.delete(a_is(1))
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    t.delete(a_is(2))
    t.update(a_is(3), {"c": 1})
    t.insert(4, "new", 0)
    source.pending.clear()  # Nobody saw it.
    source.copy(t)
    t.insert(1, "back", 5)
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    assert lake_rows(t, "a", "b", "c", "_pgoutput_op") == [
        (1, "back", 5, "I"),
        (2, "x", 0, "D"),
        (3, "x", 1, "C"),
        (4, "new", 0, "C"),
    ]


def test_a_copy_keeps_no_row_that_lacks_the_key_of_now(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """The key is a column of which the lake has no values for older rows: nothing would find them again."""
    t = source.table("t", ABC, key=("a",))
    for a in (1, 2):
        t.insert(a, "x", 0)
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    t.alter(columns=(*ABC, column("d")))
    t.insert(3, "x", 0, 30)
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    # Its default was another for each row, which the stream does not tell.
    for number, row in enumerate(t.rows, 1):
        row["d"] = number * 10
    t.alter(key=("d",))
    t.delete(a_is(3))
    source.pending.clear()
    source.copy(t)
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    assert lake_rows(t, "a", "d", "_pgoutput_op") == [(1, 10, "C"), (2, 20, "C"), (3, 30, "D")]


def test_of_several_rows_under_one_key_one_keeps_what_users_added(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """Such as deleted ones that stayed, under a key that is another now: an update makes one row of them."""
    t = source.table("t", numbered(ABC), key=("a",))
    for a in (1, 2):
        t.insert(a, "same", 0)
        t.delete(a_is(a))
    t.insert(3, "same", 0)
    t.insert(9, "other", 0)
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    name = TableName("lake", source.slot_name, "t").sql
    spark.sql(f"ALTER TABLE {name} ADD COLUMN note string")
    spark.sql(f"UPDATE {name} SET note = 'of ' || b")
    t.alter(key=("b",))
    t.update(a_is(3), {"c": 1})
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    assert lake_rows(t, "a", "b", "note", "_pgoutput_op") == [
        (3, "same", "of same", "U"),
        (9, "other", "of other", "I"),
    ]


def test_a_soft_delete_of_one_of_two_equal_rows(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table("t", (column("a"),), identity="f")
    t.insert(1)
    t.insert(1)
    apply_batch(spark, replace(source.stage(), soft_delete=True))
    for _ in range(2):
        t.delete(a_is(1))
        apply_batch(spark, replace(source.stage(), soft_delete=True))
    assert lake_rows(t, "a", "_pgoutput_op") == [(1, "D"), (1, "D")]


@pytest.mark.parametrize(
    ("write_mode", "format_version"),
    [("copy-on-write", 2), ("copy-on-write", 3), ("merge-on-read", 3)],
)
def test_other_ways_to_write_give_the_same_rows(
    spark: SparkSession,
    source: Source,
    lake_rows: Any,
    lake_catalog_properties: dict[str, str],
    write_mode: str,
    format_version: int,
) -> None:
    keyed = source.table("t", ABC, key=("a",), toast=("b",))
    full = source.table("f", (column("a"),), identity="f")
    for a in range(10):
        keyed.insert(a, BIG, a)
        full.insert(a % 2)
    options: dict[str, Any] = {"write_mode": write_mode, "format_version": format_version}
    apply_batch(spark, replace(source.stage(), **options))
    keyed.update(a_is(3), {"a": 33})
    keyed.delete(a_is(4))
    keyed.alter(columns=(*ABC, column("d", "string", missing="old")))
    keyed.insert(50, "b", 5, "new")
    full.delete(a_is(1))
    apply_batch(spark, replace(source.stage(), **options))
    for relation in (keyed, full):
        assert lake_rows(relation) == source_rows(relation)
        assert pyiceberg_rows(source, relation, lake_catalog_properties) == source_rows(relation)


def test_a_data_file_has_one_file_of_deletes_after_any_number_of_batches(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table("t", (column("a"),), key=("a",))
    for first in (0, 10, 20):
        for a in range(first, first + 10):
            t.insert(a)
        apply_batch(spark, source.stage())
    for last in (1, 2):
        for a in (last, 10 + last, 20 + last):
            t.delete(a_is(a))
        apply_batch(spark, source.stage())
    assert lake_rows(t) == source_rows(t)
    files = spark.table(f"lake.{source.slot_name}.t.delete_files").collect()
    assert [row["record_count"] for row in files] == [2, 2, 2]


def pyiceberg_rows(source: Source, relation: Any, properties: dict[str, str]) -> list[Any]:
    catalog = load_catalog("lake", **properties)
    found = catalog.load_table((source.slot_name, relation.name)).scan().to_arrow().to_pylist()
    catalog.close()
    names = [each.name for each in relation.version.columns]
    return sorted((tuple(row[name] for name in names) for row in found), key=repr)


def test_pyiceberg_reads_deletion_vectors_and_identifier_fields(
    spark: SparkSession, source: Source, lake_catalog_properties: dict[str, str]
) -> None:
    t = source.table("t", ABC, key=("a", "c"))
    for a in range(6):
        t.insert(a, f"b{a}", a)
    apply_batch(spark, replace(source.stage(), format_version=3))
    t.delete(a_is(2))
    t.update(a_is(3), {"b": None})
    # A table that is there keeps its version, whatever the option says.
    apply_batch(spark, source.stage())
    assert pyiceberg_rows(source, t, lake_catalog_properties) == source_rows(t)
    catalog = load_catalog("lake", **lake_catalog_properties)
    table = catalog.load_table((source.slot_name, "t"))
    catalog.close()
    assert table.schema().identifier_field_names() == {"a", "c"}
    assert table.format_version == 3
    assert table.properties["pgoutput.source-table"] == "public.t"
    assert table.properties["write.parquet.row-group-size-bytes"] == str(16 << 20)


def test_partitions_properties_and_metadata_columns(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table(
        "orders", (column("id"), column("at", "timestamptz")), key=("id",), schema_name="s"
    )
    t.insert(1, COMMIT_TIME)
    t.insert(2, None)
    options = TableOptions(
        properties={
            "write.target-file-size-bytes": "1048576",
            "write.parquet.row-group-size-bytes": "4194304",
        },
        partitioned_by=("days(`at`)", "bucket(4, id)"),
    )
    metadata = ("_pgoutput_commit_lsn", "_pgoutput_commit_ts", "_pgoutput_op")
    plan = replace(source.stage(), table_options={"s.orders": options}, metadata_columns=metadata)
    apply_batch(spark, plan)
    t.update(lambda row: row["id"] == 2, {"at": COMMIT_TIME})
    changed_at = source.pending[-1][0]
    apply_batch(
        spark,
        replace(source.stage(), table_options={"s.orders": options}, metadata_columns=metadata),
    )
    assert lake_rows(t, "id", *metadata, target="s__orders")[1] == (
        2, changed_at, COMMIT_TIME.replace(tzinfo=None), "U",
    )  # fmt: skip
    table = IcebergTable.load(spark, TableName("lake", source.slot_name, "s__orders"))
    assert table is not None
    assert table.properties["write.target-file-size-bytes"] == "1048576"
    assert table.properties["write.parquet.row-group-size-bytes"] == "4194304"
    assert [str(each.name()) for each in table.java.spec().fields()] == ["at_day", "id_bucket"]


def test_rejected_values_are_kept_once(spark: SparkSession, source: Source, lake_rows: Any) -> None:
    import hashlib

    import pyarrow as pa
    import pyarrow.parquet as pq

    t = source.table("t", (column("a"),), key=("a",))
    t.insert(1)
    plan = source.stage()
    from airflow_provider_pgoutput.batch.manifest import Manifest

    path = source.staging / plan.manifest_uri.removeprefix(plan.staging_uri + "/")
    manifest = Manifest.from_json(path.read_text())
    file = source.staging / "x" / "rejected-00000.parquet"
    file.parent.mkdir()
    values = {"table_name": ["t"], "column_name": ["n"], "raw_value": ["NaN"]}
    pq.write_table(pa.table(values), file)
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    relative = "x/rejected-00000.parquet"
    rejected = StagedFile("rejected", relative, 1, len(content), digest, tuple(values))
    plan = source.write(replace(manifest, rejected_files=(rejected,)))
    apply_batch(spark, plan)
    # As after a kill between the side table and the checkpoint.
    spark.sql(f"DROP TABLE lake.{source.slot_name}.pgoutput_checkpoint")
    assert not apply_batch(spark, plan).already_applied
    name = f"lake.{source.slot_name}.pgoutput_rejected_values"
    found = spark.table(name).select("table_name", "column_name", "raw_value", "seq").collect()
    assert [tuple(row) for row in found] == [("t", "n", "NaN", None)]


def test_a_copy_replaces_the_rows_and_the_stream_goes_on_from_it(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table("t", ABC, key=("a",))
    t.insert(1, "one", 1)
    apply_batch(spark, source.stage())
    t.insert(2, "in the copy", 1)
    source.copy(t)
    t.update(a_is(1), {"c": 5})
    t.insert(3, "after", 1)
    spark.sql(f"INSERT INTO lake.{source.slot_name}.t VALUES (77, 'theirs', 0)")
    apply_batch(spark, source.stage())
    assert lake_rows(t) == source_rows(t)


def test_a_copy_of_an_empty_table_makes_the_table(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table("t", ABC, key=("a",))
    source.copy(t)
    plan = source.stage()
    apply_batch(spark, plan)
    assert lake_rows(t) == []
    t.insert(1, "x", 1)
    apply_batch(spark, source.stage())
    assert lake_rows(t) == source_rows(t)


@pytest.mark.parametrize("key", [(), ("a",)], ids=["no key", "key"])
def test_a_column_of_the_source_that_is_called_like_the_mark_is_none(
    spark: SparkSession, source: Source, lake_rows: Any, key: tuple[str, ...]
) -> None:
    columns = numbered((column("a"), column("_pgoutput_op", "string")))
    t = source.table("t", columns, key=key, identity="f")
    t.insert(1, "D")
    t.insert(2, "D")
    apply_batch(spark, source.stage())
    name = TableName("lake", source.slot_name, "t").sql
    spark.sql(f"ALTER TABLE {name} ADD COLUMN note string")
    spark.sql(f"UPDATE {name} SET note = concat('n', a)")
    t.delete(a_is(1))
    if key:
        source.copy(t)
    apply_batch(spark, source.stage())
    assert lake_rows(t) == source_rows(t)
    assert lake_rows(t, "a", "note") == [(2, "n2")]
