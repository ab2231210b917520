"""Casters of text, boolean and bytea.

Source: https://www.postgresql.org/docs/current/datatype-binary.html (hex format).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.capture.types.values import (
    ByteRuns,
    CastResult,
    InvalidEncoding,
    MalformedText,
    accepted,
    null_mask,
    valid_rows,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TRUE, _FALSE = ord("t"), ord("f")
_NOT_HEX = 512
_HEX_PREFIX = 256


def cast_string(raw: pa.Array) -> CastResult:
    """Text as it is: one validation, no copy."""
    try:
        return accepted(raw.cast(pa.string()))
    except pa.ArrowInvalid:
        raise InvalidEncoding from None


def cast_boolean(raw: pa.Array) -> CastResult:
    """``t`` and ``f``."""
    runs, rows = ByteRuns.of(raw), valid_rows(raw)
    if (runs.ends[rows] - runs.starts[rows] != 1).any():
        raise MalformedText
    letters = np.full(len(raw), _FALSE, dtype=np.uint8)
    letters[rows] = runs.data[runs.starts[rows]]
    values = letters == _TRUE
    if not (values | (letters == _FALSE)).all():
        raise MalformedText
    return accepted(pa.array(values, mask=null_mask(raw)))


def _hex_pairs() -> NDArray[np.uint16]:
    r"""The byte that each pair of characters means, read as a little-endian 16-bit number.

    ``\x`` has a mark of its own, so that one look-up finds digits, prefixes and errors.
    """
    table = np.full(1 << 16, _NOT_HEX, dtype=np.uint16)
    for value in range(256):
        table[int.from_bytes(f"{value:02x}".encode(), "little")] = value
    table[int.from_bytes(rb"\x", "little")] = _HEX_PREFIX
    return table


_HEX_PAIRS = _hex_pairs()


def cast_binary(raw: pa.Array) -> CastResult:
    r"""Hexadecimal bytea, ``\x00ff``: every row has an even length, so a column is a run of pairs."""
    dense = raw.drop_null() if raw.null_count else raw
    runs = ByteRuns.of(dense)
    lengths = runs.ends - runs.starts
    if (lengths < 2).any() or (lengths & 1).any():
        raise MalformedText
    meaning = _HEX_PAIRS[runs.data.view("<u2")]
    if (meaning[runs.starts >> 1] != _HEX_PREFIX).any():
        raise MalformedText
    is_digit = meaning < _HEX_PREFIX
    content = meaning[is_digit].astype(np.uint8)
    if len(content) + len(dense) != len(meaning):
        raise MalformedText
    sizes = np.zeros(len(raw), dtype=np.int64)
    sizes[valid_rows(raw)] = (lengths >> 1) - 1
    offsets = np.zeros(len(raw) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    validity = pa.array(~mask).buffers()[1] if (mask := null_mask(raw)) is not None else None
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(content)]
    return accepted(pa.Array.from_buffers(pa.binary(), len(raw), buffers))
