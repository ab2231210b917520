"""Compare a table of the lake with a table of the source, value by value, as multisets of rows.

Both sides are brought to one text form: PostgreSQL's own output under pinned settings, lists and
maps as JSON. It is written without any code of the package, so that it can judge the package.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
from psycopg import sql
from pyiceberg.catalog import load_catalog
from pyspark.sql import functions
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    TimestampType,
)

from tests.capture.types.oracle import plain
from tests.conformance.pipeline import CATALOG

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructField

    from tests.conformance.pipeline import Pipeline
    from tests.conformance.scenario import Row

PINNED = (
    "SET DateStyle = 'ISO'",
    "SET IntervalStyle = 'postgres'",
    "SET TimeZone = 'UTC'",
    "SET extra_float_digits = 1",
    "SET bytea_output = 'hex'",
    "SET lc_monetary = 'C'",
)


def connect(conninfo: str) -> psycopg.Connection[Any]:
    """A session in autocommit whose text output does not depend on the database's settings."""
    session = psycopg.connect(conninfo, autocommit=True, client_encoding="utf8")
    for statement in PINNED:
        session.execute(statement)
    return session


def read_source(
    session: psycopg.Connection[Any], schema: str, table: str, fields: Sequence[StructField]
) -> Counter[Row]:
    """All rows of a table of the source; ``fields`` are the columns as the lake has them."""
    columns = sql.SQL(", ").join(_source_text(field) for field in fields)
    query = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(schema, table))
    # The bytes of the result are what the type's output function wrote; a cast to text is another
    # function for some types: inet gets a netmask, char(n) loses its padding.
    result = session.execute(query).pgresult
    assert result is not None, "a SELECT has a result"
    return Counter(
        tuple(
            canonical(_decoded(result.get_value(row, column)), field.dataType)
            for column, field in enumerate(fields)
        )
        for row in range(result.ntuples)
    )


def source_columns(session: psycopg.Connection[Any], schema: str, table: str) -> tuple[str, ...]:
    """Names of the columns of a table of the source, in order."""
    rows = session.execute(
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        (schema, table),
    )
    return tuple(name for (name,) in rows)


def lake_fields(spark: SparkSession, identifier: str) -> dict[str, StructField]:
    """Columns of a table of the lake by name."""
    return {field.name: field for field in spark.table(identifier).schema.fields}


def read_lake(spark: SparkSession, identifier: str, fields: Sequence[StructField]) -> Counter[Row]:
    """All rows of a table of the lake. ``identifier`` is quoted for Spark already."""
    utc = spark.newSession()
    utc.conf.set("spark.sql.session.timeZone", "UTC")
    frame = utc.table(identifier).select(
        *(
            _lake_text(functions.col(quoted(field.name)), field.dataType).alias(f"c{number}")
            for number, field in enumerate(fields)
        )
    )
    return Counter(
        tuple(canonical(value, field.dataType) for value, field in zip(row, fields, strict=True))
        for row in frame.collect()
    )


def read_with_pyiceberg(pipeline: Pipeline, table: str) -> Counter[Row]:
    """All rows and columns of a table of the lake, without Spark."""
    catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
    return read_arrow(catalog.load_table((pipeline.namespace, table)).scan().to_arrow())


def delete_files(pipeline: Pipeline, table: str) -> int:
    """How many files of deletes a table of the lake has: none where it is written copy-on-write."""
    catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
    snapshot = catalog.load_table((pipeline.namespace, table)).current_snapshot()
    summary = snapshot.summary if snapshot else None
    return int(summary.get("total-delete-files", "0")) if summary else 0


def read_arrow(table: pa.Table) -> Counter[Row]:
    """The rows of an Arrow table; moments and floats by their bits."""
    names = sorted(table.column_names)
    columns = [plain(table.column(name).combine_chunks()) for name in names]
    return Counter(tuple(map(repr, row)) for row in zip(*columns, strict=True))


def quoted(*names: str) -> str:
    """An identifier in Spark's quotes."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def difference(found: Counter[Row], wanted: Counter[Row]) -> str:
    """What is missing and what is too much, shortened; empty when the multisets are equal."""
    missing, surplus = wanted - found, found - wanted
    if not missing and not surplus:
        return ""
    return f"missing {_shortened(missing)}, too much {_shortened(surplus)}"


def canonical(value: Any, data_type: DataType) -> str | None:
    """The text form that both sides share."""
    if value is None:
        return None
    if isinstance(data_type, ArrayType):
        items = json.loads(value) if isinstance(value, str) else value
        inner = [canonical(item, data_type.elementType) for item in items]
        return json.dumps(inner, ensure_ascii=False)
    if isinstance(data_type, MapType):
        pairs = json.loads(value) if isinstance(value, str) else value
        return json.dumps(dict(sorted(pairs.items())), ensure_ascii=False)
    return _SCALARS.get(type(data_type), str)(value)


_SCALARS: dict[type[DataType], Callable[[Any], str]] = {
    BooleanType: lambda value: {"t": "true", "f": "false"}.get(value, value),
    DoubleType: lambda value: repr(float(value)),
    FloatType: lambda value: str(np.float32(value)),
}


def _source_text(field: StructField) -> sql.Composable:
    name = sql.Identifier(field.name)
    if isinstance(field.dataType, ArrayType):
        return sql.SQL(
            "CASE WHEN {0} IS NOT NULL THEN (SELECT coalesce(json_agg(e::text ORDER BY o), '[]')"
            "::text FROM unnest({0}) WITH ORDINALITY AS u(e, o)) END"
        ).format(name)
    if isinstance(field.dataType, MapType):
        return sql.SQL("public.hstore_to_json({})::text").format(name)
    return name


def _decoded(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _lake_text(column: Column, data_type: DataType) -> Column:
    if isinstance(data_type, ArrayType):
        element = data_type.elementType
        return functions.transform(column, lambda item: _lake_text(item, element))
    if isinstance(data_type, MapType | DoubleType | FloatType):
        return column
    if isinstance(data_type, BinaryType):
        return functions.concat(functions.lit("\\x"), functions.lower(functions.hex(column)))
    text = column.cast("string")
    return (
        functions.concat(text, functions.lit("+00"))
        if isinstance(data_type, TimestampType)
        else text
    )


def _shortened(rows: Counter[Row]) -> list[Any]:
    shown = [
        (*(value if value is None else value[:60] for value in row), f"x{count}")
        for row, count in rows.items()
    ]
    return shown[:5] + [f"... {len(shown)} in all"] * (len(shown) > 5)
