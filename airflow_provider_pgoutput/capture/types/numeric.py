"""Casters of integers, floating point numbers and numeric.

Source: https://www.postgresql.org/docs/current/datatype-numeric.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    ByteRuns,
    Caster,
    CastResult,
    MalformedText,
    accepted,
    cast_mostly,
    cast_text,
    cut,
    null_mask,
    valid_rows,
    without,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_ZERO, _NINE, _POINT, _MINUS = ord("0"), ord("9"), ord("."), ord("-")
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
            return cast_mostly(_without_last_zeros(raw), target, unholdable)

    def cast(raw: pa.Array) -> CastResult:
        if len(_longer_than_any_decimal(raw)) == 0:
            return cast_short(raw)
        raw = _without_last_zeros(raw)
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


def _without_last_zeros(raw: pa.Array) -> pa.Array:
    """Numbers without the zeros at the end of their fractions, which can be more than Arrow parses.

    As many are printed as the display scale says; they are not part of the value.
    """
    runs = ByteRuns.of(raw)
    if len(runs.data) == 0:
        return raw
    positions = np.arange(len(runs.data), dtype=np.int64)
    is_digit = (runs.data >= _ZERO) & (runs.data <= _NINE)
    # Position of the newest byte of a kind at or before each byte; before the first there is none.
    newest_other = np.maximum.accumulate(np.where(is_digit, -1, positions))
    newest_kept = np.maximum.accumulate(np.where(runs.data == _ZERO, -1, positions))
    last = np.maximum(runs.ends - 1, 0)
    points, kept = newest_other[last], newest_kept[last]
    digits_start = runs.starts + (runs.byte(np.arange(len(raw)), 0) == _MINUS)
    has_fraction = (points > digits_start) & (points < runs.ends) & (runs.data[points] == _POINT)
    # Digits only: what is no number stays what it is.
    has_fraction &= newest_other[np.maximum(points - 1, 0)] < digits_start
    ends = np.where(has_fraction, kept + (kept > points), runs.ends)
    return raw if (ends == runs.ends).all() else cut(runs.data, runs.starts, ends, null_mask(raw))


def _is_special(runs: ByteRuns, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    special = runs.equal(rows, b"NaN")
    return special | runs.equal(rows, b"Infinity") | runs.equal(rows, b"-Infinity")


def _too_large(
    runs: ByteRuns, rows: NDArray[np.int64], precision: int, scale: int
) -> NDArray[np.bool_]:
    """Whether a plain number has more digits before or after the point than the type.

    Zeros at the end of a fraction do not count. What is no number is not too large.
    """
    if len(runs.data) == 0:
        return np.zeros(len(rows), dtype=np.bool_)
    starts, ends = runs.starts[rows], runs.ends[rows]
    positions = np.arange(len(runs.data), dtype=np.int64)
    is_digit = (runs.data >= _ZERO) & (runs.data <= _NINE)
    # Position of the newest byte of a kind at or before each byte; before the first there is none.
    newest_point = np.maximum.accumulate(np.where(runs.data == _POINT, positions, -1))
    newest_nonzero = np.maximum.accumulate(np.where(is_digit & (runs.data != _ZERO), positions, -1))
    digits_before = np.concatenate([[0], np.cumsum(is_digit)])
    starts = starts + (runs.byte(rows, 0) == _MINUS)
    last = np.maximum(ends - 1, 0)
    has_point = newest_point[last] >= starts
    points = np.where(has_point, newest_point[last], ends)
    # PostgreSQL prints no zeros before a number, but the one before the point.
    whole = points - starts - (runs.data[np.minimum(starts, len(runs.data) - 1)] == _ZERO)
    fraction = np.maximum(newest_nonzero[last] - points, 0)
    digits = digits_before[ends] - digits_before[starts]
    is_number = (ends > starts) & (digits == ends - starts - has_point)
    found: NDArray[np.bool_] = is_number & ((whole > precision - scale) | (fraction > scale))
    return found
