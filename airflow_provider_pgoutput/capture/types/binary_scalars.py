"""Casters and printers of PostgreSQL's binary form of text, bool, integers, uuid, bytea and json.

A printer gives the text that the type's output function gives, which is what is kept of a value that
does not fit. What is not here: floats as text (``binary_floats.py``), numeric, dates and arrays.

Sources: the send functions in ``src/backend/utils/adt`` of PostgreSQL; the protocol gives the order of
bytes only: https://www.postgresql.org/docs/current/protocol-overview.html#PROTOCOL-FORMAT-CODES
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    ByteRuns,
    Caster,
    CastResult,
    MalformedText,
    accepted,
    at_rows_of,
    cut,
    null_mask,
    valid_rows,
)
from airflow_provider_pgoutput.capture.types.scalars import cast_string

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: From wire bytes to PostgreSQL's text, Arrow ``binary`` both; null stays null.
Printer = Callable[[pa.Array], pa.Array]

_TEXT_VERSION = 1
_UUID_BYTES = 16
#: Where each group of hexadecimal digits of a uuid begins and ends, in digits.
_UUID_GROUPS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
_UUID_TEXT_BYTES = 36


def fixed_bytes(raw: pa.Array, width: int) -> NDArray[np.uint8]:
    """The values that are not null, each a row of ``width`` bytes.

    :raises MalformedText: when one has another length.
    """
    runs, rows = ByteRuns.of(raw), valid_rows(raw)
    starts = runs.starts[rows]
    if (runs.ends[rows] - starts != width).any():
        raise MalformedText
    if len(runs.data) == len(rows) * width:
        return runs.data.reshape(-1, width)
    # Null rows have bytes, too.
    found: NDArray[np.uint8] = runs.data[starts[:, None] + np.arange(width)]
    return found


def fixed_numbers(raw: pa.Array, wire: np.dtype[Any]) -> NDArray[Any]:
    """The values that are not null as numbers in the machine's order of bytes.

    :param wire: the type of number on the wire, most significant byte first.
    :raises MalformedText: when one has another length.
    """
    found = fixed_bytes(raw, wire.itemsize).reshape(-1).view(wire)
    return found.astype(wire.newbyteorder("="))


def number_array(raw: pa.Array, numbers: NDArray[Any]) -> pa.Array:
    """Numbers of the rows of ``raw`` that are not null, as an array with its nulls."""
    mask = null_mask(raw)
    if mask is None:
        return pa.array(numbers)
    spread = np.zeros(len(raw), dtype=numbers.dtype)
    spread[~mask] = numbers
    return pa.array(spread, mask=mask)


def integer_caster(wire: np.dtype[Any], target: pa.DataType) -> Caster:
    """A caster of integers to one of the lake's two, which are never narrower."""
    lake = np.dtype(target.to_pandas_dtype())

    def cast(raw: pa.Array) -> CastResult:
        return accepted(number_array(raw, fixed_numbers(raw, wire).astype(lake)))

    return cast


def integer_printer(wire: np.dtype[Any]) -> Printer:
    """A printer of integers."""

    def texts(raw: pa.Array) -> pa.Array:
        return number_array(raw, fixed_numbers(raw, wire)).cast(pa.string()).view(pa.binary())

    return texts


def float_caster(wire: np.dtype[Any]) -> Caster:
    """A caster of floats, bit by bit, but for NaN: its text does not say which NaN it was."""

    def cast(raw: pa.Array) -> CastResult:
        numbers = fixed_numbers(raw, wire)
        numbers[np.isnan(numbers)] = np.nan
        return accepted(number_array(raw, numbers))

    return cast


def cast_wire_boolean(raw: pa.Array) -> CastResult:
    """One byte, 0 or 1."""
    found = fixed_bytes(raw, 1).reshape(-1)
    if (found > 1).any():
        raise MalformedText
    return accepted(number_array(raw, found == 1))


def boolean_texts(raw: pa.Array) -> pa.Array:
    """``t`` and ``f``."""
    values = cast_wire_boolean(raw).values
    return pc.if_else(values, pa.scalar(b"t"), pa.scalar(b"f"))


def cast_bytes(raw: pa.Array) -> CastResult:
    """Bytea: the bytes themselves."""
    return accepted(raw)


def bytea_texts(raw: pa.Array) -> pa.Array:
    r"""Hexadecimal, ``\x00ff``."""
    dense = raw.drop_null() if raw.null_count else raw
    runs = ByteRuns.of(dense)
    digits = np.frombuffer(binascii.hexlify(runs.data.data), dtype=np.uint8)
    texts = cut(digits, runs.starts * 2, runs.ends * 2)
    prefixed = pc.binary_join_element_wise(pa.scalar(rb"\x"), texts, pa.scalar(b""))
    return at_rows_of(raw, prefixed)


def same_texts(raw: pa.Array) -> pa.Array:
    """Of a type whose binary form is its text."""
    return raw


def jsonb_texts(raw: pa.Array) -> pa.Array:
    """The text of jsonb, which follows a byte with the version of its form."""
    runs, rows = ByteRuns.of(raw), valid_rows(raw)
    starts, ends = runs.starts.copy(), runs.ends
    if (ends[rows] == starts[rows]).any() or (runs.data[starts[rows]] != _TEXT_VERSION).any():
        raise MalformedText
    starts[rows] += 1
    return cut(runs.data, starts, ends, null_mask(raw))


def uuid_texts(raw: pa.Array) -> pa.Array:
    """Lower case, in five groups."""
    found = fixed_bytes(raw, _UUID_BYTES)
    digits = np.frombuffer(binascii.hexlify(found.data), dtype=np.uint8).reshape(-1, 32)
    texts = np.empty((len(found), _UUID_TEXT_BYTES), dtype=np.uint8)
    for dashes, (first, last) in enumerate(_UUID_GROUPS):
        texts[:, first + dashes : last + dashes] = digits[:, first:last]
        texts[:, last + dashes : last + dashes + 1] = ord("-")
    offsets = np.arange(len(found) + 1, dtype=np.int32) * _UUID_TEXT_BYTES
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(texts)]
    return at_rows_of(raw, pa.Array.from_buffers(pa.binary(), len(found), buffers))


def text_caster(texts: Printer) -> Caster:
    """A caster to the lake's string of a type that is text there.

    :raises InvalidEncoding: by the caster, when a value is not UTF-8.
    """

    def cast(raw: pa.Array) -> CastResult:
        return cast_string(texts(raw))

    return cast
