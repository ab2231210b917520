"""Casters of time as microseconds and of interval as months, days and microseconds.

An interval is stored as these three numbers; none of them follows from the others (a month has no fixed
number of days). The text is that of IntervalStyle ``postgres``. An infinite interval, which version 17
brought, is no three numbers and is rejected.

Source: https://www.postgresql.org/docs/current/datatype-datetime.html#DATATYPE-INTERVAL-INPUT
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.capture.types.arrow import arrow_type
from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    ByteRuns,
    CastResult,
    MalformedText,
    accepted,
    null_mask,
    valid_rows,
    without,
)
from airflow_provider_pgoutput.capture.types.mapping import INTERVAL_STRUCT

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CLOCK = r"(?P<hours>\d{2,}):(?P<minutes>[0-5]\d):(?P<seconds>[0-5]\d)(?:\.(?P<fraction>\d{1,6}))?"
_TIME = rf"^{_CLOCK}$"
# A plus stands before a number that follows a negative one.
_INTERVAL = (
    r"^(?:\+?(?P<years>-?\d+) years?(?: |$))?(?:\+?(?P<months>-?\d+) mons?(?: |$))?"
    rf"(?:\+?(?P<days>-?\d+) days?(?: |$))?(?:(?P<sign>[+-]?){_CLOCK})?$"
)
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
    # Of the least number of all there is no positive one; numpy's product wraps to it.
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
    """The groups of a pattern that all rows match; null rows have empty groups."""
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
    """A group as numbers; 0 where it matched nothing."""
    texts = found.field(group)
    return _integers(pc.if_else(pc.equal(texts, ""), "0", texts))


def _integers(texts: pa.Array) -> NDArray[np.int64]:
    try:
        numbers: NDArray[np.int64] = texts.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        # Arrow's message holds the value, so it must not become part of ours.
        raise MalformedText from None
    return numbers


def _is(found: pa.StructArray, group: str, text: str) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = pc.equal(found.field(group), text).to_numpy(zero_copy_only=False)
    return same
