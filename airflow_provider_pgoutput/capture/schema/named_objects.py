"""Columns whose text is the name of another object: of a table (``regclass``), a type, a role and so on.

PostgreSQL stores the object's number. When the object is renamed or dropped, all rows show another text. The
stream does not say which objects rows name. So one warning is given, when a batch first has such a column.

Source: https://www.postgresql.org/docs/current/datatype-oid.html
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.identity import lookup_columns
from airflow_provider_pgoutput.capture.types.type_info import BUILTIN_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.batch.manifest import Table
    from airflow_provider_pgoutput.batch.shape import Shape
    from airflow_provider_pgoutput.batch.type_definition import TypeDefinition

log = logging.getLogger(__name__)


def warn_of_names(table: Table, before: Shape | None) -> None:
    """Warn of columns that are new since the last batch and show names of objects.

    :param table: with the definitions of its types.
    """
    types = {each.oid: each for each in table.types or ()}
    known = set() if before is None or before.types is None else {e.number for e in before.columns}
    last = table.versions[-1]
    for column in last.columns:
        if column.attribute_number in known or not _shows_names(column.type_oid, types):
            continue
        log.warning(
            "%s: the text of column %s, of type %s, is the name of another object. When that is renamed or"
            " dropped, all rows show another text, and PostgreSQL sends no row for it: %s. A column of type"
            " oid keeps the number of the object.",
            table.name,
            column.name,
            column.type_name,
            "rows are found by this column, so deletes and updates would be lost until"
            f" copy_tables=[{table.name!r}]"
            if column.name in lookup_columns(last)
            else f"copy_tables=[{table.name!r}] brings it in then",
        )


def _shows_names(type_oid: int, types: Mapping[int, TypeDefinition]) -> bool:
    builtin = BUILTIN_TYPES.get(type_oid)
    if builtin is not None:
        if builtin.element_oid:
            return _shows_names(builtin.element_oid, types)
        return builtin.name.startswith("reg") or builtin.name == "aclitem"
    definition = types.get(type_oid)
    if definition is None:
        return False
    parts = (definition.part_oid, *(each.type_oid for each in definition.attributes))
    return any(_shows_names(each, types) for each in parts if each)
