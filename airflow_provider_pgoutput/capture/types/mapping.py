"""Which type of the lake holds a PostgreSQL type without loss; start here.

Whatever has no counterpart in Iceberg is a ``string`` in PostgreSQL's own text form, so nothing is
rounded, clamped or dropped. The whole table, with what happens to values that do not fit, is
``docs/types.md``. What is not here: casting values, see ``cast.py``.

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
from airflow_provider_pgoutput.capture.types.arrow import arrow_type
from airflow_provider_pgoutput.capture.types.names import numeric_modifier, type_name
from airflow_provider_pgoutput.capture.types.options import (
    COMPOSITE,
    INTERVAL,
    JSON,
    NO_CHOICE,
    NUMERIC,
    STRING,
    TIME,
    UUID,
    Choice,
)
from airflow_provider_pgoutput.capture.types.type_info import (
    BUILTIN_TYPES,
    CATALOG_QUERY,
    FIRST_USER_OID,
    TypeInfo,
    find_type,
    type_catalog,
)

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

#: What an interval is as a struct: PostgreSQL's own three parts, none of which the others follow from.
INTERVAL_STRUCT = struct_type((("months", "int"), ("days", "int"), ("micros", "long")))
#: ``box[]``, whose elements a semicolon separates.
BOX_ARRAY_OID = 1020

_SCALARS = {
    "bool": "boolean",
    "bytea": "binary",
    "int2": "int",
    "int4": "int",
    "int8": "long",
    # Unsigned 32 bit.
    "oid": "long",
    "xid": "long",
    "cid": "long",
    # Unsigned 64 bit: too wide for long, and a decimal still sorts as a number.
    "xid8": "decimal(20, 0)",
    "float4": "float",
    "float8": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
}
#: Built-in types that there is a choice for, and what they are when it is not ``string``.
_KINDS = {
    "numeric": NUMERIC,
    "json": JSON,
    "jsonb": JSON,
    "uuid": UUID,
    "interval": INTERVAL,
    "time": TIME,
}
_CHOSEN = {"uuid": "uuid", "interval": INTERVAL_STRUCT, "time": "long"}
#: Base types of extensions.  Their schema is the installer's choice; the name of a base type cannot be
#: taken by chance, because making one needs a superuser and C code.
_EXTENSION_SCALARS = {
    "hstore": "map<string, string>",
    "vector": "list<float>",
    "halfvec": "list<float>",
}


def lake_type(
    type_oid: int,
    type_modifier: int,
    catalog: Mapping[int, TypeInfo],
    choice: Choice = NO_CHOICE,
) -> str:
    """The Iceberg type, in ``Column.lake_type``'s notation, that holds a PostgreSQL type.

    :param type_modifier: ``atttypmod`` of the column, -1 for none.
    :param catalog: user types by OID; a type that is nowhere (dropped since the change was written)
        is a ``string``, which holds the text of any.
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
    """The kinds of type, of those that there is a choice for, that a type is or is made of."""
    info = find_type(type_oid, catalog)
    if info is None:
        return frozenset()
    inner = (info.base_oid, info.element_oid, *(each.type_oid for each in info.attributes))
    found = frozenset({COMPOSITE}) if info.typtype == "c" else frozenset()
    if info.oid < FIRST_USER_OID and info.name in _KINDS:
        found = frozenset({_KINDS[info.name]})
    return found.union(*(kinds_in(each, catalog) for each in inner if each))


def _base(info: TypeInfo, type_modifier: int, choice: Choice) -> str:
    if info.oid >= FIRST_USER_OID:
        return _EXTENSION_SCALARS.get(info.name, STRING)
    if info.name == "numeric":
        return _numeric(type_modifier, choice)
    if choice.of(_KINDS.get(info.name, "")) != STRING:
        return _CHOSEN.get(info.name, STRING)
    return _SCALARS.get(info.name, STRING)


def _array(
    info: TypeInfo, type_modifier: int, catalog: Mapping[int, TypeInfo], choice: Choice
) -> str:
    element = find_type(info.element_oid, catalog)
    # A caster knows the delimiter of box[] by its OID.  Of user types that inherit it (a domain over
    # box) it would not, so their arrays stay text.
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
    """The decimal that holds all numbers of a numeric; None when no decimal does."""
    if type_modifier < 0:
        return None
    precision, scale = numeric_modifier(type_modifier)
    if scale < 0:
        # numeric(3, -2) holds 99900: five digits before the point.
        precision, scale = precision - scale, 0
    # numeric(3, 5) holds 0.00999: Iceberg wants at least as much precision as scale.
    precision = max(precision, scale)
    return f"decimal({precision}, {scale})" if precision <= MAX_DECIMAL_PRECISION else None
