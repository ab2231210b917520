"""Types by name and by lake type, checked against a server's own catalog and ``format_type``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_provider_pgoutput.capture.types import builtin_types
from airflow_provider_pgoutput.capture.types.mapping import (
    CATALOG_QUERY,
    TypeInfo,
    arrow_type,
    lake_type,
    type_catalog,
    type_name,
)
from airflow_provider_pgoutput.errors import ConfigurationError
from tests.capture.types.oracle import column_of
from tools.builtin_types import QUERY, module_text

if TYPE_CHECKING:
    import psycopg


MAPPED = {
    "boolean": "boolean",
    "smallint": "int",
    "integer": "int",
    "bigint": "long",
    "oid": "long",
    "xid": "long",
    "cid": "long",
    "xid8": "decimal(20, 0)",
    "real": "float",
    "double precision": "double",
    "numeric": "string",
    "numeric(12,2)": "decimal(12, 2)",
    "numeric(38,0)": "decimal(38, 0)",
    "numeric(39,1)": "string",
    "numeric(3,-2)": "decimal(5, 0)",
    "numeric(30,-9)": "string",
    "numeric(3,5)": "decimal(5, 5)",
    "numeric(1,39)": "string",
    "money": "string",
    "character varying(40)": "string",
    "character(3)": "string",
    "bpchar": "string",
    '"char"': "string",
    "name": "string",
    "text": "string",
    "bytea": "binary",
    "date": "date",
    "timestamp without time zone": "timestamp",
    "timestamp(3) without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "timestamp(0) with time zone": "timestamptz",
    "time(2) without time zone": "string",
    "time with time zone": "string",
    "interval": "string",
    "interval(3)": "string",
    "interval year to month": "string",
    "interval day to second(2)": "string",
    "interval second(1)": "string",
    "interval hour": "string",
    "uuid": "string",
    "json": "string",
    "jsonb": "string",
    "jsonpath": "string",
    "xml": "string",
    "inet": "string",
    "macaddr8": "string",
    "bit(3)": "string",
    "bit varying(5)": "string",
    "bit varying": "string",
    "int4range": "string",
    "int4multirange": "string",
    "point": "string",
    "box": "string",
    "tsvector": "string",
    "pg_lsn": "string",
    "int2vector": "string",
    "oidvector": "string",
    "regclass": "string",
    "integer[]": "list<int>",
    "numeric(12,2)[]": "list<decimal(12, 2)>",
    "character varying(9)[]": "list<string>",
    "timestamp with time zone[]": "list<timestamptz>",
    "bytea[]": "list<binary>",
    "box[]": "list<string>",
    "int4range[]": "list<string>",
    "point[]": "list<string>",
    "public.mood": "string",
    "public.mood[]": "list<string>",
    "public.pair": "string",
    "public.pair[]": "list<string>",
    "public.floats": "string",
    "public.price": "decimal(12, 2)",
    "public.price[]": "list<decimal(12, 2)>",
    "public.small_price": "decimal(12, 2)",
    "public.names": "list<string>",
    "public.names[]": "list<list<string>>",
    "public.corner": "string",
    # Its elements are separated by semicolons, which only box[] itself is known by.
    "public.corner[]": "string",
    "public.hstore": "map<string, string>",
    "public.hstore[]": "list<map<string, string>>",
    "public.citext": "string",
    '"Odd ""schema"."select"': "string",
    '"Odd ""schema"."select"[]': "list<string>",
}


@pytest.mark.parametrize(("type_sql", "expected"), MAPPED.items())
def test_a_column_has_this_lake_type_and_the_servers_name(
    session: psycopg.Connection[Any], type_sql: str, expected: str
) -> None:
    column = column_of(session, type_sql)
    assert column.lake_type == expected
    assert column.type_name == type_sql
    spelled = session.execute(
        "SELECT format_type(%s, %s)", (column.type_oid, column.type_modifier)
    ).fetchone()
    assert spelled == (type_sql,)


def test_every_type_of_the_server_has_its_name_and_some_lake_type(
    session: psycopg.Connection[Any],
) -> None:
    catalog = type_catalog(session.execute(CATALOG_QUERY).fetchall())
    rows = session.execute(
        "SELECT oid::int8, format_type(oid, -1) FROM pg_type"
        " WHERE typnamespace <> pg_my_temp_schema()"
    ).fetchall()
    assert len(rows) > 500
    for oid, name in rows:
        assert type_name(oid, -1, catalog) == name
        arrow_type(lake_type(oid, -1, catalog))


def test_the_built_in_types_are_those_of_the_server(session: psycopg.Connection[Any]) -> None:
    row = session.execute(QUERY).fetchone()
    assert row is not None
    made: dict[str, Any] = {}
    exec(module_text(json.dumps(row[0])), made)  # noqa: S102  the text is ours
    assert made["BUILTIN_ROWS"] == builtin_types.BUILTIN_ROWS
    # Keywords come and go between versions, and only those of the newest are in the file.
    if session.info.server_version >= 180000:
        assert made["QUOTED_KEYWORDS"] == builtin_types.QUOTED_KEYWORDS


def test_a_type_that_was_dropped_since_is_text() -> None:
    assert lake_type(987654, -1, {}) == "string"
    assert type_name(987654, -1, {}) == "???"
    array = TypeInfo(987655, "public", "_gone", "b", element_oid=987654)
    assert lake_type(987655, -1, {987655: array}) == "string"


@pytest.mark.parametrize("name", ["vector", "halfvec"])
def test_pgvector_types_are_lists_whatever_their_schema(name: str) -> None:
    catalog = {90001: TypeInfo(90001, "extensions", name, "b")}
    assert lake_type(90001, 3, catalog) == "list<float>"
    assert type_name(90001, 3, catalog) == f"extensions.{name}(3)"


def test_a_composite_named_like_an_extensions_type_is_text() -> None:
    assert lake_type(90001, -1, {90001: TypeInfo(90001, "public", "hstore", "c")}) == "string"


@pytest.mark.parametrize(
    ("lake", "expected"),
    [
        ("boolean", pa.bool_()),
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("decimal(12, 2)", pa.decimal128(12, 2)),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us")),
        ("timestamptz", pa.timestamp("us", tz="UTC")),
        ("list<int>", pa.list_(pa.field("element", pa.int32()))),
        ("map<string, string>", pa.map_(pa.string(), pa.string())),
    ],
)
def test_the_arrow_type_of_a_lake_type(lake: str, expected: pa.DataType) -> None:
    assert arrow_type(lake) == expected


@pytest.mark.parametrize(
    "lake", ["", "text", "list<>", "list<text>", "decimal(39, 0)", "decimal(2, 3)", "map<int, int>"]
)
def test_an_unknown_lake_type_is_refused(lake: str) -> None:
    with pytest.raises(ConfigurationError, match="Unknown lake type"):
        arrow_type(lake)
