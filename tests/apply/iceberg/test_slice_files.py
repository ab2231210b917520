"""Whether a slice of a shared table is empty, and how large it is, by the bounds of files."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.slices import Slice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SHARED = TableName("lake", "slice_files", "shared")
LONG = "a tenant with a name that Iceberg cuts in its bounds"


def of(spark: SparkSession, tenant: str) -> IcebergTable:
    name = dataclasses.replace(SHARED, slice=Slice.of({"tenant": tenant}))
    found = IcebergTable.load(spark, name)
    assert found is not None
    return found


def seen(spark: SparkSession, tenant: str) -> tuple[bool | None, bool, tuple[int, int]]:
    """What the bounds say, what is true, and rows and files."""
    table = of(spark, tenant)
    head = table.head
    assert head is not None
    known = table.slice_files.is_empty(table.java, head)
    assert known in (None, table.is_empty)
    return known, table.is_empty, table.slice_files.size(table.java, head)


def test_what_the_bounds_tell(spark: SparkSession) -> None:
    """Each INSERT makes a file."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.slice_files")
    spark.sql(
        "CREATE TABLE lake.slice_files.shared (id bigint) USING iceberg"
        " TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')"
    )
    spark.sql("INSERT INTO lake.slice_files.shared VALUES (0)")
    before = of(spark, "a")
    head = before.head
    assert head is not None
    # The snapshot does not have the column. Only the rows tell.
    assert before.slice_files.is_empty(before.java, head) is None
    spark.sql("ALTER TABLE lake.slice_files.shared ADD COLUMN tenant string")
    # Its rows have NULL there, and the file has no bounds.
    assert seen(spark, "a")[1] is True
    for ids, tenant in (((1, 2), "a"), ((3,), "a"), ((1,), "b"), ((1,), LONG)):
        values = ", ".join(f"({number}, '{tenant}')" for number in ids)
        spark.sql(
            f"INSERT INTO lake.slice_files.shared SELECT /*+ COALESCE(1) */ * FROM VALUES {values}"
        )
    known, is_empty, (rows, files) = seen(spark, "a")
    assert (known, is_empty) == (False, False)
    # The file without bounds may have such rows.
    assert (rows, files) == (4, 3)
    assert seen(spark, "b")[:2] == (False, False)
    assert seen(spark, LONG)[:2] == (None, False)
    assert seen(spark, "aa")[:2] == (None, True)
    spark.sql("DELETE FROM lake.slice_files.shared WHERE tenant IS NULL")
    # The row is only marked as deleted.
    assert seen(spark, "aa") == (None, True, (1, 1))
    # Of one file a row is deleted, so it tells no more. The other one does.
    spark.sql("DELETE FROM lake.slice_files.shared WHERE id = 1 AND tenant = 'a'")
    assert seen(spark, "a") == (False, False, (4, 3))
    spark.sql("DELETE FROM lake.slice_files.shared WHERE tenant = 'a' AND id <> 2")
    assert seen(spark, "a")[:2] == (None, False)
    # One file for all.
    spark.sql(
        "CALL lake.system.rewrite_data_files(table => 'slice_files.shared',"
        " options => map('rewrite-all', 'true'))"
    )
    assert seen(spark, "a") == (None, False, (3, 1))
    assert seen(spark, "zz") == (True, True, (0, 0))
    spark.sql("DROP TABLE lake.slice_files.shared")
