"""Which type of the lake holds a PostgreSQL type without loss, from the rows of ``registry.py``.

A type without a counterpart in Iceberg is a ``string`` in PostgreSQL's own text form, so nothing is
rounded, clamped or dropped. The whole table, with the values that do not fit, is ``docs/reference/types.md``.

Sources: https://www.postgresql.org/docs/current/datatype.html and
https://iceberg.apache.org/spec/#schemas-and-data-types
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.lake_types import struct_type
from airflow_provider_pgoutput.capture.types.dates import INTERVAL_STRUCT
from airflow_provider_pgoutput.capture.types.names import type_name
from airflow_provider_pgoutput.capture.types.options import COMPOSITE, NO_CHOICE, Choice
from airflow_provider_pgoutput.capture.types.registry import STRING, row_of
from airflow_provider_pgoutput.capture.types.type_info import (
    BUILTIN_TYPES,
    CATALOG_QUERY,
    TypeInfo,
    find_type,
    type_catalog,
)
from airflow_provider_pgoutput.lake.arrow_types import arrow_type

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BOX_ARRAY_OID",
    "BUILTIN_TYPES",
    "CATALOG_QUERY",
    "INTERVAL_STRUCT",
    "TypeInfo",
    "arrow_type",
    "lake_type",
    "type_catalog",
    "type_name",
]

#: ``box[]``, whose elements a semicolon separates.
BOX_ARRAY_OID = 1020


def lake_type(
    type_oid: int,
    type_modifier: int,
    catalog: Mapping[int, TypeInfo],
    choice: Choice = NO_CHOICE,
) -> str:
    """The Iceberg type, in ``Column.lake_type``'s notation, that holds a PostgreSQL type.

    :param type_modifier: ``atttypmod`` of the column, -1 for none.
    :param catalog: users' types by OID. A type that is nowhere, because it was dropped since the change, is a
        ``string``, which holds the text of any type.
    :param choice: what the owner of the pipeline chose for the column.
    """
    info = find_type(type_oid, catalog)
    if info is None or choice.is_text:
        return STRING
    if info.typtype == "d":
        return lake_type(info.base_oid, info.base_type_modifier, catalog, choice)
    if info.element_oid:
        return _array(info, type_modifier, catalog, choice)
    if info.typtype == "c" and info.attributes and choice.of(COMPOSITE.kind) != STRING:
        return struct_type(
            (each.name, lake_type(each.type_oid, each.type_modifier, catalog, choice))
            for each in info.attributes
        )
    return _base(info, type_modifier, choice) if info.typtype == "b" else STRING


def kinds_in(type_oid: int, catalog: Mapping[int, TypeInfo]) -> frozenset[str]:
    """The kinds of type with a choice that a type is, or is made of."""
    info = find_type(type_oid, catalog)
    if info is None:
        return frozenset()
    inner = (info.base_oid, info.element_oid, *(each.type_oid for each in info.attributes))
    own = COMPOSITE if info.typtype == "c" else row_of(info).choice
    found = frozenset({own.kind} if own else ())
    return found.union(*(kinds_in(each, catalog) for each in inner if each))


def _base(info: TypeInfo, type_modifier: int, choice: Choice) -> str:
    row = row_of(info)
    kind = "" if row.choice is None else row.choice.kind
    if row.lake_type_of_modifier is not None and kind not in choice.own_kinds:
        exact = row.lake_type_of_modifier(type_modifier)
        if exact is not None:
            return exact
    chosen = choice.of(kind)
    if row.choice is None or chosen == STRING:
        return row.lake_type
    return row.choice.lake_type_of(chosen)


def _array(
    info: TypeInfo, type_modifier: int, catalog: Mapping[int, TypeInfo], choice: Choice
) -> str:
    element = find_type(info.element_oid, catalog)
    # A caster knows the delimiter of box[] by its OID. It does not know it for users' types that inherit it
    # (a domain over box), so their arrays stay text.
    if element is None or (element.delimiter != "," and info.oid != BOX_ARRAY_OID):
        return STRING
    return f"list<{lake_type(element.oid, type_modifier, catalog, choice)}>"
