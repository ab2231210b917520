"""Casters of text, boolean and bytea.

Source: https://www.postgresql.org/docs/current/datatype-binary.html (hex format).
"""

from __future__ import annotations

import binascii

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    ByteRuns,
    CastResult,
    InvalidEncoding,
    MalformedText,
    accepted,
    at_rows_of,
    cut,
    null_mask,
    valid_rows,
)

_TRUE, _FALSE, _ZERO = ord("t"), ord("f"), ord("0")


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


def cast_binary(raw: pa.Array) -> CastResult:
    r"""Hexadecimal bytea, ``\x00ff``: every row has an even length, so a column is a run of pairs."""
    dense = raw.drop_null() if raw.null_count else raw
    runs = ByteRuns.of(dense)
    lengths = runs.ends - runs.starts
    if (lengths < 2).any() or (lengths & 1).any():
        raise MalformedText
    digits = runs.data.copy()
    for index, letter in enumerate(rb"\x"):
        if (digits[runs.starts + index] != letter).any():
            raise MalformedText
        digits[runs.starts + index] = _ZERO
    try:
        decoded = np.frombuffer(binascii.unhexlify(digits.data), dtype=np.uint8)
    except binascii.Error:
        raise MalformedText from None
    values = cut(decoded, (runs.starts >> 1) + 1, runs.ends >> 1)
    return accepted(at_rows_of(raw, values))
