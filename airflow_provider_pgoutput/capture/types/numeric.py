"""Casters of integers, floating point numbers and numeric.

Source: https://www.postgresql.org/docs/current/datatype-numeric.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from airflow_provider_pgoutput.capture.types.values import (
    ByteRuns,
    Caster,
    CastResult,
    MalformedText,
    accepted,
    cast_mostly,
    cast_text,
    valid_rows,
    without,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

#: Of any decimal, and what Arrow parses.
_MOST_DIGITS = 38
#: With a sign, a zero and a point.
_LONGEST_DECIMAL_TEXT = _MOST_DIGITS + 3


def exact_caster(target: pa.DataType) -> Caster:
    """A caster to an integer or floating point type, which holds all that its source can.

    Arrow parses floats with correct rounding, so the bits are the server's: -0, subnormals, NaN and
    the infinities included.
    """

    def cast(raw: pa.Array) -> CastResult:
        return accepted(cast_text(raw, target))

    return cast


def decimal_caster(target: pa.DataType) -> Caster:
    """A caster to a decimal; NaN, the infinities and numbers that are too large are rejected."""

    def unholdable(runs: ByteRuns, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        found = _is_special(runs, rows)
        rest = np.flatnonzero(~found)
        found[rest] = _too_large(runs, rows[rest], target.precision, target.scale)
        return found

    def cast_short(raw: pa.Array) -> CastResult:
        try:
            return cast_mostly(raw, target, _is_special)
        except MalformedText:
            return cast_mostly(raw, target, unholdable)

    def cast(raw: pa.Array) -> CastResult:
        long = _longer_than_any_decimal(raw)
        if len(long) == 0:
            return cast_short(raw)
        too_large = _too_large(ByteRuns.of(raw), long, target.precision, target.scale)
        rest = cast_short(without(raw, long[too_large]))
        return CastResult(rest.values, np.union1d(long[too_large], rest.rejected))

    return cast


def _longer_than_any_decimal(raw: pa.Array) -> NDArray[np.int64]:
    """Rows that no decimal prints; Arrow 26 takes a number of 128 digits or more for another one."""
    runs = ByteRuns.of(raw)
    rows = np.flatnonzero(runs.ends - runs.starts > _LONGEST_DECIMAL_TEXT)
    return rows[np.isin(rows, valid_rows(raw))] if len(rows) else rows


def _is_special(runs: ByteRuns, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    special = runs.equal(rows, b"NaN")
    return special | runs.equal(rows, b"Infinity") | runs.equal(rows, b"-Infinity")


def _too_large(
    runs: ByteRuns, rows: NDArray[np.int64], precision: int, scale: int
) -> NDArray[np.bool_]:
    """Whether a plain number has more digits before or after the point than the type.

    Row by row, as it never happens while the type modifier that came with the rows is the column's.
    """
    found = np.zeros(len(rows), dtype=np.bool_)
    for index, row in enumerate(rows):
        text = runs.data[runs.starts[row] : runs.ends[row]].tobytes().removeprefix(b"-")
        whole, _, fraction = text.partition(b".")
        if (whole + fraction).isdigit():
            whole = whole.lstrip(b"0")
            found[index] = (
                len(whole) > precision - scale
                or len(fraction.rstrip(b"0")) > scale
                or len(whole + fraction) > _MOST_DIGITS
            )
    return found
