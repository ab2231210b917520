"""The keys of synthetic rows: how a row's number is written in the key columns of its kind of key.

Different numbers have different keys, so a batch needs no bookkeeping to find its rows. What is not
here: which rows a batch changes, and their other columns (``synthetic_batch.py``).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_provider_pgoutput.batch.table_version import Column

#: Key columns by kind of key. Of rows that follow each other the bigint keys and the UUIDs of version 7 do so
#: as well, other UUIDs are anywhere, and the pairs of texts are of one tenant after the other.
KEYS = {
    "bigint": (Column("id", 20, -1, "bigint", "long", identity=True),),
    "uuid": (Column("id", 2950, -1, "uuid", "string"),),
    "uuid v7": (Column("id", 2950, -1, "uuid", "string"),),
    "text pair": (
        Column("tenant", 25, -1, "text", "string"),
        Column("code", 25, -1, "text", "string"),
    ),
}
_TENANTS = 1000
_DASHES_BEFORE = (4, 6, 8, 10)
_SALTS = (0x9E3779B97F4A7C15, 0x5851F42D4C957F2D)
_FIRST_MS = 1_767_225_600_000  # 2026-01-01 UTC
_HEX = np.frombuffer(bytes(range(256)).hex().encode(), dtype=np.uint8).reshape(256, 2)

Int64 = NDArray[np.int64]


def key_arrays(kind: str, numbers: Int64) -> list[pa.Array]:
    """The key columns of the rows with these numbers."""
    if kind == "bigint":
        return [pa.array(numbers)]
    if kind.startswith("uuid"):
        return [_uuids(numbers, in_order=kind == "uuid v7")]
    tenants = pc.utf8_lpad(pa.array(numbers % _TENANTS).cast(pa.string()), 4, "0")
    codes = pc.utf8_lpad(pa.array(numbers // _TENANTS).cast(pa.string()), 12, "0")
    return [
        pc.binary_join_element_wise("tenant", tenants, "-"),
        pc.binary_join_element_wise("order", codes, "-"),
    ]


def _uuids(numbers: Int64, *, in_order: bool) -> pa.Array:
    """A UUID for each number, in text: of version 7, ten in a millisecond, or without any order."""
    halves = np.stack([_mixed(numbers, salt) for salt in _SALTS], axis=1)
    octets = halves.astype(">u8").view(np.uint8).reshape(len(numbers), 16)
    if in_order:
        moments = (_FIRST_MS + numbers // 10) << 16
        octets[:, :6] = moments.astype(">u8").view(np.uint8).reshape(len(numbers), 8)[:, :6]
        octets[:, 6] = 0x70
        octets[:, 8] = octets[:, 8] & 0x3F | 0x80
    text = np.full((len(numbers), 36), ord("-"), dtype=np.uint8)
    at = 0
    for octet in range(16):
        at += octet in _DASHES_BEFORE
        text[:, at : at + 2] = _HEX[octets[:, octet]]
        at += 2
    ends = np.arange(0, 36 * len(numbers) + 1, 36, dtype=np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(ends), pa.py_buffer(text))


def _mixed(numbers: Int64, salt: int) -> NDArray[np.uint64]:
    """A 64-bit number for each, different ones for different ones (the finalizer of SplitMix64)."""
    mixed = numbers.astype(np.uint64) ^ np.uint64(salt)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
