"""Creates target tables and brings their schema to the batch's columns, before rows are written.

Columns are added and widened, never dropped. A schema change is a commit of its own that moves no
branch: a killed run leaves a wider table, and the next run finds it so.
Source: https://iceberg.apache.org/docs/latest/evolution/ and /spec/#default-values.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg import IcebergTable
from airflow_provider_pgoutput.apply.java import JAVA_ERRORS, java_class
from airflow_provider_pgoutput.apply.names import TableName, literal, quote
from airflow_provider_pgoutput.apply.types import spark_type
from airflow_provider_pgoutput.apply.versions import missing_value
from airflow_provider_pgoutput.errors import LakeUnavailable, TableRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.manifest import Column

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
#: ``IF NOT EXISTS`` looks first and creates then: tables prepared at the same time would both create.
_NAMESPACE_LOCK = threading.Lock()
#: Types that the specification does not allow for identifier fields.
_NO_IDENTIFIER = ("float", "double", "list<", "map<")


def create_table(
    spark: SparkSession,
    name: TableName,
    columns: Sequence[tuple[str, str, bool]],
    *,
    comment: str,
    properties: Mapping[str, str],
    partitioned_by: Sequence[str] = (),
) -> IcebergTable:
    """Create a table, and its namespace, unless they exist.

    :param columns: name, lake type and whether it is required, of each column.
    :param partitioned_by: transforms in Spark's notation.
    """
    with _NAMESPACE_LOCK:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.namespace_sql}")
    fields = ", ".join(
        f"{quote(column)} {spark_type(kind)}{' NOT NULL' if required else ''}"
        for column, kind, required in columns
    )
    parts = [f"CREATE TABLE IF NOT EXISTS {name.sql} ({fields}) USING iceberg"]
    if partitioned_by:
        parts.append(f"PARTITIONED BY ({', '.join(partitioned_by)})")
    if location := _safe_location(spark, name):
        parts.append(f"LOCATION {literal(location)}")
    parts.append(f"COMMENT {literal(comment)}")
    pairs = ", ".join(f"{literal(key)} = {literal(properties[key])}" for key in properties)
    parts.append(f"TBLPROPERTIES ({pairs})")
    spark.sql(" ".join(parts))
    logger.info("Created %s.", name.target)
    created = IcebergTable.load(spark, name)
    if created is None:
        raise LakeUnavailable("The table is not there after its creation.", table=name.target)
    return created


def _safe_location(spark: SparkSession, name: TableName) -> str | None:
    """A location for a table whose name has characters that do not fit into a path."""
    warehouse = spark.conf.get(f"spark.sql.catalog.{name.catalog}.warehouse", "")
    if name.fits_a_path or not warehouse:
        return None
    digest = hashlib.sha256(name.name.encode()).hexdigest()[:16]
    return f"{warehouse.rstrip('/')}/{name.namespace.replace('.', '/')}/table-{digest}"


def evolve(
    spark: SparkSession,
    table: IcebergTable,
    columns: Sequence[Column],
    key: Sequence[str],
    properties: Mapping[str, str],
) -> None:
    """Add and widen columns, set identifier fields and properties, as far as the table lacks them.

    :param columns: in the types that the target shall have.
    :param key: names of the key columns; other columns that are required become optional.
    :raises TableRefused: somebody else kept changing the schema at the same time.
    """
    for _ in range(_ATTEMPTS):
        try:
            if _evolve_once(spark, table, columns, key):
                logger.info("Changed the schema of %s.", table.name.target)
            stale = {name for name in properties if table.properties.get(name) != properties[name]}
            if stale:
                change = table.java.updateProperties()
                for name in sorted(stale):
                    change = change.set(name, properties[name])
                change.commit()
            table.java.refresh()
            return
        except JAVA_ERRORS as error:
            if not java_class(error).endswith("CommitFailedException"):
                raise
            table.java.refresh()
    raise TableRefused(
        "The schema is being changed by somebody else.",
        table=table.name.target,
        advice="try again.",
    )


def _evolve_once(
    spark: SparkSession, table: IcebergTable, columns: Sequence[Column], key: Sequence[str]
) -> bool:
    schema = table.java.schema()
    present = {str(field.name()): field for field in schema.columns()}
    change, changed = table.java.updateSchema().caseSensitive(True), False
    for column in columns:
        kind = _java_type(spark, column.lake_type)
        field = present.get(column.name)
        if field is None:
            default = _default(spark, table, column, kind)
            change = change.addColumn(None, column.name, kind, None, default)
            changed = True
        elif not field.type().equals(kind) and field.type().isPrimitiveType():
            change, changed = change.updateColumn(column.name, kind), True
    for name, field in present.items():
        if field.isRequired() and name not in key:
            change, changed = change.makeColumnOptional(name), True
    identifiers = {str(name) for name in schema.identifierFieldNames()}
    usable = all(
        name in present
        and present[name].isRequired()
        and not str(present[name].type()).startswith(_NO_IDENTIFIER)
        for name in key
    )
    wanted = set(key) if usable else set()
    if identifiers != wanted:
        change, changed = change.setIdentifierFields(_java_list(spark, sorted(wanted))), True
    if changed:
        change.commit()
        table.java.refresh()
    return changed


def _default(spark: SparkSession, table: IcebergTable, column: Column, kind: Any) -> Any:
    """The literal that older rows show in a new column; null when there is none.

    Before format version 3 a table cannot hold it, see ``older_rows``.
    """
    if column.missing_value is None or format_version(table) < 3 or not kind.isPrimitiveType():
        return None
    jvm: Any = spark._jvm
    converted = spark.range(1).selectExpr(f"{missing_value(column)} AS v")
    java_value = converted._jdf.head().get(0)
    internal = jvm.org.apache.iceberg.spark.SparkValueConverter.convert(kind, java_value)
    return jvm.org.apache.iceberg.expressions.Expressions.lit(internal).to(kind)


def format_version(table: IcebergTable) -> int:
    """The table's format version."""
    return int(table.java.operations().current().formatVersion())


def _java_type(spark: SparkSession, lake_type: str) -> Any:
    jvm: Any = spark._jvm
    fields = jvm.org.apache.spark.sql.types.StructType.fromDDL(f"v {spark_type(lake_type)}")
    return jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(fields).columns().get(0).type()


def _java_list(spark: SparkSession, values: Sequence[str]) -> Any:
    jvm: Any = spark._jvm
    found = jvm.java.util.ArrayList()
    for value in values:
        found.add(value)
    return found
