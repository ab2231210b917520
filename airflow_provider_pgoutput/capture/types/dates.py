"""Casters of date, timestamp and timestamptz, as DateStyle ISO and TimeZone UTC print them.

The lake's types hold the years 1 to 9999. Years before (``BC``) and after, and the infinities, are
rejected.

Source: https://www.postgresql.org/docs/current/datatype-datetime.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from airflow_provider_pgoutput.capture.types.values import (
    ByteRuns,
    Caster,
    CastResult,
    cast_mostly,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_ZERO, _NINE = ord("0"), ord("9")


def date_caster(target: pa.DataType) -> Caster:
    """A caster to a date or timestamp type."""

    def cast(raw: pa.Array) -> CastResult:
        return cast_mostly(raw, target, _unholdable)

    return cast


def _unholdable(runs: ByteRuns, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Infinite, before the year 1, or of a year with five digits or more."""
    found = runs.equal(rows, b"infinity") | runs.equal(rows, b"-infinity")
    five_digits = np.ones(len(rows), dtype=np.bool_)
    for index in range(5):
        digit = runs.byte(rows, index)
        five_digits &= (digit >= _ZERO) & (digit <= _NINE)
        if index == 3:
            four_digits = five_digits.copy()
    before = four_digits.copy()
    for index, letter in zip((-3, -2, -1), b" BC", strict=True):
        before &= runs.byte(rows, index) == letter
    return found | five_digits | before
