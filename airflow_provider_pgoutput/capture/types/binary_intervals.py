"""Printers of the binary form of interval and of time with time zone.

Source: ``EncodeInterval`` and ``EncodeTimezone`` in ``src/backend/utils/adt/datetime.c``, for IntervalStyle
``postgres`` and DateStyle ISO
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.capture.types.arrow_bytes import ByteRuns, at_rows_of, cut
from airflow_provider_pgoutput.capture.types.binary_dates import clock_texts, time_texts
from airflow_provider_pgoutput.capture.types.binary_scalars import fixed_bytes
from airflow_provider_pgoutput.capture.types.printing import decimals, joined

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INTERVAL_BYTES, _TIMETZ_BYTES, _TIME_BYTES = 16, 12, 8
_HOUR_US = 3_600_000_000
_NOTHING = pa.scalar(b"")


def interval_texts(raw: pa.Array) -> pa.Array:
    """``1 year 2 mons -3 days +04:05:06.7``."""
    found = fixed_bytes(raw, _INTERVAL_BYTES)
    micros = _column(found, 0, 8, ">i8")
    days, months = _column(found, 8, 12, ">i4"), _column(found, 12, 16, ">i4")
    years = np.sign(months) * (np.abs(months) // 12)
    is_first = np.ones(len(found), dtype=np.bool_)
    # A plus stands before a number that follows a negative one.
    after_negative = np.zeros(len(found), dtype=np.bool_)
    shown = []
    for numbers, unit in ((years, b" year"), (months - 12 * years, b" mon"), (days, b" day")):
        shown.append(_counted(numbers, unit, is_first, after_negative))
        is_first = is_first & (numbers == 0)
        after_negative = np.where(numbers == 0, after_negative, numbers < 0)
    shown.append(_clock(micros, is_first, after_negative))
    texts = joined(*shown)
    # Since version 17; before, these were the greatest and the least number of each part.
    for text, limit in ((b"infinity", "max"), (b"-infinity", "min")):
        small, large = (getattr(np.iinfo(kind), limit) for kind in (np.int32, np.int64))
        infinite = (micros == large) & (days == small) & (months == small)
        if infinite.any():
            texts = pc.if_else(pa.array(infinite), pa.scalar(text), texts)
    return at_rows_of(raw, texts)


def _column(found: NDArray[np.uint8], first: int, last: int, wire: str) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = (
        np.ascontiguousarray(found[:, first:last]).reshape(-1).view(wire).astype(np.int64)
    )
    return numbers


def _counted(
    numbers: NDArray[np.int64],
    unit: bytes,
    is_first: NDArray[np.bool_],
    after_negative: NDArray[np.bool_],
) -> pa.Array:
    """A number with its unit, nothing for 0."""
    plus = pc.if_else(pa.array(after_negative & (numbers > 0)), pa.scalar(b"+"), _NOTHING)
    plural = pc.if_else(pa.array(numbers != 1), pa.scalar(b"s"), _NOTHING)
    blank = pc.if_else(pa.array(is_first), _NOTHING, pa.scalar(b" "))
    shown = joined(blank, plus, decimals(numbers), unit, plural)
    return pc.if_else(pa.array(numbers == 0), _NOTHING, shown)


def _clock(
    micros: NDArray[np.int64], is_first: NDArray[np.bool_], after_negative: NDArray[np.bool_]
) -> pa.Array:
    """The part of a day, which may be several; nothing for 0 after another part."""
    # Of the least number of all there is no positive one.
    size = np.where(micros < 0, 0 - micros.astype(np.uint64), micros.astype(np.uint64))
    hours, rest = np.divmod(size, np.uint64(_HOUR_US))
    padded = pc.utf8_lpad(decimals(hours).view(pa.string()), 2, "0").view(pa.binary())
    minutes = ByteRuns.of(clock_texts(rest.astype(np.int64)))
    after_hours = cut(minutes.data, minutes.starts + 2, minutes.ends)
    positive = pc.if_else(pa.array(after_negative), pa.scalar(b"+"), _NOTHING)
    sign = pc.if_else(pa.array(micros < 0), pa.scalar(b"-"), positive)
    blank = pc.if_else(pa.array(is_first), _NOTHING, pa.scalar(b" "))
    shown = joined(blank, sign, padded, after_hours)
    return pc.if_else(pa.array((micros != 0) | is_first), shown, _NOTHING)


def timetz_texts(raw: pa.Array) -> pa.Array:
    """``12:00:00+02``; on the wire offsets are seconds to the west."""
    found = fixed_bytes(raw, _TIMETZ_BYTES)
    starts = np.arange(len(found), dtype=np.int64) * _TIMETZ_BYTES
    times = time_texts(cut(found.reshape(-1), starts, starts + _TIME_BYTES))
    zones, place = np.unique(_column(found, 8, 12, ">i4"), return_inverse=True)
    offsets = pa.array([_offset(zone) for zone in zones.tolist()], pa.binary())
    return at_rows_of(raw, joined(times, offsets.take(pa.array(place.reshape(-1)))))


def _offset(seconds_west: int) -> bytes:
    minutes, seconds = divmod(abs(seconds_west), 60)
    hours, minutes = divmod(minutes, 60)
    text = b"%b%02d" % (b"+" if seconds_west <= 0 else b"-", hours)
    if minutes or seconds:
        text += b":%02d" % minutes
    return text + b":%02d" % seconds if seconds else text
