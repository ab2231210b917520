"""Casters of arrays as text and in binary form, and of pgvector's vectors and hstore as text.

``literals.py`` cuts the literals. The caster of the element's type casts their parts. A list holds arrays of
one dimension that start at 1. Other arrays are rejected, and so are arrays with an element that its type
cannot hold.

An array in binary form has a header: number of dimensions, whether there are NULLs, the element's type, then
length and lower bound of each dimension. Then come the elements, each with its length in front. All rows are
walked together, one element of each at a time.

Sources: https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO and ``array_send`` in
``src/backend/utils/adt/arrayfuncs.c``
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    ByteRuns,
    Caster,
    CastResult,
    MalformedText,
    accepted,
    at_rows_of,
    cut,
    null_mask,
    overlapping,
    valid_rows,
    without,
)
from airflow_provider_pgoutput.capture.types.literals import (
    VECTOR,
    Brackets,
    Literals,
    split_hstores,
)
from airflow_provider_pgoutput.capture.types.scalars import cast_string

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.types.arrow_bytes import Printer


def list_caster(target: pa.DataType, brackets: Brackets, element_caster: Caster) -> Caster:
    """A caster of array literals, or of vectors, which only look different."""

    def cast(raw: pa.Array) -> CastResult:
        dense = raw.drop_null() if raw.null_count else raw
        marks = VECTOR if _are_vectors(dense) else brackets
        literals = Literals.of(dense, marks)
        if len(rejected := literals.not_one_dimensional()):
            return _without_rejected(raw, valid_rows(raw)[rejected])
        counts, elements = literals.split()
        result = element_caster(elements)
        if len(result.rejected):
            dense_rows = np.searchsorted(np.cumsum(counts), result.rejected, side="right")
            return _without_rejected(raw, np.unique(valid_rows(raw)[dense_rows]))
        return accepted(list_array(raw, counts, result.values, target))

    def _without_rejected(raw: pa.Array, rejected: NDArray[np.int64]) -> CastResult:
        rest = cast(without(raw, rejected))
        return CastResult(rest.values, np.union1d(rejected, rest.rejected))

    return cast


def cast_map(raw: pa.Array) -> CastResult:
    """An hstore literal as a map of strings. hstore has no order and no duplicate keys."""
    dense = raw.drop_null() if raw.null_count else raw
    counts, keys, values = split_hstores(dense)
    mask = null_mask(raw)
    return accepted(
        pa.MapArray.from_arrays(
            pa.array(_offsets(raw, counts)),
            cast_string(keys).values,
            cast_string(values).values,
            mask=None if mask is None else pa.array(mask),
        )
    )


def list_array(
    raw: pa.Array, counts: NDArray[np.int64], elements: pa.Array, target: pa.DataType
) -> pa.Array:
    """Elements as lists, at the rows of ``raw`` that are not null.

    ``counts`` has their number for each row.
    """
    mask = null_mask(raw)
    return pa.ListArray.from_arrays(
        pa.array(_offsets(raw, counts)),
        elements,
        type=target,
        mask=None if mask is None else pa.array(mask),
    )


def _are_vectors(dense: pa.Array) -> bool:
    """Whether a column has ``[1,2]`` and not ``{1,2}``. An array with bounds also ends in ``}``."""
    if len(dense) == 0:
        return False
    runs = ByteRuns.of(dense[:1])
    return len(runs.data) > 0 and int(runs.data[-1]) == VECTOR.closing


def _offsets(raw: pa.Array, counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Where the parts of each row start. ``counts`` has the number of parts of each row that is not null."""
    sizes = np.zeros(len(raw), dtype=np.int64)
    sizes[valid_rows(raw)] = counts
    offsets = np.zeros(len(raw) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


_HEAD_BYTES, _DIMENSION_BYTES, _LENGTH_BYTES = 12, 8, 4
_MAX_DIMENSIONS = 6
_INT4 = struct.Struct("!i")
_WORD = np.dtype(">i4")
#: More elements than any value can have.
_TOO_MANY = 1 << 31
#: For fewer rows Python walks: a step of numpy took 13 us for so few rows, an element in Python 0.36 us.
_FEW_ROWS = 40
_QUOTED = frozenset(b'{}"\\ \t\n\r\v\f')


@dataclass(frozen=True, slots=True)
class ElementForm:
    """What the binary form of an array depends on."""

    type_oid: int
    #: Bytes of every element; None: they differ.
    width: int | None
    #: What separates elements in a literal.
    delimiter: bytes = b","


@dataclass(frozen=True, slots=True)
class WireArrays:
    """The arrays of a column that are not null."""

    runs: ByteRuns
    dimensions: NDArray[np.int64]
    #: Number of elements of each array.
    counts: NDArray[np.int64]
    #: Whether an array is empty, or has one dimension that begins at 1.
    flat: NDArray[np.bool_]
    #: Elements of all arrays in order; null for NULL.
    elements: pa.Array

    @classmethod
    def of(cls, raw: pa.Array, form: ElementForm) -> WireArrays:
        """Take a column apart.

        :raises MalformedText: a value is not what ``array_send`` makes.
        """
        runs = ByteRuns.of(raw.drop_null() if raw.null_count else raw)
        if (runs.ends - runs.starts < _HEAD_BYTES).any():
            raise MalformedText
        words = overlapping(runs.data, _WORD)
        dimensions = _numbers(words, runs.starts)
        has_nulls, type_oids = _numbers(words, runs.starts + 4), _numbers(words, runs.starts + 8)
        first = runs.starts + _HEAD_BYTES + _DIMENSION_BYTES * dimensions
        if not (
            ((dimensions >= 0) & (dimensions <= _MAX_DIMENSIONS)).all()
            and ((has_nulls == 0) | (has_nulls == 1)).all()
            and (type_oids & 0xFFFFFFFF == form.type_oid).all()
            and (first <= runs.ends).all()
        ):
            raise MalformedText
        counts = np.minimum(dimensions, 1)
        flat = dimensions <= 1
        for number in range(int(dimensions.max(initial=0))):
            rows = np.flatnonzero(dimensions > number)
            places = runs.starts[rows] + _HEAD_BYTES + _DIMENSION_BYTES * number
            lengths, lower = _numbers(words, places), _numbers(words, places + 4)
            if (lengths < 0).any():
                raise MalformedText
            counts[rows] = np.minimum(counts[rows] * lengths, _TOO_MANY)
            flat[rows] &= lower == 1
        if (counts * _LENGTH_BYTES > runs.ends - first).any():
            raise MalformedText
        starts, lengths = _Walk(runs, words, first, counts).elements(form.width)
        is_null = lengths < 0
        ends = starts + np.maximum(lengths, 0)
        elements = cut(runs.data, starts, ends, is_null if is_null.any() else None)
        return cls(runs, dimensions, counts, flat | (counts == 0), elements)


def _numbers(words: NDArray[np.int32], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return words[positions].astype(np.int64)


class _Walk:
    """The search for the elements of all arrays: where each begins and how long it is, -1 for NULL.

    :param first: position of each array's first element.
    """

    def __init__(
        self,
        runs: ByteRuns,
        words: NDArray[np.int32],
        first: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> None:
        self._runs, self._words, self._first, self._counts = runs, words, first, counts
        self._base = np.cumsum(counts) - counts
        total = int(counts.sum())
        self._starts = np.empty(total, dtype=np.int64)
        self._lengths = np.empty(total, dtype=np.int64)

    def elements(self, width: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Start and length of each element.

        :raises MalformedText: the elements of an array do not end where the array ends.
        """
        sizes = self._runs.ends - self._first
        if width is None:
            regular = np.zeros(len(sizes), dtype=np.bool_)
        else:
            regular = sizes == self._counts * (_LENGTH_BYTES + width)
            self._stride(np.flatnonzero(regular), _LENGTH_BYTES + width)
        if (sizes[self._counts == 0] != 0).any():
            raise MalformedText
        self._walk(np.flatnonzero(~regular & (self._counts > 0)))
        return self._starts, self._lengths

    def _stride(self, rows: NDArray[np.int64], step: int) -> None:
        """Arrays without NULLs whose elements have one width. The length of an array shows that it is one."""
        counts = self._counts[rows]
        number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        heads = np.repeat(self._first[rows], counts) + number * step
        lengths = _numbers(self._words, heads)
        if (lengths != step - _LENGTH_BYTES).any():
            raise MalformedText
        targets = np.repeat(self._base[rows], counts) + number
        self._starts[targets], self._lengths[targets] = heads + _LENGTH_BYTES, lengths

    def _walk(self, rows: NDArray[np.int64]) -> None:
        """One element of each array at a time. Positions only grow, so the last position proves all."""
        positions, number = self._first[rows], 0
        while len(rows) > _FEW_ROWS:
            if (positions + _LENGTH_BYTES > self._runs.ends[rows]).any():
                raise MalformedText
            lengths = _numbers(self._words, positions)
            if (lengths < -1).any():
                raise MalformedText
            targets = self._base[rows] + number
            positions = positions + _LENGTH_BYTES
            self._starts[targets], self._lengths[targets] = positions, lengths
            positions += np.maximum(lengths, 0)
            number += 1
            ended = self._counts[rows] == number
            if (positions[ended] != self._runs.ends[rows[ended]]).any():
                raise MalformedText
            rows, positions = rows[~ended], positions[~ended]
        for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
            self._walk_one(row, position, number)

    def _walk_one(self, row: int, position: int, number: int) -> None:
        """The rest of a long array, from element ``number`` on."""
        data, end = self._runs.data.data, int(self._runs.ends[row])
        starts, lengths = [], []
        for _ in range(number, int(self._counts[row])):
            if position + _LENGTH_BYTES > end:
                raise MalformedText
            (length,) = _INT4.unpack_from(data, position)
            if length < -1:
                raise MalformedText
            position += _LENGTH_BYTES
            starts.append(position)
            lengths.append(length)
            position += max(length, 0)
        if position != end:
            raise MalformedText
        target = int(self._base[row]) + number
        self._starts[target : target + len(starts)] = starts
        self._lengths[target : target + len(starts)] = lengths


def array_caster(target: pa.DataType, form: ElementForm, element_caster: Caster) -> Caster:
    """A caster of arrays to a list."""

    def cast(raw: pa.Array) -> CastResult:
        arrays = WireArrays.of(raw, form)
        result = element_caster(arrays.elements)
        does_not_fit = ~arrays.flat
        if len(result.rejected):
            ends = np.cumsum(arrays.counts)
            does_not_fit[np.searchsorted(ends, result.rejected, side="right")] = True
        if does_not_fit.any():
            rejected = valid_rows(raw)[does_not_fit]
            return CastResult(cast(without(raw, rejected)).values, rejected)
        return accepted(list_array(raw, arrays.counts, result.values, target))

    return cast


def array_printer(form: ElementForm, element_texts: Printer) -> Printer:
    """A printer of arrays as literals. It works row by row, because only rejected arrays are printed."""

    def texts(raw: pa.Array) -> pa.Array:
        arrays = WireArrays.of(raw, form)
        special = _QUOTED | frozenset(form.delimiter)
        elements = [_quoted(each, special) for each in element_texts(arrays.elements).to_pylist()]
        literals, begin = [], 0
        for row, count in enumerate(arrays.counts.tolist()):
            head = arrays.runs.data.data[int(arrays.runs.starts[row]) :]
            bounds = [
                _INT4.unpack_from(head, _HEAD_BYTES + 4 * index)[0]
                for index in range(2 * int(arrays.dimensions[row]))
            ]
            own = elements[begin : begin + count]
            literals.append(_literal(own, bounds[::2], bounds[1::2], form.delimiter))
            begin += count
        return at_rows_of(raw, pa.array(literals, pa.binary()))

    return texts


def _literal(
    elements: list[bytes], lengths: list[int], lower: list[int], delimiter: bytes
) -> bytes:
    """An array literal. If a lower bound is not 1, the bounds stand in front."""
    if not elements:
        return b"{}"
    for length in reversed(lengths):
        elements = [
            b"{%b}" % delimiter.join(elements[begin : begin + length])
            for begin in range(0, len(elements), length)
        ]
    if all(each == 1 for each in lower):
        return elements[0]
    bounds = zip(lower, lengths, strict=True)
    return (
        b"".join(b"[%d:%d]" % (least, least + size - 1) for least, size in bounds)
        + b"="
        + elements[0]
    )


def _quoted(element: bytes | None, special: frozenset[int]) -> bytes:
    if element is None:
        return b"NULL"
    if element and element.upper() != b"NULL" and special.isdisjoint(element):
        return element
    return b'"%b"' % element.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
