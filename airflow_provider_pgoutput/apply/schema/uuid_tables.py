"""Tables with uuid columns. Iceberg's API makes them, because Spark SQL has no such type.

Iceberg 1.12 reads the bounds of uuids wrongly: a filter on a uuid skips files that do hold the row (measured,
see ``docs/reference/types.md``). So these tables write no bounds of uuid columns. ``evolve.py`` makes all
other tables.

Source: https://iceberg.apache.org/docs/latest/configuration/#write-properties
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.jvm import JAVA_ERRORS, class_named, java_class
from airflow_provider_pgoutput.apply.schema.spark_types import UUID
from airflow_provider_pgoutput.batch.lake_types import list_element, map_entry, struct_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.iceberg.sql import Sql, TableName


def without_bounds(column: str, lake_type: str) -> dict[str, str]:
    """The table properties by which the files have no bounds of the uuids in a column."""
    found = {}
    for path in _uuid_paths(column, lake_type):
        found[f"write.metadata.metrics.column.{path}"] = "counts"
        found[f"write.parquet.stats-enabled.column.{path}"] = "false"
    return found


def _uuid_paths(path: str, lake_type: str) -> Iterator[str]:
    """Iceberg's names of the uuids in a column: the column itself, elements, fields of structs."""
    if lake_type == UUID:
        yield path
    if element := list_element(lake_type):
        yield from _uuid_paths(f"{path}.element", element)
    for name, kind in struct_fields(lake_type) or ():
        yield from _uuid_paths(f"{path}.{name}", kind)


def java_schema(spark: SparkSession, columns: Sequence[tuple[str, str, bool]]) -> Any:
    """Make an Iceberg schema.

    :param columns: name, lake type, and whether the column is required.
    """
    jvm: Any = spark._jvm
    ids = itertools.count(1)
    fields = [_field(ids, name, kind, required) for name, kind, required in columns]
    text = json.dumps({"type": "struct", "schema-id": 0, "fields": fields})
    return class_named(jvm, "org.apache.iceberg.SchemaParser").fromJson(text)


def _field(ids: Iterator[int], name: str, kind: str, required: bool) -> dict[str, Any]:
    return {"id": next(ids), "name": name, "required": required, "type": _json_type(ids, kind)}


def _json_type(ids: Iterator[int], lake_type: str) -> Any:
    """A type as Iceberg writes it as JSON, see https://iceberg.apache.org/spec/#schemas ."""
    if element := list_element(lake_type):
        head = {"type": "list", "element-id": next(ids), "element-required": False}
        return {**head, "element": _json_type(ids, element)}
    if entry := map_entry(lake_type):
        key = {"type": "map", "key-id": next(ids), "key": _json_type(ids, entry[0])}
        value = {"value-id": next(ids), "value-required": False}
        return {**key, **value, "value": _json_type(ids, entry[1])}
    if fields := struct_fields(lake_type):
        inner = [_field(ids, name, kind, required=False) for name, kind in fields]
        return {"type": "struct", "fields": inner}
    return lake_type


def create(
    spark: SparkSession,
    name: TableName,
    statement: Sql,
    columns: Sequence[tuple[str, str, bool]],
    properties: Mapping[str, str],
    location: str | None,
) -> None:
    """Create a table unless it exists.

    :param statement: the CREATE TABLE of the same table with text in place of uuids. It is not executed; only
        its partitioning is taken.
    :param columns: name, lake type, and whether the column is required.
    """
    jvm: Any = spark._jvm
    spark_util = class_named(jvm, "org.apache.iceberg.spark.Spark3Util")
    java_session: Any = spark._jsparkSession
    partitioning = java_session.sessionState().sqlParser().parsePlan(statement).partitioning()
    transforms = _array(
        spark,
        class_named(jvm, "org.apache.spark.sql.connector.expressions.Transform"),
        [partitioning.apply(i) for i in range(partitioning.size())],
    )
    schema = java_schema(spark, columns)
    parts = _array(spark, class_named(jvm, "java.lang.String"), name.namespace.split("."))
    namespace = class_named(jvm, "org.apache.iceberg.catalog.Namespace").of(parts)
    identifiers = class_named(jvm, "org.apache.iceberg.catalog.TableIdentifier")
    identifier = identifiers.of(namespace, name.name)
    catalog = spark_util.loadIcebergCatalog(java_session, name.catalog)
    builder = catalog.buildTable(identifier, schema).withPartitionSpec(
        spark_util.toPartitionSpec(schema, transforms)
    )
    if location:
        builder = builder.withLocation(location)
    bounds = {
        key: value
        for column, kind, _ in columns
        for key, value in without_bounds(column, kind).items()
    }
    for key, value in {**bounds, **properties}.items():
        builder = builder.withProperty(key, value)
    try:
        builder.create()
    except JAVA_ERRORS as error:
        if not java_class(error).endswith("AlreadyExistsException"):
            raise


def _array(spark: SparkSession, kind: Any, values: Sequence[Any]) -> Any:
    context: Any = spark.sparkContext
    found = context._gateway.new_array(kind, len(values))
    for position, value in enumerate(values):
        found[position] = value
    return found
