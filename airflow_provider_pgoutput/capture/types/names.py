"""PostgreSQL's own spelling of a type, as ``format_type`` prints it. For messages; it is never parsed.

Names of users' types are always qualified, as ``format_type`` does with an empty ``search_path``. The
modifier of an extension's type is left out, unless it is a plain length.

Source: https://www.postgresql.org/docs/current/functions-info.html (format_type).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.types.builtin_types import QUOTED_KEYWORDS
from airflow_provider_pgoutput.capture.types.type_info import FIRST_USER_OID, TypeInfo, find_type

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*")

#: Names of the SQL standard in two parts. A modifier goes between them.
_STANDARD_NAMES = {
    "bool": ("boolean", ""),
    "float4": ("real", ""),
    "float8": ("double precision", ""),
    "int2": ("smallint", ""),
    "int4": ("integer", ""),
    "int8": ("bigint", ""),
    "varchar": ("character varying", ""),
    "varbit": ("bit varying", ""),
    "time": ("time", " without time zone"),
    "timetz": ("time", " with time zone"),
    "timestamp": ("timestamp", " without time zone"),
    "timestamptz": ("timestamp", " with time zone"),
    "numeric": ("numeric", ""),
    "interval": ("interval", ""),
    "json": ("json", ""),
}
#: Names of types with a modifier. Without one, the standard's word would mean a length of one.
_SIZED_NAMES = {"bpchar": "character", "bit": "bit"}
_UNSIZED_NAMES = {"bpchar": "bpchar", "bit": '"bit"'}
#: Types of extensions whose modifier is a length.
_EXTENSION_LENGTHS = frozenset({"vector", "halfvec", "sparsevec"})

_INTERVAL_RANGES = {
    1 << 2: " year",
    1 << 1: " month",
    1 << 3: " day",
    1 << 10: " hour",
    1 << 11: " minute",
    1 << 12: " second",
    1 << 2 | 1 << 1: " year to month",
    1 << 3 | 1 << 10: " day to hour",
    1 << 3 | 1 << 10 | 1 << 11: " day to minute",
    1 << 3 | 1 << 10 | 1 << 11 | 1 << 12: " day to second",
    1 << 10 | 1 << 11: " hour to minute",
    1 << 10 | 1 << 11 | 1 << 12: " hour to second",
    1 << 11 | 1 << 12: " minute to second",
}
_INTERVAL_FULL_PRECISION = 0xFFFF


def quote_identifier(name: str) -> str:
    """Quote a name if PostgreSQL's ``quote_ident`` would."""
    if _PLAIN_NAME.fullmatch(name) and name not in QUOTED_KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


def numeric_modifier(type_modifier: int) -> tuple[int, int]:
    """Precision and scale (-1000 to 1000) of ``numeric``'s type modifier."""
    value = type_modifier - 4
    return (value >> 16) & 0xFFFF, ((value & 0x7FF) ^ 0x400) - 0x400


def type_name(type_oid: int, type_modifier: int, catalog: Mapping[int, TypeInfo]) -> str:
    """PostgreSQL's spelling of a type: ``numeric(12,2)``, ``integer[]``, ``public.colour``.

    :param type_modifier: ``atttypmod`` of the column, -1 for none.
    :param catalog: users' types by OID. A type that is nowhere is ``???``, as PostgreSQL prints it.
    """
    info = find_type(type_oid, catalog)
    if info is None:
        return "???"
    if info.element_oid:
        return type_name(info.element_oid, type_modifier, catalog) + "[]"
    return (
        _user_name(info, type_modifier)
        if info.oid >= FIRST_USER_OID
        else _own_name(info.name, type_modifier)
    )


def _user_name(info: TypeInfo, type_modifier: int) -> str:
    if info.schema_name == "pg_catalog":
        return quote_identifier(info.name)
    qualified = f"{quote_identifier(info.schema_name)}.{quote_identifier(info.name)}"
    if info.name in _EXTENSION_LENGTHS and info.typtype == "b" and type_modifier >= 0:
        return f"{qualified}({type_modifier})"
    return qualified


def _own_name(name: str, type_modifier: int) -> str:
    if type_modifier < 0 and name in _UNSIZED_NAMES:
        return _UNSIZED_NAMES[name]
    if name in _SIZED_NAMES:
        return _SIZED_NAMES[name] + _modifier(name, type_modifier)
    if name in _STANDARD_NAMES:
        first, last = _STANDARD_NAMES[name]
        return first + _modifier(name, type_modifier) + last
    return quote_identifier(name)


def _modifier(name: str, type_modifier: int) -> str:
    if type_modifier < 0:
        return ""
    if name == "numeric":
        precision, scale = numeric_modifier(type_modifier)
        return f"({precision},{scale})"
    if name == "interval":
        fields = _INTERVAL_RANGES.get((type_modifier >> 16) & 0x7FFF, "")
        precision = type_modifier & 0xFFFF
        return fields if precision == _INTERVAL_FULL_PRECISION else f"{fields}({precision})"
    if name in {"varchar", "bpchar"}:
        return f"({type_modifier - 4})"
    if name in {"bit", "varbit", "time", "timetz", "timestamp", "timestamptz"}:
        return f"({type_modifier})"
    return ""
