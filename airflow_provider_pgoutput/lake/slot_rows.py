"""Reads the rows of one slot from the pipeline's own tables: checkpoint, quarantine, record of verifications.

Several slots may write to one namespace, so each of these tables may have rows of several slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.layout import check_slot_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyiceberg.table import Table


def of_slot(slot_name: str) -> str:
    """The text of a pyiceberg filter that keeps only the rows of one slot.

    :raises ConfigurationError: ``slot_name`` is no name of a slot.
    """
    # A slot name has only letters, digits and underscores. So nothing in it has to be escaped.
    return f"slot_name = '{check_slot_name(slot_name)}'"


def rows_of_slot(table: Table, slot_name: str, columns: Iterable[str]) -> pa.Table:
    """Read columns of a slot's rows.

    :param columns: the columns to read. Columns that the table lacks are left out.
    """
    present = present_columns(table, columns)
    return table.scan(row_filter=of_slot(slot_name), selected_fields=present).to_arrow()


def present_columns(table: Table, columns: Iterable[str]) -> tuple[str, ...]:
    """The given columns that the table has. Early versions of the package made tables with fewer columns."""
    present = set(table.schema().column_names)
    return tuple(each for each in columns if each in present)
