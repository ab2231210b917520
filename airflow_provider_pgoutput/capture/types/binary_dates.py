"""Casters and printers of PostgreSQL's binary form of date, time, timestamp and timestamptz.

Days or microseconds since 2000-01-01, the largest and the smallest number for the infinities; a
timestamptz is in UTC. The lake holds the years 1 to 9999; other values are rejected, as ``dates.py`` does.

Source: https://www.postgresql.org/docs/current/datatype-datetime.html, ``src/include/datatype/timestamp.h``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    Caster,
    CastResult,
    MalformedText,
    accepted,
    at_rows_of,
    cut,
    null_mask,
    valid_rows,
)
from airflow_provider_pgoutput.capture.types.binary_scalars import (
    Printer,
    fixed_numbers,
    number_array,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DAYS: np.dtype[Any] = np.dtype(">i4")
_MICROS: np.dtype[Any] = np.dtype(">i8")
_DAY_US = 86_400_000_000
#: From 1970-01-01, the lake's day 0, to 2000-01-01, PostgreSQL's.
_EPOCH_DAYS = 10_957
#: 0001-01-01 and the day after 9999-12-31 from 2000-01-01.
_LAKE_DAYS = (-730_119, 2_921_940)
#: First valid day of PostgreSQL (4714-11-24 BC) and the day after the last (5874897-12-31).
_DATES = (-2_451_545, 2_145_031_949)
#: First valid microsecond (4714-11-24 BC) and the one after the last: to the microsecond that follows
#: 294276-12-31 a ``timestamp(3)`` is rounded, which the server stores and prints.
_TIMESTAMPS = (-2_451_545 * _DAY_US, 106_751_983 * _DAY_US + 1)
_TIME_TEXT_BYTES = 15


def moment_caster(target: pa.DataType) -> Caster:
    """A caster to date32 or to a timestamp in microseconds; what is out of range is rejected."""
    if pa.types.is_date32(target):
        wire, lake, valid, epoch = _DAYS, _LAKE_DAYS, _DATES, _EPOCH_DAYS
    else:
        wire, valid, epoch = _MICROS, _TIMESTAMPS, _EPOCH_DAYS * _DAY_US
        lake = (_LAKE_DAYS[0] * _DAY_US, _LAKE_DAYS[1] * _DAY_US)

    def cast(raw: pa.Array) -> CastResult:
        found = fixed_numbers(raw, wire)
        held = (found >= lake[0]) & (found < lake[1])
        if held.all():
            found += epoch
            return accepted(number_array(raw, found).view(target))
        _check_valid(found[~held], valid)
        rejected = valid_rows(raw)[~held]
        mask = null_mask(raw)
        is_null = np.zeros(len(raw), dtype=np.bool_) if mask is None else mask.copy()
        numbers = np.zeros(len(raw), dtype=found.dtype)
        numbers[~is_null] = np.where(held, found, -epoch) + epoch
        is_null[rejected] = True
        return CastResult(pa.array(numbers, mask=is_null).view(target), rejected)

    return cast


def _check_valid(found: NDArray[Any], valid: tuple[int, int]) -> None:
    inside = (found >= valid[0]) & (found < valid[1])
    if not (inside | _is_infinite(found)).all():
        raise MalformedText


def _is_infinite(found: NDArray[Any]) -> NDArray[np.bool_]:
    limits = np.iinfo(found.dtype)
    infinite: NDArray[np.bool_] = (found == limits.max) | (found == limits.min)
    return infinite


def cast_wire_time(raw: pa.Array) -> CastResult:
    """A time as microseconds since midnight."""
    return accepted(number_array(raw, _times(raw)))


def time_texts(raw: pa.Array) -> pa.Array:
    """``12:34:56.7``, of the microseconds since midnight; ``24:00:00`` is a time."""
    return at_rows_of(raw, clock_texts(_times(raw)))


def _times(raw: pa.Array) -> NDArray[np.int64]:
    found = fixed_numbers(raw, _MICROS)
    if ((found < 0) | (found > _DAY_US)).any():
        raise MalformedText
    return found


def clock_texts(micros: NDArray[np.int64]) -> pa.Array:
    """Microseconds of a day as text, without zeros at the end of the fraction."""
    whole = micros // 1_000_000
    # Numbers of 32 bits are divided several at a time.
    fraction, seconds = (micros - whole * 1_000_000).astype(np.int32), whole.astype(np.int32)
    minutes, hundreds = seconds // 60, fraction // 100
    hours, ten_thousands = minutes // 60, hundreds // 100
    texts = np.empty((len(micros), _TIME_TEXT_BYTES), dtype=np.uint8)
    pairs = {
        0: hours,
        3: minutes - hours * 60,
        6: seconds - minutes * 60,
        9: ten_thousands,
        11: hundreds - ten_thousands * 100,
        13: fraction - hundreds * 100,
    }
    for place, pair in pairs.items():
        tens = pair // 10
        texts[:, place] = tens + ord("0")
        texts[:, place + 1] = pair - tens * 10 + ord("0")
    texts[:, (2, 5)] = ord(":")
    texts[:, 8] = ord(".")
    lengths = np.full(len(micros), _TIME_TEXT_BYTES, dtype=np.int64)
    ends_in_zero = np.flatnonzero(texts[:, -1] == ord("0"))
    for power in range(1, 6):
        lengths[ends_in_zero] -= fraction[ends_in_zero] % 10**power == 0
    lengths[fraction == 0] = 8
    starts = np.arange(len(micros), dtype=np.int64) * _TIME_TEXT_BYTES
    return cut(texts.reshape(-1), starts, starts + lengths)


def date_texts(raw: pa.Array) -> pa.Array:
    """``2024-02-29``, ``0044-03-15 BC``, ``infinity``."""
    found = fixed_numbers(raw, _DAYS)
    _check_valid(found, _DATES)
    texts = [
        _special(number) or f"{date}{era}".encode()
        for number, (date, era) in zip(found, _dates(found.astype(np.int64)), strict=True)
    ]
    return at_rows_of(raw, pa.array(texts, pa.binary()))


def timestamp_printer(zone: bytes) -> Printer:
    """A printer of timestamps.

    :param zone: what follows the time: nothing, or the offset of UTC.
    """

    def texts(raw: pa.Array) -> pa.Array:
        found = fixed_numbers(raw, _MICROS)
        _check_valid(found, _TIMESTAMPS)
        days, micros = np.divmod(found, _DAY_US)
        parts = zip(found, _dates(days), clock_texts(micros).to_pylist(), strict=True)
        printed = [
            _special(number) or b"%b %b%b%b" % (date.encode(), clock, zone, era.encode())
            for number, (date, era), clock in parts
        ]
        return at_rows_of(raw, pa.array(printed, pa.binary()))

    return texts


def _special(number: np.signedinteger[Any]) -> bytes | None:
    limits = np.iinfo(number.dtype)
    if number == limits.max:
        return b"infinity"
    return b"-infinity" if number == limits.min else None


def _dates(days: NDArray[np.int64]) -> list[tuple[str, str]]:
    """Days from 2000-01-01 as date and era; numpy's calendar is the Gregorian one, too, with a year 0."""
    dates = (days + _EPOCH_DAYS).astype("M8[D]")
    months = dates.astype("M8[M]")
    years = (months.astype("M8[Y]").astype(np.int64) + 1970).tolist()
    month_numbers = (months.astype(np.int64) % 12 + 1).tolist()
    day_numbers = ((dates - months.astype("M8[D]")).astype(np.int64) + 1).tolist()
    return [
        (f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02}", "" if year > 0 else " BC")
        for year, month, day in zip(years, month_numbers, day_numbers, strict=True)
    ]
