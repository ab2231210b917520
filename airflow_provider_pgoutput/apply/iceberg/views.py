"""The views of a catalog. A table is refused if a view has its name: both share the names of a namespace.

The catalog then finds no table of that name and makes none. Spark's ``CREATE TABLE IF NOT EXISTS`` reports no
error.

Source: https://iceberg.apache.org/view-spec/
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.causes import sure_cause
from airflow_provider_pgoutput.apply.iceberg.jvm import (
    JAVA_ERRORS,
    activate,
    class_named,
    java_class,
    texts,
)
from airflow_provider_pgoutput.batch.checkpoint import OWN_TABLES
from airflow_provider_pgoutput.errors import LakeDenied, LakeUnavailable, TableRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.iceberg.sql import TableName

log = logging.getLogger(__name__)

#: What a catalog without views answers, or one that does not have the namespace yet. Spark's analysis throws
#: the third.
_NO_VIEWS = (
    "UnsupportedOperationException",
    "NoSuchNamespaceException",
    "AnalysisException",
)


#: What Spark throws if a catalog has no such view, no such namespace, or no views at all.
_NO_VIEW = (
    "NoSuchViewException",
    "NoSuchNamespaceException",
    "UnsupportedOperationException",
    "ClassCastException",
)


@dataclass(frozen=True, slots=True)
class View:
    """A view of the catalog."""

    name: TableName
    #: As its maker wrote it.
    query: str
    properties: Mapping[str, str]

    @classmethod
    def load(cls, spark: SparkSession, name: TableName) -> View | None:
        """Load a view as the catalog has it now; None: there is none, or the catalog keeps none.

        :raises LakeDenied: the catalog does not let this login load it.
        :raises LakeUnavailable: the catalog did not answer.
        """
        jvm: Any = spark._jvm
        java: Any = spark._jsparkSession
        activate(spark)
        parts = name.namespace.split(".")
        gateway: Any = spark.sparkContext._gateway
        namespace = gateway.new_array(jvm.java.lang.String, len(parts))
        for number, part in enumerate(parts):
            namespace[number] = part
        identifiers = class_named(jvm, "org.apache.spark.sql.connector.catalog.Identifier")
        try:
            catalog = java.sessionState().catalogManager().catalog(name.catalog)
            found = catalog.loadView(identifiers.of(namespace, name.name))
        except JAVA_ERRORS as error:
            if java_class(error).endswith(_NO_VIEW):
                return None
            raise sure_cause(error, name.target) or LakeUnavailable(
                f"The catalog did not say whether it has this view: {java_class(error)}.",
                table=name.target,
            ) from error
        return cls(name, str(found.query()), texts(jvm, found.properties()))


def refuse_view(spark: SparkSession, name: TableName, *, any_case: bool = False) -> None:
    """Look for a view of a name that has no table.

    :param any_case: also refuse a view whose name differs in case only.
    :raises TableRefused: there is such a view.
    :raises LakeUnavailable: the catalog did not say which views there are.
    """
    wanted = name.name.lower() if any_case else name.name
    for found in _views(spark, name):
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


def _views(spark: SparkSession, name: TableName) -> Iterator[str]:
    """The names of the views in the namespace of a table."""
    try:
        rows = spark.sql(f"SHOW VIEWS IN {name.namespace_sql}").collect()
    except JAVA_ERRORS as error:
        if java_class(error).endswith(_NO_VIEWS):
            return
        named = sure_cause(error, name.target)
        if isinstance(named, LakeDenied):
            # A login needs no right on views. If the table cannot be made, the failure of that says so.
            log.warning(
                "%s: the catalog does not let this login list the views of the namespace, so it is not known"
                " whether one has the name of the table.",
                name.target,
            )
            return
        raise named or LakeUnavailable(
            f"The catalog did not say which views there are: {java_class(error)}.",
            table=name.target,
        ) from error
    yield from (str(row["viewName"]) for row in rows if not row["isTemporary"])
