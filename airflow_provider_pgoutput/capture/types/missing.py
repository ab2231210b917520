"""What rows older than a column show in it, as the text that apply gives to rows in the lake.

PostgreSQL keeps one value per column for them (``pg_attribute.attmissingval``), as text. What is not here:
writing it.

Source: https://www.postgresql.org/docs/current/catalog-pg-attribute.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_pgoutput.capture.types.cast import ValuePolicy, column_caster
from airflow_provider_pgoutput.capture.types.type_info import base_type
from airflow_provider_pgoutput.errors import ValueRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.batch.manifest import Column
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo

_TIME_OID, _NUMERIC_OID = 1083, 1700


def lake_text(column: Column, types: Mapping[int, TypeInfo], table: str) -> str | None:
    """The column's missing value as text of its lake type.

    Where the lake type was chosen it need not be PostgreSQL's text, and need not hold the value.

    :raises ValueRefused: it does not; the side table is for values of rows, and here is none.
    """
    info, text = base_type(column.type_oid, types), column.missing_value
    if text is None or info is None or column.lake_type == "string":
        return text
    if info.oid not in {_TIME_OID, _NUMERIC_OID}:
        return text
    caster = column_caster(column, ValuePolicy(), types=types, table=table)
    result = caster.cast(pa.array([text.encode()], pa.binary()))
    if len(result.rejected):
        raise ValueRefused(
            f"The default that older rows show in the column does not fit {column.lake_type}.",
            table=table,
            column=column.name,
            advice="choose 'string' for it in column_types.",
        )
    return str(result.values[0].as_py()) if info.oid == _TIME_OID else text
