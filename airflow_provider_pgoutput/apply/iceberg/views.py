"""Refuses a table whose name a view of the catalog has. Tables and views of a namespace share their names.

The catalog then finds no table of that name and makes none. Spark's ``CREATE TABLE IF NOT EXISTS`` reports no
error.

Source: https://iceberg.apache.org/view-spec/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.iceberg.jvm import JAVA_ERRORS
from airflow_provider_pgoutput.batch.checkpoint import OWN_TABLES
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.iceberg.sql import TableName


def refuse_view(spark: SparkSession, name: TableName, *, any_case: bool = False) -> None:
    """Look for a view of a name that has no table.

    :param any_case: also refuse a view whose name differs in case only.
    :raises TableRefused: there is such a view.
    """
    try:
        rows = spark.sql(f"SHOW VIEWS IN {name.namespace_sql}").collect()
    except JAVA_ERRORS:
        # The catalog has no views, or no such namespace yet.
        return
    wanted = name.name.lower() if any_case else name.name
    for found in (str(row["viewName"]) for row in rows if not row["isTemporary"]):
        if wanted == (found.lower() if any_case else found):
            way = (
                "use another namespace"
                if name.name in OWN_TABLES
                else "name another target for it (the option target of the table)"
            )
            raise TableRefused(
                f"The lake has a view of this name, {name.namespace}.{found}, so no table can have it.",
                table=name.target,
                advice=f"rename the view (ALTER VIEW ... RENAME TO ...), or {way}.",
            )
