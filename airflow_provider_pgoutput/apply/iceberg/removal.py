"""Removes what a job made and then refused: tables without rows, and a namespace without tables.

Such a refusal is about the catalog. It leaves nothing for the user to clear away. Only what this job made is
removed, and only as long as it is empty.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.iceberg.jvm import JAVA_ERRORS, elements, java_class
from airflow_provider_pgoutput.apply.iceberg.sql import Sql
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.iceberg.sql import TableName

log = logging.getLogger(__name__)


def namespace_is_missing(spark: SparkSession, name: TableName) -> bool:
    """Whether the catalog says that the namespace of a table does not exist. Any other answer is no."""
    try:
        spark.sql(f"DESCRIBE NAMESPACE {name.namespace_sql}").collect()
    except JAVA_ERRORS as error:
        # Whatever else is wrong, the next statement in the namespace says it.
        return java_class(error).endswith("NoSuchNamespaceException")
    return False


def remove_table(spark: SparkSession, name: TableName) -> bool:
    """Drop a table that this job made, with its metadata files, unless a snapshot of it has rows.

    The files stay where the catalog does not let tables delete files, as Nessie.

    :return: whether the catalog has no such table any more. If it has, the log says why.
    """
    table = IcebergTable.load(spark, name)
    if table is None:
        return True
    if not all(
        each.summary().get("total-records") == "0" for each in elements(table.java.snapshots())
    ):
        log.warning("%s stays: somebody else wrote rows to it.", name.target)
        return False
    drop = Sql(f"DROP TABLE IF EXISTS {name.sql}")
    # Iceberg refuses PURGE otherwise, and the table would stay.
    if table.properties.get("gc.enabled", "true").lower() != "false":
        drop = Sql(f"{drop} PURGE")
    return _removed(spark, drop, f"table {name.target}")


def remove_namespace(spark: SparkSession, name: TableName) -> bool:
    """Drop the namespace of a table, which this job made. The catalog refuses it if it has tables.

    :return: whether it is gone. If not, the log says why.
    """
    statement = Sql(f"DROP NAMESPACE IF EXISTS {name.namespace_sql}")
    return _removed(spark, statement, f"namespace {name.namespace}")


def _removed(spark: SparkSession, statement: Sql, what: str) -> bool:
    try:
        spark.sql(statement)
    except JAVA_ERRORS as error:
        log.warning("The empty %s stays, drop it by hand: %s.", what, java_class(error))
        return False
    return True
