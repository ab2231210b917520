"""Tables of a batch that are gone at the source, or set aside: how far their changes can be followed.

A table that is gone was dropped, or no publication that is read has it any more. Most refusals are mended by
a copy, and nobody can copy this table. So its versions are followed up to the first one that would be
refused. A table that is set aside stays where its last good version leaves it, until somebody copies it.
``staging/passing.py`` refuses single changes while the stream is read.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.passed_over import first_lsn
from airflow_provider_pgoutput.capture.schema.differences import unfollowable
from airflow_provider_pgoutput.capture.schema.policy import CopyNeeded
from airflow_provider_pgoutput.errors import SnapshotLost, TableRefused, ValueRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Table
    from airflow_provider_pgoutput.batch.shape import Shape
    from airflow_provider_pgoutput.batch.table_version import Column

_REFUSALS = (CopyNeeded, SnapshotLost, TableRefused, ValueRefused)
_NEEDS_COPY = "A change of the table can only be followed by a copy of it."


def followed(
    complete: Callable[[Table], Table], table: Table
) -> tuple[Table | None, Lsn | None, str]:
    """The part of a table that can be followed, completed.

    :param complete: refuses what cannot be followed, see ``SchemaHistory``.
    :returns: the table, if a part of it can be followed; the LSN from which on its changes are passed over,
        if any are; and the reason.
    """
    try:
        return complete(table), None, ""
    except _REFUSALS as error:
        lsn, reason = first_lsn(table.versions), _reason(error)
    for count in reversed(range(1, len(table.versions))):
        since = first_lsn(table.versions[count:])
        if since is None:
            continue
        shorter = table.until(since)
        if shorter is None:
            return None, since, reason
        try:
            return complete(shorter), since, reason
        except _REFUSALS as error:
            lsn, reason = first_lsn(shorter.versions), _reason(error)
    return None, lsn, reason


def refuse_unfollowable(table: Table, before: Shape | None) -> None:
    """Refuse changes of a table that is gone, if apply would refuse them or would need a new column for them.

    :raises TableRefused: a column changed to a type that Iceberg cannot follow, or all columns are gone.
    """
    if any(not version.columns for version in table.versions):
        raise TableRefused("The table lost all of its columns.", table=table.name)
    for column in unfollowable(_numbered_by_name(table), before):
        raise TableRefused(
            f"The type of column {column.name} changed to {column.type_name}, which Iceberg cannot follow.",
            table=table.name,
            column=column.name,
        )


def _numbered_by_name(table: Table) -> Table:
    """The table with a number for each column that has none. Apply knows these columns by name."""
    numbers: dict[str, int] = {}

    def numbered(column: Column) -> Column:
        if column.attribute_number is not None:
            return column
        number = numbers.setdefault(column.name, -1 - len(numbers))
        return dataclasses.replace(column, attribute_number=number)

    versions = (
        dataclasses.replace(each, columns=tuple(map(numbered, each.columns)))
        for each in table.versions
    )
    return dataclasses.replace(table, versions=tuple(versions))


def _reason(error: CopyNeeded | SnapshotLost | TableRefused | ValueRefused) -> str:
    return _NEEDS_COPY if isinstance(error, CopyNeeded) else error.message
