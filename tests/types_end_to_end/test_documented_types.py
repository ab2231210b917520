"""The page of types says which types the tables in the lake have: asked of pyiceberg and of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.catalog import load_catalog
from pyiceberg.types import IcebergType, ListType, MapType, StructType
from pyspark.sql import types as spark_types

from airflow_provider_pgoutput.batch.lake_types import struct_type
from tools.types_page import spark_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.table_version import Column
    from tests.types_end_to_end.conftest import Carried


_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "types.md"


def _columns(carried: Carried) -> list[Column]:
    """The columns of the table as they were staged, without its key."""
    (table,) = (
        each for each in carried.batches[-1].manifest.tables if each.name == "public.values"
    )
    return list(table.versions[-1].columns[1:])


def _iceberg(kind: IcebergType) -> str:
    """A type of pyiceberg as the page spells it."""
    if isinstance(kind, ListType):
        return f"list<{_iceberg(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{_iceberg(kind.key_type)}, {_iceberg(kind.value_type)}>"
    if isinstance(kind, StructType):
        return struct_type((each.name, _iceberg(each.field_type)) for each in kind.fields)
    return str(kind)


def _spark(kind: spark_types.DataType) -> str:
    """A type of Spark as the page spells it."""
    if isinstance(kind, spark_types.ArrayType):
        return f"ARRAY<{_spark(kind.elementType)}>"
    if isinstance(kind, spark_types.MapType):
        return f"MAP<{_spark(kind.keyType)}, {_spark(kind.valueType)}>"
    if isinstance(kind, spark_types.StructType):
        return (
            f"STRUCT<{', '.join(f'{each.name}: {_spark(each.dataType)}' for each in kind.fields)}>"
        )
    if isinstance(kind, spark_types.DecimalType):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return kind.simpleString().upper()


def test_every_column_has_the_types_of_the_page(
    carried_in_each_mode: Carried, spark: SparkSession
) -> None:
    pipeline = carried_in_each_mode.pipeline
    catalog = load_catalog("lake", **pipeline.catalog_properties)
    schema = catalog.load_table((pipeline.namespace, "values")).schema()
    fields = spark.table(f"lake.{pipeline.namespace}.`values`").schema
    columns = _columns(carried_in_each_mode)
    assert len(columns) == len(carried_in_each_mode.places)
    for column in columns:
        found = _iceberg(schema.find_type(column.name)), _spark(fields[column.name].dataType)
        assert found == (column.lake_type, spark_type(column.lake_type)), column.type_name


def test_every_built_in_type_that_was_carried_is_a_row_of_the_page(carried: Carried) -> None:
    rows, found = _PAGE.read_text().splitlines(), 0
    for column, described in zip(_columns(carried), carried.staged.columns, strict=True):
        is_base = column.type_oid < 10_000 and not described.sql_type.endswith("[]")
        if not is_base or column.type_modifier != -1 or described.choice:
            continue
        lake = column.lake_type
        start = f"| `{column.type_name}` | `{lake}` | `{spark_type(lake)}` |"
        assert any(row.startswith(start) for row in rows), start
        found += 1
    assert found > 60
