"""Casters of text, bool and bytea as text; of these, integers, floats, uuid and json in binary form.

Each binary form has a printer. It gives the text that the type's output function gives: the side table
keeps this text of a value that does not fit.

A float is printed as the shortest text that reads back the same, as PostgreSQL does with
``extra_float_digits`` of 1 or more. ``repr`` differs in two ways: PostgreSQL never takes a text that lies
exactly half-way between two floats, and it writes exponents otherwise. Few values are printed, so one by
one.

Sources: https://www.postgresql.org/docs/current/datatype-binary.html (hex format), the send functions in
``src/backend/utils/adt`` of PostgreSQL, ``src/common/d2s.c`` and ``f2s.c`` (Ryu with
``STRICTLY_SHORTEST`` 0)
"""

from __future__ import annotations

import binascii
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    ByteRuns,
    Caster,
    CastResult,
    InvalidEncoding,
    MalformedText,
    accepted,
    at_rows_of,
    cut,
    null_mask,
    valid_rows,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.types.arrow_bytes import Printer

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


@dataclass(frozen=True, slots=True)
class _Format:
    wire: np.dtype[np.float32] | np.dtype[np.float64]
    mantissa_bits: int
    least_exponent: int
    #: Numbers of so many digits before the point get an exponent.
    scientific_digits: int


_FLOAT4 = _Format(np.dtype(">f4"), 24, -149, 6)
_FLOAT8 = _Format(np.dtype(">f8"), 53, -1074, 15)
_LEAST_PLAIN_EXPONENT = -4


def float_printer(wire: np.dtype[np.float32] | np.dtype[np.float64]) -> Printer:
    """A printer of ``real`` or ``double precision``."""
    kind = _FLOAT4 if wire == _FLOAT4.wire else _FLOAT8

    def texts(raw: pa.Array) -> pa.Array:
        found = fixed_numbers(raw, wire).tolist()
        return at_rows_of(
            raw, pa.array([_text(each, kind).encode() for each in found], pa.binary())
        )

    return texts


def _text(value: float, kind: _Format) -> str:
    if math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1, value) < 0 else ""
    if math.isinf(value):
        return f"{sign}Infinity"
    return f"{sign}{_plain(abs(value), kind)}" if value else f"{sign}0"


def _plain(value: float, kind: _Format) -> str:
    digits, exponent = _shortest(value, kind)
    first = exponent + len(digits) - 1
    if not _LEAST_PLAIN_EXPONENT <= first < kind.scientific_digits:
        point = "." if len(digits) > 1 else ""
        return f"{digits[0]}{point}{digits[1:]}e{'-' if first < 0 else '+'}{abs(first):02}"
    if exponent >= 0:
        return digits + "0" * exponent
    if first < 0:
        return "0." + "0" * (-first - 1) + digits
    return f"{digits[: first + 1]}.{digits[first + 1 :]}"


def _shortest(value: float, kind: _Format) -> tuple[str, int]:
    """The fewest digits, and their power of ten, of a number nearer to ``value`` than to other floats."""
    fraction, exponent = math.frexp(value)
    exponent = max(exponent - kind.mantissa_bits, kind.least_exponent)
    unit = Fraction(2) ** exponent
    exact = Fraction(value)
    # Below a power of two floats lie twice as close.
    is_power = fraction == 0.5 and exponent > kind.least_exponent
    low, high = exact - unit / (4 if is_power else 2), exact + unit / 2
    power = math.floor(math.log10(value)) + 1
    while True:
        scale = Fraction(10) ** power
        below = exact // scale
        inside = [each for each in (below, below + 1) if low < each * scale < high]
        if inside:
            nearest = min(inside, key=lambda each: (abs(each * scale - exact), each % 2))
            digits = str(nearest)
            return digits.rstrip("0"), power + len(digits) - len(digits.rstrip("0"))
        power -= 1
