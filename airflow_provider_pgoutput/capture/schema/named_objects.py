"""Columns whose text is the name of another object: of a table (``regclass``), a type, a role and so on.

PostgreSQL stores the object's number. When the object is renamed or dropped, all rows show another text. The
stream does not say which objects rows name. So one warning is given, when a batch first has such a column.
If rows are found by the column, their changes cannot be followed: ``ALTER TABLE a RENAME TO b`` turns the key
``a`` into ``b``, and another row may get the key ``a``.

Source: https://www.postgresql.org/docs/current/datatype-oid.html
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.answers import COPY
from airflow_provider_pgoutput.batch.table_version import lookup_columns
from airflow_provider_pgoutput.capture.schema.policy import CopyNeeded
from airflow_provider_pgoutput.capture.types.type_info import BUILTIN_TYPES
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider_pgoutput.batch.manifest import Table
    from airflow_provider_pgoutput.batch.shape import Shape
    from airflow_provider_pgoutput.batch.table_version import Column, TableVersion
    from airflow_provider_pgoutput.batch.type_definition import TypeDefinition
    from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy

log = logging.getLogger(__name__)


def check_names(
    table: Table, before: Shape | None, policy: SchemaPolicy, *, is_key_chosen: bool
) -> None:
    """Look at columns that show names of objects: warn of new ones, and refuse rows that are found by one.

    :param table: with the definitions of its types.
    :param is_key_chosen: whether ``key_columns`` names the key. The user says with it that the key stays.
    :raises CopyNeeded: rows are found by such a column, and the policy wants a copy.
    :raises TableRefused: the same, and the policy does not copy.
    """
    known = set() if before is None or before.types is None else {e.number for e in before.columns}
    last = table.versions[-1]
    for column in _named(table, last):
        if column.attribute_number not in known:
            _warn(table, column, is_lookup_column=column.name in lookup_columns(last))
    if is_key_chosen:
        return
    for version in table.versions:
        found = lookup_columns(version)
        for column in _named(table, version):
            if column.name in found and _finds_rows(table, version):
                _refuse(table, column, policy)


def _warn(table: Table, column: Column, *, is_lookup_column: bool) -> None:
    log.warning(
        "%s: the text of column %s, of type %s, is the name of another object. When that is renamed or"
        " dropped, all rows show another text, and PostgreSQL sends no row for it: %s. A column of type"
        " oid keeps the number of the object.",
        table.name,
        column.name,
        column.type_name,
        "rows are found by this column, so a batch that changes rows is refused or copies the table"
        if is_lookup_column
        else f"copy_tables=[{table.name!r}] brings it in then",
    )


def _finds_rows(table: Table, version: TableVersion) -> bool:
    """Whether apply looks for rows of the table. An insert replaces a row of its key.

    False for a table that the batch copies. Only few rows change between the copy and the end of the batch.
    They are not refused, because another copy would meet other such rows.
    """
    if table.copy_lsn is not None:
        return False
    counts = table.counts
    changed = counts.updates + counts.deletes
    return bool(changed + counts.inserts if version.key_columns else changed)


def _refuse(table: Table, column: Column, policy: SchemaPolicy) -> None:
    if policy.on_type_change == COPY:
        log.warning(
            "%s: rows are found by column %s, whose text is the name of another object that may have been"
            " renamed: the table is copied again, as on_type_change says.",
            table.name,
            column.name,
        )
        raise CopyNeeded(table.relation_oid)
    raise TableRefused(
        f"Rows are found by this column, and its text, of type {column.type_name}, is the name of another"
        " object. If one was renamed or dropped, rows in the lake have another text than the stream, and"
        " PostgreSQL sends no row for that.",
        table=table.name,
        column=column.name,
        advice=f"copy the table again (copy_tables=[{table.name!r}]); on_type_change='copy' in the stage task"
        " does so by itself whenever its rows change. Or name a key in key_columns: other columns, or these"
        " if the objects are never renamed or dropped. Or make it a column of type oid at the source.",
    )


def _named(table: Table, version: TableVersion) -> Iterator[Column]:
    types = {each.oid: each for each in table.types or ()}
    return (each for each in version.columns if shows_names(each.type_oid, types))


def shows_names(type_oid: int, types: Mapping[int, TypeDefinition]) -> bool:
    """Whether the text of a value of this type is the name of another object, or has one in it.

    :param types: users' types by OID, with those that are parts of them.
    """
    builtin = BUILTIN_TYPES.get(type_oid)
    if builtin is not None:
        if builtin.element_oid:
            return shows_names(builtin.element_oid, types)
        return builtin.name.startswith("reg") or builtin.name == "aclitem"
    definition = types.get(type_oid)
    if definition is None:
        return False
    parts = (definition.part_oid, *(each.type_oid for each in definition.attributes))
    return any(shows_names(each, types) for each in parts if each)
