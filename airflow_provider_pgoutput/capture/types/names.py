"""PostgreSQL's own spelling of a type, as ``format_type`` prints it. For messages; it is never parsed.

A built-in type is spelled as its row in ``registry.py`` says. Names of users' types are always qualified, as
``format_type`` does with an empty ``search_path``. The modifier of an extension's type is left out, unless
the type has a row that spells it.

Source: https://www.postgresql.org/docs/current/functions-info.html (format_type).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.types.builtin_types import QUOTED_KEYWORDS
from airflow_provider_pgoutput.capture.types.registry import row_of
from airflow_provider_pgoutput.capture.types.type_info import FIRST_USER_OID, TypeInfo, find_type

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*")


def quote_identifier(name: str) -> str:
    """Quote a name if PostgreSQL's ``quote_ident`` would."""
    if _PLAIN_NAME.fullmatch(name) and name not in QUOTED_KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


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
    name, spelling = quote_identifier(info.name), row_of(info).spelling
    if info.oid >= FIRST_USER_OID and info.schema_name != "pg_catalog":
        name = f"{quote_identifier(info.schema_name)}.{name}"
    return name if spelling is None else spelling.of(name, type_modifier)
