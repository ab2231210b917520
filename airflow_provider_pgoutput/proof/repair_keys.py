"""Which keys of a table a repair has to read again, or why the table cannot be repaired by keys."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Final

from airflow_provider_pgoutput.capture.staging.repairs import KeysOfTable
from airflow_provider_pgoutput.errors import ConfigurationError, SourceError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.proof.digest import RowHash
    from airflow_provider_pgoutput.proof.key_ranges import Part
    from airflow_provider_pgoutput.proof.lake_rows import LakeRows
    from airflow_provider_pgoutput.proof.ranges import DifferentKeys
    from airflow_provider_pgoutput.proof.source_rows import SourceRows

#: Keys of a table that are repaired. To copy a table with more is cheaper, and takes less memory.
MOST_KEYS: Final = 100_000
LOG: Final = "it is a change log; copy the table (copy_tables), which adds its rows to the log"
NO_KEY: Final = "it has no key"
ROLLED_BACK: Final = "it was rolled back; replay its batches"
TOO_MANY: Final = f"more than {MOST_KEYS} rows differ"
TOO_WIDE: Final = "the ranges of keys that differ hold too many rows to compare"

#: For each kind of rows that differ: letters and names of operations. If no publication sends one of them,
#: the lake is meant to keep such rows.
_NEEDED: Final = (
    ("missing", {"i": "inserts"}),
    ("different", {"u": "updates"}),
    ("surplus", {"d": "deletes", "t": "truncates"}),
)


class Irreparable(Exception):
    """A table cannot be repaired by keys; its text says why."""


def meant_to_differ(
    found: DifferentKeys, left_out: Collection[str]
) -> tuple[DifferentKeys, str | None]:
    """The rows that are repaired, and why the others stay; None: there are no others.

    Example: no publication of the table sends deletes. Then the lake is meant to keep deleted rows. Nothing
    tells such a row from one that should not be there, so both stay.

    :param left_out: the operations that no publication sends, as letters of ``iudt``.
    """
    stays = []
    for kind, needed in _NEEDED:
        lacks = [name for letter, name in needed.items() if letter in left_out]
        if lacks and getattr(found, kind):
            found = dataclasses.replace(found, **{kind: Counter[int]()})
            stays.append(
                f"its {kind} rows stay as they are, because its publications send no {' or '.join(lacks)}"
            )
    return found, "; ".join(stays) or None


def keys_to_repair(
    source: SourceRows,
    lake: LakeRows,
    table: PublishedTable,
    names: Sequence[str],
    key_hash: RowHash,
    found: DifferentKeys,
    part: Part | None = None,
) -> KeysOfTable:
    """The keys of all rows that differ.

    :param names: of the key's fields in the lake.
    :param part: a part of the table that has all rows that differ; None: they may be anywhere.
    :raises Irreparable: some of these keys cannot be looked for.
    """
    at_source = sorted({*found.missing, *found.different})
    in_lake = sorted(found.surplus)
    if len(at_source) + len(in_lake) > MOST_KEYS:
        raise Irreparable(TOO_MANY)
    keys = [_whole(each) for each in source.key_texts(table, key_hash, at_source, part)]
    if in_lake:
        try:
            surplus = lake.key_texts(names, key_hash, in_lake, part)
        except ConfigurationError as error:
            raise Irreparable(error.message) from error
        of_lake = [_whole(each) for each in surplus]
        try:
            source.check_keys(table, _keys(table, key_hash, of_lake))
        except SourceError as error:
            if not source.is_open:
                raise
            text = "the lake has a key that is no value of the source's type"
            raise Irreparable(text) from error
        keys += of_lake
    return _keys(table, key_hash, keys)


def _keys(table: PublishedTable, key_hash: RowHash, keys: Sequence[tuple[str, ...]]) -> KeysOfTable:
    return KeysOfTable(table.relation_oid, table.name, key_hash.names, tuple(dict.fromkeys(keys)))


def _whole(key: Sequence[str | bytes | None]) -> tuple[str, ...]:
    """A key without NULL, as text.

    :raises Irreparable: it has NULL, or bytes that are no text.
    """
    found = []
    for value in key:
        if value is None:
            raise Irreparable("a row has NULL in its key")
        try:
            found.append(value if isinstance(value, str) else value.decode())
        except UnicodeDecodeError as error:
            raise Irreparable("a key has bytes that are no text") from error
    return tuple(found)
