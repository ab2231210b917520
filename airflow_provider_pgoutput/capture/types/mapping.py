"""Which type of the lake holds a PostgreSQL type without loss, from the rows of ``registry.py``.

A type without a counterpart in Iceberg is a ``string`` in PostgreSQL's own text form, so nothing is
rounded, clamped or dropped. The whole table, with the values that do not fit, is ``docs/reference/types.md``.

Sources: https://www.postgresql.org/docs/current/datatype.html and
https://iceberg.apache.org/spec/#schemas-and-data-types
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.lake_types import (
    MAX_DECIMAL_PRECISION,
    decimal_type,
    struct_type,
)
from airflow_provider_pgoutput.capture.types.dates import INTERVAL_STRUCT
from airflow_provider_pgoutput.capture.types.names import numeric_modifier, type_name
from airflow_provider_pgoutput.capture.types.options import (
    COMPOSITE,
    NO_CHOICE,
    NUMERIC,
    STRING,
    Choice,
)
from airflow_provider_pgoutput.capture.types.registry import row_of
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
    if info.typtype == "c" and info.attributes and choice.of(COMPOSITE) != STRING:
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
    found = frozenset({COMPOSITE}) if info.typtype == "c" else frozenset()
    if kind := row_of(info).kind:
        found = frozenset({kind})
    return found.union(*(kinds_in(each, catalog) for each in inner if each))


def _base(info: TypeInfo, type_modifier: int, choice: Choice) -> str:
    row = row_of(info)
    if row.kind == NUMERIC:
        return _numeric(type_modifier, choice)
    return row.lake_type if choice.of(row.kind) == STRING else row.chosen_lake_type


def _array(
    info: TypeInfo, type_modifier: int, catalog: Mapping[int, TypeInfo], choice: Choice
) -> str:
    element = find_type(info.element_oid, catalog)
    # A caster knows the delimiter of box[] by its OID. It does not know it for users' types that inherit it
    # (a domain over box), so their arrays stay text.
    if element is None or (element.delimiter != "," and info.oid != BOX_ARRAY_OID):
        return STRING
    return f"list<{lake_type(element.oid, type_modifier, catalog, choice)}>"


def _numeric(type_modifier: int, choice: Choice) -> str:
    chosen, exact = choice.of(NUMERIC), _exact_decimal(type_modifier)
    if exact is not None and NUMERIC not in choice.own_kinds:
        return exact
    digits = decimal_type(chosen)
    return STRING if digits is None else f"decimal({digits[0]}, {digits[1]})"


def _exact_decimal(type_modifier: int) -> str | None:
    """The decimal that holds all numbers of a numeric; None: no decimal does."""
    if type_modifier < 0:
        return None
    precision, scale = numeric_modifier(type_modifier)
    if scale < 0:
        # numeric(3, -2) holds 99900: five digits before the point.
        precision, scale = precision - scale, 0
    # numeric(3, 5) holds 0.00999: Iceberg wants at least as much precision as scale.
    precision = max(precision, scale)
    return f"decimal({precision}, {scale})" if precision <= MAX_DECIMAL_PRECISION else None
