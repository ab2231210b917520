"""The columns by which a row of a target is found. Apply does the finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.table_version import FULL

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.table_version import TableVersion


def lookup_columns(version: TableVersion) -> tuple[str, ...]:
    """The names of the key columns. Without a key, if whole old rows are sent: all columns."""
    if version.key_columns or version.replica_identity != FULL:
        return version.key_columns
    return tuple(each.name for each in version.columns)
