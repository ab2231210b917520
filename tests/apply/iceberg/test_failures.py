"""A failure of Spark or Iceberg that has no name here becomes an error of ours all the same."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.errors import LakeUnavailable, SparkFailed, TableDamaged
from tests.apply.build import column
from tests.apply.conftest import source_rows
from tests.apply.fold_cases import a_is

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.apply.build import Source


def test_what_spark_cannot_read_is_named_and_no_value_is_told(
    spark: SparkSession,
    source: Source,
    lake_rows: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A file is gone that lies elsewhere than the table, so nothing says that the store is not out.

    The copy that brings the rows back needs no file of before.
    """
    t = source.table("t", (column("a"), column("b", "string")), key=("a",))
    t.insert(1, "canary")
    name = TableName("lake", source.slot_name, "t")
    elsewhere = TableOptions(properties={"write.data.path": (tmp_path / "elsewhere").as_uri()})
    apply_batch(spark, replace(source.stage(), table_options={"public.t": elsewhere}))
    (row,) = spark.sql(f"SELECT file_path FROM {name.sql}.files").collect()
    assert "elsewhere" in row["file_path"]
    Path(urlsplit(row["file_path"]).path).unlink()
    t.update(a_is(1), {"b": "canary of now"})
    plan = source.stage()
    caplog.set_level(logging.ERROR)
    with pytest.raises(SparkFailed, match="Exception") as failed:
        apply_batch(spark, plan)
    assert failed.value.table == name.target
    assert "org.apache.iceberg" in caplog.text, "where it was thrown is told"
    assert "canary" not in caplog.text + str(failed.value)
    source.staged_to = 0x1_0000_1000
    source.copy(t)
    apply_batch(spark, source.stage())
    assert lake_rows(t) == source_rows(t)


def test_bytes_that_cannot_be_read_are_the_fault_of_a_file_and_not_of_the_catalog(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table("t", (column("a"), column("b", "string")), key=("a",))
    for number in range(500):
        t.insert(number, f"canary {number * number}")
    apply_batch(spark, source.stage())
    name = TableName("lake", source.slot_name, "t")
    (row,) = spark.sql(f"SELECT file_path FROM {name.sql}.files").collect()
    file = Path(urlsplit(row["file_path"]).path)
    whole = file.read_bytes()
    # The head of the first page. The end, which says where all is, stays whole.
    file.write_bytes(whole[:4] + bytes(60) + whole[64:])
    t.update(a_is(1), {"b": "new"})
    plan = source.stage()
    with pytest.raises(LakeUnavailable, match="A file of the lake could not be read") as failed:
        apply_batch(spark, plan)
    assert failed.value.table == name.target
    assert "canary" not in str(failed.value)
    file.write_bytes(whole)
    apply_batch(spark, plan)
    assert lake_rows(t) == source_rows(t)


def test_the_files_of_an_encrypted_table_are_not_looked_at(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table("t", (column("a"), column("b", "string")), key=("a",))
    t.insert(1, "old")
    apply_batch(spark, source.stage())
    name = TableName("lake", source.slot_name, "t").sql
    (row,) = spark.sql(f"SELECT file_path FROM {name}.files").collect()
    file = Path(urlsplit(row["file_path"]).path)
    whole = file.read_bytes()
    file.unlink()
    t.update(a_is(1), {"b": "new"})
    plan = source.stage()
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('encryption.key-id' = 'any')")
    with pytest.raises(SparkFailed):
        apply_batch(spark, plan)
    spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('encryption.key-id')")
    with pytest.raises(TableDamaged):
        apply_batch(spark, plan)
    file.write_bytes(whole)
    apply_batch(spark, plan)
    assert lake_rows(t) == source_rows(t)
