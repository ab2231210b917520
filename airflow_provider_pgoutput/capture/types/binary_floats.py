"""Floats in binary form as PostgreSQL prints them: the shortest text that reads back the same.

So it prints with ``extra_float_digits`` of 1 or more. Used for values that are kept beside the table
only, so one by one. What makes it differ from ``repr``: a text that lies exactly half-way between two
floats is never taken, and the exponent's form.

Source: ``src/common/d2s.c`` and ``f2s.c`` (Ryu with ``STRICTLY_SHORTEST`` 0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.capture.types.arrow_bytes import at_rows_of
from airflow_provider_pgoutput.capture.types.binary_scalars import Printer, fixed_numbers


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
