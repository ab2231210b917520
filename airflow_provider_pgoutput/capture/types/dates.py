"""Casters of date, time, timestamp and timestamptz as text and in binary form, and of interval as text.

The text is that of DateStyle ISO, TimeZone UTC and IntervalStyle postgres. In binary form a date counts days,
and a timestamp microseconds, since 2000-01-01. The greatest and the least number are the infinities. The
lake's types have the years 1 to 9999. Earlier years (``BC``), later years and the infinities are rejected.

An interval is three numbers: months, days and microseconds. None follows from the others, because a month has
no fixed number of days. An infinite interval (PostgreSQL 17 on) is not three numbers, and is rejected.

Sources: https://www.postgresql.org/docs/current/datatype-datetime.html and
``src/include/datatype/timestamp.h``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.batch.lake_types import struct_type
from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    ByteRuns,
    Caster,
    CastResult,
    MalformedText,
    accepted,
    at_rows_of,
    cast_mostly,
    cut,
    null_mask,
    valid_rows,
    without,
)
from airflow_provider_pgoutput.capture.types.scalars import (
    fixed_numbers,
    number_array,
)
from airflow_provider_pgoutput.lake.arrow_types import arrow_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.types.arrow_bytes import Printer

_ZERO, _NINE, _DASH = ord("0"), ord("9"), ord("-")


def date_caster(target: pa.DataType) -> Caster:
    """A caster to a date or timestamp type."""

    def cast(raw: pa.Array) -> CastResult:
        return cast_mostly(raw, target, _unholdable)

    return cast


def _unholdable(runs: ByteRuns, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether rows are infinite, before the year 1, or have a year with five digits or more."""
    found = np.zeros(len(rows), dtype=np.bool_)
    # All other rows have a dash after four digits, and no letter at the end.
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


_CLOCK = r"(?P<hours>\d{2,}):(?P<minutes>[0-5]\d):(?P<seconds>[0-5]\d)(?:\.(?P<fraction>\d{1,6}))?"
_TIME = rf"^{_CLOCK}$"
# A number that follows a negative one has a plus in front.
_INTERVAL = (
    r"^(?:\+?(?P<years>-?\d+) years?(?: |$))?(?:\+?(?P<months>-?\d+) mons?(?: |$))?"
    rf"(?:\+?(?P<days>-?\d+) days?(?: |$))?(?:(?P<sign>[+-]?){_CLOCK})?$"
)
#: What an interval is as a struct: PostgreSQL's own three parts.
INTERVAL_STRUCT = struct_type((("months", "int"), ("days", "int"), ("micros", "long")))
_STRUCT = arrow_type(INTERVAL_STRUCT)
_INT4 = np.iinfo(np.int32)


def cast_time(raw: pa.Array) -> CastResult:
    """``12:34:56.7`` as microseconds since midnight; ``24:00:00`` is a time."""
    found = _matches(raw, _TIME)
    micros = pa.array(_clock(found), mask=null_mask(raw))
    return accepted(micros)


def cast_interval(raw: pa.Array) -> CastResult:
    """``1 year 2 mons -3 days +04:05:06.7`` as a struct; the infinities are rejected."""
    rows, runs = valid_rows(raw), ByteRuns.of(raw)
    infinite = rows[runs.equal(rows, b"infinity") | runs.equal(rows, b"-infinity")]
    finite = without(raw, infinite) if len(infinite) else raw
    if (runs.starts[rows] == runs.ends[rows]).any():
        raise MalformedText
    found = _matches(finite, _INTERVAL)
    months = _number(found, "years") * 12 + _number(found, "months")
    days = _number(found, "days")
    micros = _clock(found)
    # The least number of all has no positive counterpart. numpy's product wraps around to the right one.
    micros = np.where(_is(found, "sign", "-"), -micros, micros)
    for each in (months, days):
        if ((each < _INT4.min) | (each > _INT4.max)).any():
            raise MalformedText
    mask = null_mask(finite)
    values = pa.StructArray.from_arrays(
        [
            pa.array(numbers.astype(kind), mask=mask)
            for numbers, kind in ((months, np.int32), (days, np.int32), (micros, np.int64))
        ],
        fields=list(_STRUCT),
        mask=None if mask is None else pa.array(mask),
    )
    return CastResult(values, infinite)


def _matches(raw: pa.Array, pattern: str) -> pa.StructArray:
    """The groups of a pattern that all rows must match. Null rows have empty groups."""
    found = pc.extract_regex(pc.fill_null(raw, b"00:00:00").view(pa.string()), pattern=pattern)
    if found.null_count:
        raise MalformedText
    return found


def _clock(found: pa.StructArray) -> NDArray[np.int64]:
    """Microseconds of hours, minutes, seconds and fraction."""
    seconds = (_number(found, "hours") * 60 + _number(found, "minutes")) * 60
    seconds += _number(found, "seconds")
    fraction = pc.ascii_rpad(found.field("fraction"), 6, "0")
    micros: NDArray[np.int64] = seconds * 1_000_000 + _integers(fraction)
    return micros


def _number(found: pa.StructArray, group: str) -> NDArray[np.int64]:
    """A group as numbers; 0 if it matched nothing."""
    texts = found.field(group)
    return _integers(pc.if_else(pc.equal(texts, ""), "0", texts))


def _integers(texts: pa.Array) -> NDArray[np.int64]:
    try:
        numbers: NDArray[np.int64] = texts.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        # Arrow's message contains the value, so it must not become part of ours.
        raise MalformedText from None
    return numbers


def _is(found: pa.StructArray, group: str, text: str) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = pc.equal(found.field(group), text).to_numpy(zero_copy_only=False)
    return same


_DAYS: np.dtype[Any] = np.dtype(">i4")
_MICROS: np.dtype[Any] = np.dtype(">i8")
DAY_US = 86_400_000_000
#: From 1970-01-01, the lake's day 0, to 2000-01-01, PostgreSQL's.
EPOCH_DAYS = 10_957
#: 0001-01-01 and the day after 9999-12-31 from 2000-01-01.
LAKE_DAYS = (-730_119, 2_921_940)
#: First valid day of PostgreSQL (4714-11-24 BC) and the day after the last (5874897-12-31).
_DATES = (-2_451_545, 2_145_031_949)
#: First valid microsecond (4714-11-24 BC), and the one after the last. A ``timestamp(3)`` can be rounded to
#: the microsecond after 294276-12-31, and the server stores and prints that.
_TIMESTAMPS = (-2_451_545 * DAY_US, 106_751_983 * DAY_US + 1)
_TIME_TEXT_BYTES = 15


def moment_caster(target: pa.DataType) -> Caster:
    """A caster to date32, or to a timestamp in microseconds. Values out of range are rejected."""
    if pa.types.is_date32(target):
        wire, lake, valid, epoch = _DAYS, LAKE_DAYS, _DATES, EPOCH_DAYS
    else:
        wire, valid, epoch = _MICROS, _TIMESTAMPS, EPOCH_DAYS * DAY_US
        lake = (LAKE_DAYS[0] * DAY_US, LAKE_DAYS[1] * DAY_US)

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
    if ((found < 0) | (found > DAY_US)).any():
        raise MalformedText
    return found


def clock_texts(micros: NDArray[np.int64]) -> pa.Array:
    """Microseconds of a day as text, without zeros at the end of the fraction."""
    whole = micros // 1_000_000
    # The processor divides several numbers of 32 bits at a time.
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
    for offset, pair in pairs.items():
        tens = pair // 10
        texts[:, offset] = tens + ord("0")
        texts[:, offset + 1] = pair - tens * 10 + ord("0")
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
        days, micros = np.divmod(found, DAY_US)
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
    """Days from 2000-01-01 as date and era. numpy's calendar is Gregorian, too, and has a year 0."""
    dates = (days + EPOCH_DAYS).astype("M8[D]")
    months = dates.astype("M8[M]")
    years = (months.astype("M8[Y]").astype(np.int64) + 1970).tolist()
    month_numbers = (months.astype(np.int64) % 12 + 1).tolist()
    day_numbers = ((dates - months.astype("M8[D]")).astype(np.int64) + 1).tolist()
    return [
        (f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02}", "" if year > 0 else " BC")
        for year, month, day in zip(years, month_numbers, day_numbers, strict=True)
    ]
