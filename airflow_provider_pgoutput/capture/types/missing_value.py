"""The value that older rows show in a column, as the text from which apply writes it into rows of the lake.

PostgreSQL keeps one such value for each column, as text (``pg_attribute.attmissingval``).

Source: https://www.postgresql.org/docs/current/catalog-pg-attribute.html
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_pgoutput.batch.lake_types import decimal_type, is_nested
from airflow_provider_pgoutput.capture.types.cast import NULL_AND_KEEP, ValuePolicy, column_caster
from airflow_provider_pgoutput.capture.types.registry import STRING, row_of
from airflow_provider_pgoutput.capture.types.type_info import base_type
from airflow_provider_pgoutput.errors import ProtocolError, ValueRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.batch.table_version import Column
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo

log = logging.getLogger(__name__)

#: Types in which infinity, and years before Christ, are usual defaults.
_MOMENTS = frozenset({"date", "timestamp", "timestamptz"})


def lake_text(
    column: Column,
    types: Mapping[int, TypeInfo],
    table: str,
    policy: ValuePolicy | None = None,
    *,
    is_key: bool = False,
) -> str | None:
    """The column's missing value as text of its lake type.

    If the user chose the lake type, this need not be PostgreSQL's text, and the type may not hold the value.

    :param policy: what to do with a date, a timestamp or a list that no lake type but text can hold.
    :param is_key: older rows would have no key without the value, so the policy does not count.
    :raises ValueRefused: the lake type does not hold it. The side table is for values of rows, and here is no
        row.
    """
    info, text = base_type(column.type_oid, types), column.missing_value
    if text is None or info is None or column.lake_type == STRING:
        return text
    is_moment, is_decimal = column.lake_type in _MOMENTS, decimal_type(column.lake_type) is not None
    # Apply has no parser of PostgreSQL's text for these.
    has_parts, has_own_text = is_nested(column.lake_type), row_of(info).text_caster is None
    if has_own_text and not (is_moment or is_decimal or has_parts):
        return text
    caster = column_caster(column, ValuePolicy(), types=types, table=table)
    try:
        result = caster.cast(pa.array([text.encode()], pa.binary()))
    except ProtocolError:
        if not is_moment:
            raise
        # The text of a timestamp that an early version staged has the session's zone. Apply reads both.
        return text
    if len(result.rejected):
        if has_parts or is_moment:
            _leave_out(column, table, policy or ValuePolicy(), is_key=is_key)
            return None
        raise ValueRefused(
            f"The default that older rows show in the column does not fit {column.lake_type}.",
            table=table,
            column=column.name,
            advice="choose 'string' for it in column_types.",
        )
    if has_parts:
        return json.dumps(_parts(result.values[0].as_py(), result.values.type), ensure_ascii=True)
    return text if has_own_text else str(result.values[0].as_py())


def _parts(value: Any, kind: pa.DataType) -> Any:
    """A value with all parts as text, as in ``Column.missing_value``."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [_parts(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return dict(value)
    if pa.types.is_struct(kind):
        return [_parts(value[each.name], each.type) for each in kind]
    return f"\\x{value.hex()}" if pa.types.is_binary(kind) else str(value)


def _leave_out(column: Column, table: str, policy: ValuePolicy, *, is_key: bool) -> None:
    """Leave the value out, as the policy leaves out the value of a row."""
    words = f"The default that older rows show in the column does not fit {column.lake_type}"
    if is_key or policy.fails(column.lake_type):
        others = "" if is_key else f", or set the value policy to {NULL_AND_KEEP!r}"
        raise ValueRefused(
            f"{words}.",
            table=table,
            column=column.name,
            advice=f"choose 'string' for it in column_types{others}.",
        )
    log.warning(
        "%s: %s (column %s): these rows have NULL in the lake, and no row of the side table, until they"
        " change. 'string' for it in column_types keeps such values.",
        table,
        words,
        column.name,
    )
