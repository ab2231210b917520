"""Refuses a table whose name a view of the catalog has: tables and views of a namespace share their names.

A catalog gives such a name no table, and takes none of that name, and Spark's ``IF NOT EXISTS`` is silent
about it.

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
    """Look for a view; to be asked for a name that has no table.

    :param any_case: whether a view whose name differs only in case is in the way, too.
    :raises TableRefused: there is one.
    """
    try:
        rows = spark.sql(f"SHOW VIEWS IN {name.namespace_sql}").collect()
    except JAVA_ERRORS:
        # The catalog has no views, or the namespace is not there yet.
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
