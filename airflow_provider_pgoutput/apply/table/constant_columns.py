"""Columns of a target that the source does not have, with one text in all rows (``constant_columns``).

Example: ``{"tenant": "acme"}``. Rows that are written get the text. If the user changes it, or adds a column
to a table that has rows, the next batch that changes the table gives all of them the text. A property of the
table says which text its rows have.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.checkpoint import PROPERTY_CONSTANTS
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable

#: Their lake type.
KIND = "string"


def constants_of_rows(table: IcebergTable | None) -> dict[str, str | None]:
    """The constant columns of a table, and the text that its rows have; None: they have none yet."""
    text = None if table is None else table.properties.get(PROPERTY_CONSTANTS)
    found: dict[str, str | None] = {} if text is None else json.loads(text)
    return found


def constants_to_json(constants: Mapping[str, str | None]) -> str:
    """The property's text."""
    return json.dumps(constants, sort_keys=True)


def refuse_taken_names(
    source_name: str, constants: Collection[str], table: IcebergTable, *, loaded: bool
) -> None:
    """Refuse a constant column whose name is that of a column which the target has for something else.

    :param source_name: ``schema.table``.
    :param constants: names of the constant columns.
    :param loaded: the user loaded the table's rows. Then they may have loaded the column, too.
    :raises TableRefused: the values of that column would be lost.
    """
    if not constants:
        return
    held = {str(each["name"]) for each in table.schema["fields"]}
    known = constants_of_rows(table)
    for name in constants:
        if name in held and name not in known and not loaded:
            raise TableRefused(
                "The constant column has the name of a column that the target has already.",
                table=source_name,
                column=name,
                advice="give the constant column another name in table_options, or drop that column of the"
                " target.",
            )
