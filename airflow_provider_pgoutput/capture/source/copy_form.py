"""In which form a copy fetches each column, so that its values are exactly those of the stream.

There are three forms, by type. ADBC's own, if its Arrow value is the lake's value. What the type's send
function makes, if the casters of binary mode are faster than those of text. Otherwise the text that the
output function prints. ``copy/read.py`` has the query.

Source: https://www.postgresql.org/docs/current/protocol-overview.html (formats and format codes)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from airflow_provider_pgoutput.capture.types.copied_moments import MOMENT_OIDS

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.table_version import Column

#: Built-in types whose binary form, as ADBC reads it, is exactly the value that the text gives:
#: bool, bytea, int8, int2, int4, text, float4, float8, bpchar, varchar.
_BINARY_OIDS = frozenset({16, 17, 20, 21, 23, 25, 700, 701, 1042, 1043})
#: Of these, the ones whose Arrow form prints as PostgreSQL does, so that they can name a key.
_PLAIN_TEXT_OIDS = frozenset({20, 21, 23, 25, 1042, 1043})
#: Built-in types that are text: text, bpchar, varchar.
_TEXT_OIDS = frozenset({25, 1042, 1043})
#: Built-in types without a cast to text of their own, so that ``::text`` is what the output function
#: prints: date, timestamp, timestamptz (as keys), interval, time, timetz, numeric, uuid, json, jsonb.
_CASTABLE_OIDS = frozenset({1082, 1114, 1184, 1186, 1083, 1266, 1700, 2950, 114, 3802})
_NUMERIC_OID = 1700
#: Arrays of bool, bytea, int2, int4, text, int8, float4, float8, bpchar, varchar, timestamp, date,
#: timestamptz, numeric, uuid.
_ARRAY_OIDS = frozenset(
    {1000, 1001, 1005, 1007, 1009, 1016, 1021, 1022, 1014, 1015, 1115, 1182, 1185, 1231, 2951}
)


def is_binary(column: Column, *, is_key: bool) -> bool:
    """Whether a column is fetched as ADBC reads it. Values of keys must also print like PostgreSQL's.

    So must columns that are text in the lake by the user's choice.
    """
    if column.lake_type == "string" and column.type_oid not in _TEXT_OIDS:
        return False
    return column.type_oid in (_PLAIN_TEXT_OIDS if is_key else _BINARY_OIDS | MOMENT_OIDS)


def is_sent(column: Column) -> bool:
    """Whether a column is fetched as its type's send function makes it.

    Decimals and lists are. Types that are text in the lake are not: the server prints them at less cost.
    """
    if column.type_oid == _NUMERIC_OID:
        return column.lake_type.startswith("decimal")
    return column.type_oid in _ARRAY_OIDS and column.lake_type.startswith("list<")


def expression(column: Column, *, is_key: bool) -> sql.Composable:
    """The expression that a query selects for a column."""
    name = sql.Identifier(column.name)
    if is_binary(column, is_key=is_key):
        return name
    if is_sent(column):
        function = "numeric_send" if column.type_oid == _NUMERIC_OID else "array_send"
        return sql.SQL("pg_catalog.{}({})").format(sql.SQL(function), name)
    if column.type_oid in _CASTABLE_OIDS:
        return sql.SQL("{}::pg_catalog.text").format(name)
    # A cast to text is not always the printed text: bool, inet, name and users' types have casts of their
    # own. num_nulls tells NULL from a row of NULLs. IS NULL does not.
    return sql.SQL(
        "pg_catalog.format(CASE pg_catalog.num_nulls({0}) WHEN 0 THEN '%s' END, {0})"
    ).format(name)
