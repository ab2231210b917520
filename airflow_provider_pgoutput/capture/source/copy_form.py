"""In which form a copy fetches each column, so that its values are exactly those of the stream.

There are three forms. ADBC reads the column where its Arrow value is the lake's. The type's send function
makes the values where the casters of binary form are faster than those of text. Else the output function
prints them. The form of each type is in ``types/registry.py``.
``copy/read.py`` has the query.

Source: https://www.postgresql.org/docs/current/protocol-overview.html (formats and format codes)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from airflow_provider_pgoutput.capture.types.registry import STRING, row_of
from airflow_provider_pgoutput.capture.types.type_info import BUILTIN_TYPES

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.table_version import Column
    from airflow_provider_pgoutput.capture.types.registry import TypeRow


def is_binary(column: Column, *, is_key: bool) -> bool:
    """Whether a column is fetched as ADBC reads it. Values of keys must also print like PostgreSQL's.

    So must columns that are text in the lake by the user's choice.
    """
    row = _row(column)
    # A mask is made of what PostgreSQL prints.
    if column.mask is not None or column.lake_type == STRING != row.lake_type:
        return False
    return row.copied.as_adbc_reads_key if is_key else row.copied.as_adbc_reads


def is_sent(column: Column) -> bool:
    """Whether a column is fetched as its type's send function makes it.

    Decimals and lists are. Types that are text in the lake are not: the server prints them at less cost.
    """
    if column.lake_type == STRING or column.mask is not None:
        return False
    element = _element(column)
    return _row(column).copied.sent if element is None else element.binary is not None


def expression(column: Column, *, is_key: bool) -> sql.Composable:
    """The expression that a query selects for a column."""
    name = sql.Identifier(column.name)
    if is_binary(column, is_key=is_key):
        return name
    if is_sent(column):
        function = f"{_row(column).name}_send" if _element(column) is None else "array_send"
        return sql.SQL("pg_catalog.{}({})").format(sql.SQL(function), name)
    return printed(name, _row(column))


def printed(value: sql.Composable, row: TypeRow) -> sql.Composable:
    """The expression for what the output function of a value's type prints.

    :param row: of the type.
    """
    if row.copied.castable:
        return sql.SQL("{}::pg_catalog.text").format(value)
    # A cast to text is not always the printed text: bool, inet, name and users' types have casts of their
    # own. num_nulls tells NULL from a row of NULLs. IS NULL does not.
    return sql.SQL(
        "pg_catalog.format(CASE pg_catalog.num_nulls({0}) WHEN 0 THEN '%s' END, {0})"
    ).format(value)


def _row(column: Column) -> TypeRow:
    """The row of a built-in type; users' types and arrays are printed as text is."""
    return row_of(BUILTIN_TYPES.get(column.type_oid))


def _element(column: Column) -> TypeRow | None:
    """The row of the element's type; None: the column is no array of a built-in type."""
    info = BUILTIN_TYPES.get(column.type_oid)
    if info is None or not info.element_oid:
        return None
    return row_of(BUILTIN_TYPES[info.element_oid])
