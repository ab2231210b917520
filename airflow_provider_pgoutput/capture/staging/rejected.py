"""Values that do not fit their column, as rows of a rejected file, see ``batch/changes.py``.

The value's text is kept with the key of its row and its position in the stream. So nothing that PostgreSQL
sent is lost. Arrow builds whole columns, and never single rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.batch.changes import REJECTED
from airflow_provider_pgoutput.errors import ValueRefused
from airflow_provider_pgoutput.lake.arrow_types import arrow_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.batch.table_version import Column, TableVersion

NEW_TUPLE = "new"
OLD_TUPLE = "old"

SCHEMA = pa.schema([pa.field(name, arrow_type(lake_type)) for name, lake_type in REJECTED])

#: Escapes of JSON, in addition to those of other control characters in ``_escaped``.
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_OTHER_CONTROL = "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f]"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Rejected values of one column in one tuple of some changes."""

    column: Column
    #: ``new`` or ``old``.
    tuple_kind: str
    #: Raw text, an Arrow ``binary`` array without nulls.
    raw: pa.Array
    #: Raw text of the key columns of the same rows, by name.
    key: Mapping[str, pa.Array]
    #: ``I``, ``U``, ``D`` or ``C`` of each row.
    op: pa.Array
    #: None: copied rows have no position in the stream.
    commit_lsn: pa.Array | None
    seq: pa.Array | None


def rejected_rows(version: TableVersion, relation_oid: int, rejection: Rejection) -> pa.RecordBatch:
    """The rejected values of one column as rows of a rejected file.

    :raises ValueRefused: a value is not UTF-8.
    """
    count = len(rejection.raw)

    def constant(value: str | int, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), count)

    absent = pa.nulls(count, pa.int64())
    table = f"{version.schema_name}.{version.table_name}"
    return pa.RecordBatch.from_arrays(
        [
            constant(version.schema_name, pa.string()),
            constant(version.table_name, pa.string()),
            constant(relation_oid, pa.int64()),
            absent if rejection.commit_lsn is None else rejection.commit_lsn,
            absent if rejection.seq is None else rejection.seq,
            rejection.op,
            constant(rejection.tuple_kind, pa.string()),
            constant(rejection.column.name, pa.string()),
            constant(rejection.column.type_name, pa.string()),
            _json_objects(rejection.key, count, table),
            _text(rejection.raw, table, rejection.column.name),
        ],
        schema=SCHEMA,
    )


def _json_objects(values: Mapping[str, pa.Array], count: int, table: str) -> pa.Array:
    """One JSON object per row, of texts and nulls."""
    parts: list[pa.Array | pa.Scalar] = [pa.scalar("{")]
    for number, (name, raw) in enumerate(values.items()):
        label = f"{', ' if number else ''}{json.dumps(name, ensure_ascii=False)}: "
        parts += [pa.scalar(label), _json_texts(_text(raw, table, name))]
    parts.append(pa.scalar("}"))
    if len(parts) == 2:
        return pa.repeat(pa.scalar("{}"), count)
    return pc.binary_join_element_wise(*parts, pa.scalar(""))


def _json_texts(texts: pa.Array) -> pa.Array:
    """Each text as a JSON string, null as ``null``."""
    quoted = pc.binary_join_element_wise(
        pa.scalar('"'), _escaped(texts), pa.scalar('"'), pa.scalar("")
    )
    return pc.fill_null(quoted, "null")


def _escaped(texts: pa.Array) -> pa.Array:
    for character, escape in _ESCAPES:
        texts = pc.replace_substring(texts, character, escape)
    if pc.any(pc.match_substring_regex(texts, _OTHER_CONTROL)).as_py():
        for code in range(0x20):
            texts = pc.replace_substring(texts, chr(code), f"\\u{code:04x}")
    return texts


def _text(raw: pa.Array, table: str, column: str) -> pa.Array:
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        raise ValueRefused(
            "A value is not valid UTF-8.",
            table=table,
            column=column,
            advice="repair the value at the source; an SQL_ASCII database checks nothing.",
        ) from None
