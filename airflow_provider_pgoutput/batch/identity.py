"""By which columns a row of a target is found. What is not here: finding it, which apply does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.table_version import FULL

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.table_version import TableVersion


def sought_by(version: TableVersion) -> tuple[str, ...]:
    """Their names: the key; without one all columns, where the whole row is sent."""
    if version.key_columns or version.replica_identity != FULL:
        return version.key_columns
    return tuple(each.name for each in version.columns)
