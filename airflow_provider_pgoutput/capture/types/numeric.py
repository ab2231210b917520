"""Casters of integers and floats as text, and of numeric as text and in binary form.

A numeric in binary form is a header of four 16-bit words (number of groups, weight, sign, display scale),
then groups of four decimal digits. The first group counts powers of 10000 as the weight says, each other
group one power less.

Sources: https://www.postgresql.org/docs/current/datatype-numeric.html and ``numeric_send`` in
``src/backend/utils/adt/numeric.c``
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.batch.lake_types import MAX_DECIMAL_PRECISION
from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    ByteRuns,
    Caster,
    CastResult,
    MalformedText,
    TooMuchText,
    accepted,
    at_rows_of,
    cast_mostly,
    cast_text,
    cut,
    null_mask,
    overlapping,
    valid_rows,
    without,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ZERO, _NINE, _POINT, _MINUS = ord("0"), ord("9"), ord("."), ord("-")
#: With a sign, a zero and a point. Arrow parses no more digits than a decimal has.
_LONGEST_DECIMAL_TEXT = MAX_DECIMAL_PRECISION + 3


def exact_caster(target: pa.DataType) -> Caster:
    """A caster to an integer or floating point type that holds all values of its source.

    Arrow parses floats with correct rounding, so the bits are the server's, including -0, subnormals, NaN and
    the infinities.
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
    """Rows that are longer than any decimal. Arrow 26 reads a number of 128 digits or more as another one."""
    runs = ByteRuns.of(raw)
    rows = np.flatnonzero(runs.ends - runs.starts > _LONGEST_DECIMAL_TEXT)
    return rows[np.isin(rows, valid_rows(raw))] if len(rows) else rows


def _without_last_zeros(raw: pa.Array) -> pa.Array:
    """Numbers without the zeros at the end of their fractions. There may be more zeros than Arrow can parse.

    PostgreSQL prints as many as the display scale says. They are not part of the value.
    """
    runs = ByteRuns.of(raw)
    if len(runs.data) == 0:
        return raw
    positions = np.arange(len(runs.data), dtype=np.int64)
    is_digit = (runs.data >= _ZERO) & (runs.data <= _NINE)
    # Position of the last byte of a kind at or before each byte. Before the first one there is none.
    newest_other = np.maximum.accumulate(np.where(is_digit, -1, positions))
    newest_kept = np.maximum.accumulate(np.where(runs.data == _ZERO, -1, positions))
    last = np.maximum(runs.ends - 1, 0)
    points, kept = newest_other[last], newest_kept[last]
    digits_start = runs.starts + (runs.byte(np.arange(len(raw)), 0) == _MINUS)
    has_fraction = (points > digits_start) & (points < runs.ends) & (runs.data[points] == _POINT)
    # Only digits: other texts stay as they are.
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

    Zeros at the end of a fraction do not count. A text that is no number is not too large.
    """
    if len(runs.data) == 0:
        return np.zeros(len(rows), dtype=np.bool_)
    starts, ends = runs.starts[rows], runs.ends[rows]
    positions = np.arange(len(runs.data), dtype=np.int64)
    is_digit = (runs.data >= _ZERO) & (runs.data <= _NINE)
    # Position of the last byte of a kind at or before each byte. Before the first one there is none.
    newest_point = np.maximum.accumulate(np.where(runs.data == _POINT, positions, -1))
    newest_nonzero = np.maximum.accumulate(np.where(is_digit & (runs.data != _ZERO), positions, -1))
    digits_before = np.concatenate([[0], np.cumsum(is_digit)])
    starts = starts + (runs.byte(rows, 0) == _MINUS)
    last = np.maximum(ends - 1, 0)
    has_point = newest_point[last] >= starts
    points = np.where(has_point, newest_point[last], ends)
    # PostgreSQL prints no zeros before a number, except for the one before the point.
    whole = points - starts - (runs.data[np.minimum(starts, len(runs.data) - 1)] == _ZERO)
    fraction = np.maximum(newest_nonzero[last] - points, 0)
    digits = digits_before[ends] - digits_before[starts]
    is_number = (ends > starts) & (digits == ends - starts - has_point)
    found: NDArray[np.bool_] = is_number & ((whole > precision - scale) | (fraction > scale))
    return found


_HEAD_BYTES = 8
_NEGATIVE = 0x4000
_SPECIAL = 0x8000
#: Signs of values that are not numbers.
_SPECIALS = {0xC000: b"NaN", 0xD000: b"Infinity", 0xF000: b"-Infinity"}
_MAX_SCALE = 0x3FFF
#: Digits that always fit a signed 64-bit number.
_NARROW_PRECISION = 18
#: More than PostgreSQL itself prints for a row, and less than an Arrow array can hold.
_MAX_TEXT_BYTES = 1 << 30
_LOW_HALF = np.uint64(0xFFFFFFFF)
_HALF_BITS = np.uint64(32)

#: By the number of digits of a group that are shown: the power of ten of the others.
_PAST_SHOWN = 10 ** np.arange(4, 0, -1)
#: The four characters of each group, as one number.
_GROUP_TEXTS = (
    (np.arange(10_000)[:, None] // (1000, 100, 10, 1) % 10 + ord("0"))
    .astype(np.uint8)
    .view(np.uint32)
    .reshape(-1)
)


@dataclass(frozen=True, slots=True)
class _Heads:
    """The headers of a column without nulls."""

    runs: ByteRuns
    counts: NDArray[np.int64]
    #: Power of 10000 of the first group.
    weights: NDArray[np.int64]
    signs: NDArray[np.int64]
    scales: NDArray[np.int64]

    @classmethod
    def of(cls, dense: pa.Array) -> _Heads:
        """Read them.

        :raises MalformedText: when one does not fit its value, or is none.
        """
        runs = ByteRuns.of(dense)
        lengths = runs.ends - runs.starts
        if (lengths < _HEAD_BYTES).any():
            raise MalformedText
        heads = overlapping(runs.data, np.dtype(">i8"))[runs.starts].astype(np.int64)
        counts, weights = heads >> 48, heads << 16 >> 48
        signs, scales = heads >> 16 & 0xFFFF, heads & 0xFFFF
        special = np.isin(signs, list(_SPECIALS)) if (signs > _NEGATIVE).any() else signs < 0
        if not (
            np.array_equal(lengths, _HEAD_BYTES + 2 * counts)
            and ((signs == 0) | (signs == _NEGATIVE) | (special & (counts == 0))).all()
            and (scales <= _MAX_SCALE).all()
        ):
            raise MalformedText
        return cls(runs, counts, weights, signs, scales)

    @property
    def special(self) -> NDArray[np.bool_]:
        """Which values are not numbers."""
        found: NDArray[np.bool_] = self.signs >= _SPECIAL
        return found


@dataclass(frozen=True, slots=True)
class _Groups:
    """The digits of a column without nulls, one element for each group."""

    #: 0 to 9999; digits past the display scale, which the server does not print, are 0.
    digits: NDArray[np.int64]
    #: Which value a group belongs to, and its power of 10000.
    rows: NDArray[np.int64]
    exponents: NDArray[np.int64]

    @classmethod
    def of(cls, heads: _Heads) -> _Groups:
        """Read them.

        :raises MalformedText: when one is no group.
        """
        counts = heads.counts
        rows, numbers = np.repeat(np.arange(len(counts)), counts), np.arange(int(counts.sum()))
        # As many headers as rows are before a group, its own row's included.
        words = heads.runs.data.view(">u2")
        digits = words[numbers + (_HEAD_BYTES // 2) * (rows + 1)].astype(np.int64)
        if (digits >= len(_GROUP_TEXTS)).any():
            raise MalformedText
        # As if all groups were of one number, whose first would be of this weight.
        exponents = np.repeat(heads.weights + np.cumsum(counts) - counts, counts) - numbers
        shown = np.repeat(heads.scales, counts) + 4 * exponents + 4
        last = np.flatnonzero(shown < 4)
        digits[last] -= digits[last] % _PAST_SHOWN[np.maximum(shown[last], 0)]
        return cls(digits, rows, exponents)


def decimal_wire_caster(target: pa.DataType) -> Caster:
    """A caster to a decimal; NaN, the infinities and numbers that are too large are rejected."""
    columns_of = _Columns.of(target)
    join = _join_narrow if target.precision <= _NARROW_PRECISION else _join_wide

    def cast(raw: pa.Array) -> CastResult:
        dense = raw.drop_null() if raw.null_count else raw
        heads = _Heads.of(dense)
        columns, is_usual = columns_of.usual(heads)
        does_not_fit = np.zeros(len(dense), dtype=np.bool_)
        if not is_usual.all():
            rows = np.flatnonzero(~is_usual)
            columns[:, rows], does_not_fit[rows] = columns_of.any(
                _Heads.of(dense.take(pa.array(rows)))
            )
        does_not_fit |= columns[0] >= columns_of.largest_first
        if does_not_fit.any():
            columns[:, does_not_fit] = 0
        low, high = join(columns, columns_of.steps)
        negative = np.flatnonzero(heads.signs == _NEGATIVE)
        if len(negative):
            low[negative] = ~low[negative] + np.uint64(1)
            high[negative] = ~high[negative] + (low[negative] == 0)
        return _decimals(raw, target, low, high, does_not_fit)

    return cast


@dataclass(frozen=True, slots=True)
class _Columns:
    """A decimal's digits base 10000, the most significant first, with the point between two of them.

    Of the last one only the digits within the scale are there.
    """

    scale: int
    #: How many there are before and after the point.
    whole: int
    fraction: int
    #: What each one counts in the next.
    steps: list[int]
    #: The first one is less than that.
    largest_first: int

    @classmethod
    def of(cls, target: pa.DataType) -> _Columns:
        precision, scale = target.precision, target.scale
        whole, fraction = -(-(precision - scale) // 4), -(-scale // 4)
        steps = [10_000] * (whole + fraction)
        steps[-1] //= 10 ** (4 * fraction - scale)
        largest_first = 10 ** (precision - scale - 4 * (whole - 1)) if whole else 10_000
        return cls(scale, whole, fraction, steps, largest_first)

    @property
    def past_scale(self) -> np.uint64:
        """What one of the last one's own digits counts in its group."""
        return np.uint64(10_000 // self.steps[-1])

    def usual(self, heads: _Heads) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """The columns, right where the second array says so: at numbers of the scale that fit.

        Column by column, as a value has at most one group for each.
        """
        words = overlapping(heads.runs.data, np.dtype(">u2"))
        columns = np.zeros((len(self.steps), len(heads.counts)), dtype=np.uint64)
        first = heads.runs.starts + _HEAD_BYTES
        used = np.zeros(len(heads.counts), dtype=np.int64)
        unused = max(self.whole - 1 - int(heads.weights.max(initial=-1)), 0)
        for place in range(unused, len(columns)):
            index = heads.weights - (self.whole - 1 - place)
            present = (index >= 0) & (index < heads.counts)
            if not present.any():
                continue
            if present.all():
                columns[place] = words[first + 2 * index]
            else:
                # Where there is no group anything is read, and made 0.
                columns[place] = words[np.where(present, first + 2 * index, 0)]
                columns[place] *= present
            used += present
        if (columns >= len(_GROUP_TEXTS)).any():
            raise MalformedText
        if self.past_scale > 1:
            columns[-1] //= self.past_scale
        return columns, (used == heads.counts) & (heads.scales == self.scale) & ~heads.special

    def any(self, heads: _Heads) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """The columns of all values, and which values have digits outside of them or none at all."""
        groups = _Groups.of(heads)
        does_not_fit = heads.special
        columns = np.zeros((len(self.steps), len(does_not_fit)), dtype=np.uint64)
        places = self.whole - 1 - groups.exponents
        inside = (places >= 0) & (places < len(columns))
        does_not_fit[groups.rows[~inside & (groups.digits != 0)]] = True
        columns[places[inside], groups.rows[inside]] = groups.digits[inside]
        does_not_fit |= columns[-1] % self.past_scale != 0
        columns[-1] //= self.past_scale
        return columns, does_not_fit


def _join_narrow(
    columns: NDArray[np.uint64], steps: list[int]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Digits as numbers below 2 to the power of 63; low and high half."""
    low = columns[0].copy()
    for column, step in zip(columns[1:], steps[1:], strict=True):
        low *= np.uint64(step)
        low += column
    return low, np.zeros_like(low)


def _join_wide(
    columns: NDArray[np.uint64], steps: list[int]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Digits as numbers of 128 bits, low and high half: four at a time fit 64 bits, then these are joined."""
    low = np.zeros(columns.shape[1], dtype=np.uint64)
    high = np.zeros_like(low)
    for begin in range(0, len(columns), 4):
        chunk = np.zeros_like(low)
        factor = 1
        for column, step in zip(columns[begin : begin + 4], steps[begin : begin + 4], strict=True):
            chunk *= np.uint64(step)
            chunk += column
            factor *= step
        low, high = (chunk, high) if begin == 0 else _multiply_add(low, high, factor, chunk)
    return low, high


def _multiply_add(
    low: NDArray[np.uint64], high: NDArray[np.uint64], factor: int, addend: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """A number of 128 bits times a factor of 64, plus an addend of 64; schoolbook, by halves of 32 bits."""
    factor_low, factor_high = np.uint64(factor & 0xFFFFFFFF), np.uint64(factor >> 32)
    first, second = low & _LOW_HALF, low >> _HALF_BITS
    lowest, cross, other_cross = first * factor_low, first * factor_high, second * factor_low
    middle = (lowest >> _HALF_BITS) + (cross & _LOW_HALF) + (other_cross & _LOW_HALF)
    carry = second * factor_high + (cross >> _HALF_BITS) + (other_cross >> _HALF_BITS)
    carry += middle >> _HALF_BITS
    product = (lowest & _LOW_HALF) | (middle << _HALF_BITS)
    total = product + addend
    carry += total < product
    return total, high * np.uint64(factor) + carry


def _decimals(
    raw: pa.Array,
    target: pa.DataType,
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
    does_not_fit: NDArray[np.bool_],
) -> CastResult:
    rows = valid_rows(raw)
    rejected = rows[does_not_fit]
    words = np.zeros((len(raw), 2), dtype="<u8")
    places: slice | NDArray[np.int64] = rows if raw.null_count else slice(None)
    words[places, 0], words[places, 1] = low, high
    is_valid = np.zeros(len(raw), dtype=np.bool_)
    is_valid[rows] = ~does_not_fit
    # A boolean array keeps its values as a validity bitmap is kept.
    bitmap = None if is_valid.all() else pa.array(is_valid).buffers()[1]
    values = pa.Array.from_buffers(target, len(raw), [bitmap, pa.py_buffer(words)])
    return CastResult(values, rejected)


def numeric_texts(raw: pa.Array) -> pa.Array:
    """Numerics as PostgreSQL prints them: all digits of the display scale, ``NaN``, ``-Infinity``.

    :raises MalformedText: when a value is none.
    :raises TooMuchText: 1e131071 has ten bytes, and 131,072 characters.
    """
    heads = _Heads.of(raw.drop_null() if raw.null_count else raw)
    texts = _plain_texts(heads)
    if heads.special.any():
        index = np.arange(len(texts))
        for place, sign in enumerate(_SPECIALS):
            index[heads.signs == sign] = len(texts) + place
        words = pa.array(list(_SPECIALS.values()), pa.binary())
        texts = pa.concat_arrays([texts, words]).take(pa.array(index))
    return at_rows_of(raw, texts)


def _plain_texts(heads: _Heads) -> pa.Array:
    """Every number as text; what is not a number gives anything.

    A row of zeros is laid out for each: four or more before the point, one byte that the point takes,
    and the fraction. Groups of four characters are written into it, then the row is cut at both ends.
    """
    special = heads.special
    scales = np.where(special, 0, heads.scales)
    whole = np.where(special, 1, np.maximum(heads.weights + 1, 1))
    fraction = (scales + 3) >> 2
    # Seven bytes before the whole part: the sign has a place, and the fraction begins at a multiple of 4.
    sizes = 8 + 4 * (whole + fraction)
    points = np.cumsum(sizes) - sizes + 7 + 4 * whole
    if int(sizes.sum()) > _MAX_TEXT_BYTES:
        raise TooMuchText
    data = np.full(int(sizes.sum()), ord("0"), dtype=np.uint8)
    groups = _Groups.of(heads)
    exponents, digits = groups.exponents, groups.digits
    places = np.repeat(points, heads.counts) - 4 * (exponents + 1) + (exponents < 0)
    printed = exponents >= -np.repeat(fraction, heads.counts)
    if not printed.all():
        places, digits = places[printed], digits[printed]
    overlapping(data, np.dtype(np.uint32))[places] = _GROUP_TEXTS[digits]

    begins_whole = (heads.counts > 0) & (heads.weights >= 0)
    leading = np.zeros(len(whole), dtype=np.int64)
    leading[begins_whole] = groups.digits[(np.cumsum(heads.counts) - heads.counts)[begins_whole]]
    begins = points - 4 * whole + (leading < 1000) + (leading < 100) + (leading < 10)
    negative = heads.signs == _NEGATIVE
    begins -= negative
    data[begins[negative]] = ord("-")
    pointed = scales > 0
    data[points[pointed]] = ord(".")
    return cut(data, begins, points + pointed + scales)
