"""Casters of date, timestamp and timestamptz, as DateStyle ISO and TimeZone UTC print them.

The lake's types hold the years 1 to 9999. Years before (``BC``) and after, and the infinities, are
rejected.

Source: https://www.postgresql.org/docs/current/datatype-datetime.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    ByteRuns,
    Caster,
    CastResult,
    cast_mostly,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_ZERO, _NINE, _DASH = ord("0"), ord("9"), ord("-")


def date_caster(target: pa.DataType) -> Caster:
    """A caster to a date or timestamp type."""

    def cast(raw: pa.Array) -> CastResult:
        return cast_mostly(raw, target, _unholdable)

    return cast


def _unholdable(runs: ByteRuns, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Infinite, before the year 1, or of a year with five digits or more."""
    found = np.zeros(len(rows), dtype=np.bool_)
    # All others have a dash after four digits and no letter at the end.
    odd = np.flatnonzero((runs.byte(rows, 4) != _DASH) | (runs.byte(rows, -1) == ord("C")))
    found[odd] = _is_special(runs, rows[odd])
    return found


def _is_special(runs: ByteRuns, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    digits = np.ones(len(rows), dtype=np.bool_)
    for index in range(4):
        byte = runs.byte(rows, index)
        digits &= (byte >= _ZERO) & (byte <= _NINE)
    long_year = np.zeros(len(rows), dtype=np.bool_)
    for index in (5, 6, 7):
        long_year |= runs.byte(rows, index) == _DASH
    long_year &= digits & (runs.byte(rows, 4) >= _ZERO) & (runs.byte(rows, 4) <= _NINE)
    before = digits
    for index, letter in zip((-3, -2, -1), b" BC", strict=True):
        before &= runs.byte(rows, index) == letter
    infinite = runs.equal(rows, b"infinity") | runs.equal(rows, b"-infinity")
    return infinite | long_year | before
