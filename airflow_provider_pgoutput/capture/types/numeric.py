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
    accepted,
    cast_mostly,
    cast_text,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


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
        special = runs.equal(rows, b"NaN")
        special |= runs.equal(rows, b"Infinity") | runs.equal(rows, b"-Infinity")
        # Too many digits: not by the type modifier, but rows written before it was narrowed.
        rest = np.flatnonzero(~special)
        special[rest] = _too_large(runs, rows[rest], target.precision, target.scale)
        return special

    def cast(raw: pa.Array) -> CastResult:
        return cast_mostly(raw, target, unholdable)

    return cast


def _too_large(
    runs: ByteRuns, rows: NDArray[np.int64], precision: int, scale: int
) -> NDArray[np.bool_]:
    """Whether a plain number has more digits before or after the point than the type."""
    found = np.zeros(len(rows), dtype=np.bool_)
    longest = precision + 3  # sign, a zero before the point, the point
    lengths = runs.ends[rows] - runs.starts[rows]
    # Exact and slow, for the few rows that can be concerned at all.
    for index in np.flatnonzero((lengths > precision) | (lengths > precision - scale)):
        row = rows[index]
        text = runs.data[runs.starts[row] : runs.ends[row]].tobytes().lstrip(b"-")
        whole, _, fraction = text.partition(b".")
        if not (whole + fraction).isdigit():
            continue
        digits = len(whole.lstrip(b"0"))
        found[index] = (
            digits > precision - scale or len(fraction) > scale or lengths[index] > longest
        )
    return found
