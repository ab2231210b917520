"""What all casters share: the result of a cast, how a cast fails, and an Arrow column seen as bytes.

A caster takes a column as an Arrow ``binary`` array of what PostgreSQL sent, as text or in binary form. It
returns typed values, and the positions of the rows that the type cannot hold. The values of these rows are
null. It knows neither the column's name nor the policy. ``cast.py`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Rows = TypeVar("_Rows", bound="_Sliceable")
_Made = TypeVar("_Made")

_NOTHING: NDArray[np.int64] = np.empty(0, dtype=np.int64)


class _Sliceable(Protocol):
    """Rows of any kind."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice, /) -> Self: ...


class MalformedText(Exception):
    """The value is not what PostgreSQL sends for this type with the pinned settings. It contains no value.

    ``cast.py`` turns it into a ``ProtocolError`` that names the column.
    """


class InvalidEncoding(Exception):
    """Bytes that are not UTF-8; ``cast.py`` turns it into a ``ValueRefused``."""


class TooMuchText(Exception):
    """The texts of the values are together too long to be made at once. Fewer rows at a time can be cast."""


@dataclass(frozen=True, slots=True)
class CastResult:
    """A raw column as typed values."""

    #: As long as the column. Null where the column is null, and at ``rejected``.
    values: pa.Array
    #: Positions of the rows whose value the type cannot hold, ascending.
    rejected: NDArray[np.int64]


Caster = Callable[[pa.Array], CastResult]
#: Turns values in binary form into PostgreSQL's text. Both are Arrow ``binary``; null stays null.
Printer = Callable[[pa.Array], pa.Array]


def in_parts(make: Callable[[_Rows], _Made], rows: _Rows) -> Iterator[_Made]:
    """The result of ``make`` for all rows, or in several parts if their texts are too long.

    :raises TooMuchText: raised by the iterator, if the text of a single row is too long.
    """
    try:
        made = make(rows)
    except TooMuchText:
        if len(rows) == 1:
            raise
    else:
        yield made
        return
    middle = len(rows) // 2
    for part in (rows[:middle], rows[middle:]):
        yield from in_parts(make, part)


def accepted(values: pa.Array) -> CastResult:
    """The result of a cast that rejected nothing."""
    return CastResult(values, _NOTHING)


@dataclass(frozen=True, slots=True)
class ByteRuns:
    """The bytes of a binary column: row ``i`` is ``data[starts[i]:ends[i]]``. Nothing is copied."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, raw: pa.Array) -> ByteRuns:
        """View an array of bytes or texts. Its first row starts at byte 0. Null rows may have any length."""
        _, offset_buffer, data_buffer = raw.buffers()
        if len(raw) == 0:
            return cls(np.empty(0, dtype=np.uint8), _NOTHING, _NOTHING)
        is_large = pa.types.is_large_binary(raw.type) or pa.types.is_large_string(raw.type)
        stored = np.frombuffer(offset_buffer, dtype=np.int64 if is_large else np.int32)
        offsets = stored[raw.offset : raw.offset + len(raw) + 1].astype(np.int64)
        first, last = int(offsets[0]), int(offsets[-1])
        if data_buffer is None:
            data = np.empty(0, dtype=np.uint8)
        else:
            data = np.frombuffer(data_buffer, dtype=np.uint8)[first:last]
        offsets -= first
        return cls(data, offsets[:-1], offsets[1:])

    def byte(self, rows: NDArray[np.int64], index: int) -> NDArray[np.uint8]:
        """Byte ``index`` of each of ``rows``; negative: counted from the end of the row.

        Zero if the row is too short.
        """
        starts, ends = self.starts[rows], self.ends[rows]
        positions = starts + index if index >= 0 else ends + index
        inside = (positions >= starts) & (positions < ends)
        found = np.zeros(len(rows), dtype=np.uint8)
        found[inside] = self.data[positions[inside]]
        return found

    def equal(self, rows: NDArray[np.int64], text: bytes) -> NDArray[np.bool_]:
        """Which of ``rows`` are exactly ``text``."""
        starts, ends = self.starts[rows], self.ends[rows]
        same: NDArray[np.bool_] = ends - starts == len(text)
        candidates = np.flatnonzero(same)
        if len(candidates):
            positions = starts[candidates, None] + np.arange(len(text))
            wanted = np.frombuffer(text, dtype=np.uint8)
            same[candidates] = (self.data[positions] == wanted).all(axis=1)
        return same


def overlapping(data: NDArray[np.uint8], wire: np.dtype[Any]) -> NDArray[Any]:
    """The number that begins at each byte of ``data``. Nothing is copied before it is used."""
    size = max(len(data) - wire.itemsize + 1, 0)
    return np.ndarray((size,), wire, data, strides=(1,))


def cut(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    is_null: NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Copy ``data[starts[i]:ends[i]]`` for every ``i`` into a binary array.

    The parts must be in order and must not overlap. Together with the bytes between them they are already a
    binary array. Arrow takes every second row of it faster than numpy gathers bytes.

    :raises MalformedText: they are not in order.
    """
    if len(starts) == 0:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * len(starts), dtype=np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    if (offsets[1:] < offsets[:-1]).any():
        raise MalformedText
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    pieces = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    return pieces.take(pa.array(np.arange(0, len(offsets), 2, dtype=np.int32), mask=is_null))


def at_rows_of(raw: pa.Array, values: pa.Array) -> pa.Array:
    """Spread the values of the rows of ``raw`` that are not null over all its rows."""
    if raw.null_count == 0:
        return values
    index = np.zeros(len(raw), dtype=np.int32)
    index[valid_rows(raw)] = np.arange(len(values), dtype=np.int32)
    return values.take(pa.array(index, mask=null_mask(raw)))


def valid_rows(raw: pa.Array) -> NDArray[np.int64]:
    """Positions of the rows that are not null."""
    if raw.null_count == 0:
        return np.arange(len(raw), dtype=np.int64)
    return np.flatnonzero(raw.is_valid().to_numpy(zero_copy_only=False))


def null_mask(raw: pa.Array) -> NDArray[np.bool_] | None:
    """True where null; None: no row is null."""
    if raw.null_count == 0:
        return None
    mask: NDArray[np.bool_] = raw.is_null().to_numpy(zero_copy_only=False)
    return mask


def without(raw: pa.Array, rows: NDArray[np.int64]) -> pa.Array:
    """``raw`` with null at ``rows``."""
    keep = np.ones(len(raw), dtype=np.bool_)
    keep[rows] = False
    return pc.if_else(pa.array(keep), raw, pa.scalar(None, raw.type))


def cast_text(raw: pa.Array, target: pa.DataType) -> pa.Array:
    """Parse ASCII text with Arrow's own parser of ``target``, without a copy before that.

    :raises MalformedText: the parser does not understand a row.
    """
    try:
        return raw.view(pa.string()).cast(target)
    except pa.ArrowInvalid:
        # Arrow's message contains the value, so it must not become part of ours.
        raise MalformedText from None


def cast_mostly(
    raw: pa.Array,
    target: pa.DataType,
    unholdable: Callable[[ByteRuns, NDArray[np.int64]], NDArray[np.bool_]],
) -> CastResult:
    """Parse a whole column. Only if that fails, look for the rows that the type cannot hold.

    :param unholdable: says for each of the given rows (not null) whether the type cannot hold it.
    :raises MalformedText: other rows cannot be parsed either.
    """
    try:
        return accepted(cast_text(raw, target))
    except MalformedText:
        rows = valid_rows(raw)
        rejected = rows[unholdable(ByteRuns.of(raw), rows)]
        if len(rejected) == 0:
            raise
    return CastResult(cast_text(without(raw, rejected), target), rejected)
