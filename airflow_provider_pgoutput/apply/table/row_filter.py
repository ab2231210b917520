"""The filter that the rows of a table passed, as the table's property has it; see ``filters.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.checkpoint import PROPERTY_ROW_FILTER
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.batch.manifest import Table


def row_filter_of(source: Table) -> dict[str, str]:
    """The property for the rows of a batch; empty: they passed no filter."""
    found = source.versions[-1].row_filter if source.versions else None
    return {} if found is None else {PROPERTY_ROW_FILTER: found}


def refuse_other_filter(source: Table, properties: Mapping[str, str], advice: str = "") -> None:
    """Refuse changes that passed another filter than the table's rows.

    :param properties: of the table of the lake.
    :param advice: what helps; empty: a copy of the table.
    :raises TableRefused: the table would lack rows, or keep others for good.
    """
    of_rows = properties.get(PROPERTY_ROW_FILTER) or None
    if any(each.row_filter != of_rows for each in source.versions):
        raise TableRefused(
            "The rows of the lake passed another filter than the changes of the batch, or none.",
            table=source.name,
            advice=advice or f"copy the table again (copy_tables=[{source.name!r}]).",
        )
