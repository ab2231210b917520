"""Which type of the lake holds a PostgreSQL type without loss; start here.

Whatever has no counterpart in Iceberg is a ``string`` in PostgreSQL's own text form, so nothing is
rounded, clamped or dropped. The whole table, with what happens to values that do not fit, is
``docs/types.md``. What is not here: casting values, see ``cast.py``.

Sources: https://www.postgresql.org/docs/current/datatype.html and
https://iceberg.apache.org/spec/#schemas-and-data-types
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.types.arrow import arrow_type
from airflow_provider_pgoutput.capture.types.names import numeric_modifier, type_name
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
    "MAX_DECIMAL_PRECISION",
    "TypeInfo",
    "arrow_type",
    "lake_type",
    "type_catalog",
    "type_name",
]

#: Iceberg's and Arrow's (decimal128) limit.
MAX_DECIMAL_PRECISION = 38
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
#: Base types of extensions.  Their schema is the installer's choice; the name of a base type cannot be
#: taken by chance, because making one needs a superuser and C code.
_EXTENSION_SCALARS = {
    "hstore": "map<string, string>",
    "vector": "list<float>",
    "halfvec": "list<float>",
}


def lake_type(type_oid: int, type_modifier: int, catalog: Mapping[int, TypeInfo]) -> str:
    """The Iceberg type, in ``Column.lake_type``'s notation, that holds a PostgreSQL type.

    :param type_modifier: ``atttypmod`` of the column, -1 for none.
    :param catalog: user types by OID; a type that is nowhere (dropped since the change was written)
        is a ``string``, which holds the text of any.
    """
    info = find_type(type_oid, catalog)
    if info is None:
        return "string"
    if info.typtype == "d":
        return lake_type(info.base_oid, info.base_type_modifier, catalog)
    if info.element_oid:
        return _array(info, type_modifier, catalog)
    return _base(info, type_modifier) if info.typtype == "b" else "string"


def _base(info: TypeInfo, type_modifier: int) -> str:
    if info.oid >= FIRST_USER_OID:
        return _EXTENSION_SCALARS.get(info.name, "string")
    if info.name == "numeric":
        return _numeric(type_modifier)
    return _SCALARS.get(info.name, "string")


def _array(info: TypeInfo, type_modifier: int, catalog: Mapping[int, TypeInfo]) -> str:
    element = find_type(info.element_oid, catalog)
    # A caster knows the delimiter of box[] by its OID.  Of user types that inherit it (a domain over
    # box) it would not, so their arrays stay text.
    if element is None or (element.delimiter != "," and info.oid != BOX_ARRAY_OID):
        return "string"
    return f"list<{lake_type(element.oid, type_modifier, catalog)}>"


def _numeric(type_modifier: int) -> str:
    if type_modifier < 0:
        return "string"
    precision, scale = numeric_modifier(type_modifier)
    if scale < 0:
        # numeric(3, -2) holds 99900: five digits before the point.
        precision, scale = precision - scale, 0
    # numeric(3, 5) holds 0.00999: Iceberg wants at least as much precision as scale.
    precision = max(precision, scale)
    return f"decimal({precision}, {scale})" if precision <= MAX_DECIMAL_PRECISION else "string"
