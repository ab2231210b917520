"""Asks catalogs for a table, as the job of Spark does, and says with which error each of them answers.

It is started by its path, with a request as JSON: settings of Spark, the names of the catalogs, and perhaps
``makes``. Then it makes a table in each, which writes a file into the store of the tables.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from airflow_provider_pgoutput.apply.iceberg.failures import named_failures
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.errors import PgoutputError

if TYPE_CHECKING:
    from collections.abc import Sequence


def main() -> None:
    """Ask each catalog of the request; print class and message of its error, or nothing."""
    request = json.load(sys.stdin)
    builder = SparkSession.builder.master("local[1]")
    for key, value in request["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    asked: Sequence[str] = request["asked"]
    answers = {name: _answer(spark, name, makes=request.get("makes", False)) for name in asked}
    spark.stop()
    print(json.dumps(answers))


def _answer(spark: SparkSession, catalog: str, *, makes: bool) -> list[str] | None:
    try:
        if makes:
            with named_failures():
                spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.n")
                spark.sql(f"CREATE TABLE {catalog}.n.t (a int) USING iceberg")
        else:
            IcebergTable.load(spark, TableName(catalog, "n", "t"))
    except PgoutputError as error:
        return [type(error).__name__, str(error)]
    return None


if __name__ == "__main__":
    main()
