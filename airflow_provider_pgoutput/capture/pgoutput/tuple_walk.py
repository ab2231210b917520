"""The walk cuts many tuples of one width into Arrow columns, without an object for each row or value.

All tuples are walked at once, column by column. One read of 8 bytes at each tuple's position gives the
value's kind and length, and the length moves the position on. Lengths are read as unsigned numbers, so
positions only grow. A tuple that ends exactly where its message ends has therefore never left the message,
and needs no other check of bounds. Bytes are copied only after that check.

Arrow does the copying. With the offsets ``start 0, end 0, start 1, end 1, ...`` over the chunk itself, the
values are every second element of a binary array. One ``take`` collects them in any order, with nulls. This
is 7 to 25 times faster than gathering bytes with numpy.

Each value says itself whether it is text or binary. With the option ``binary``, a value whose type has no
send function still comes as text. Content that was prepared in an earlier batch comes in the form in which
that batch read it.

``row_messages.py`` knows which tuples a message may have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.pgoutput.blocks import Forms

TEXT: Final = ord("t")
BINARY: Final = ord("b")
NULL: Final = ord("n")
UNCHANGED: Final = ord("u")


class WalkFault(Exception):
    """A tuple is not valid; ``row`` is its number in the walk."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


@dataclass(frozen=True, slots=True)
class Walk:
    """Where the values of some tuples are in the chunk. The tuples are in the order of the stream."""

    data: NDArray[np.uint8]
    #: By column: where each tuple's value starts.
    starts: list[NDArray[np.int64]]
    #: By column: where each tuple's value ends, exclusive.
    ends: list[NDArray[np.int64]]
    #: By column: the kind of each value. A single number: all are ``TEXT``, or all are ``BINARY``.
    kinds: list[NDArray[np.uint8] | int]
    #: Where the tuples end, exclusive.
    final: NDArray[np.int64]

    def any_unchanged(self) -> NDArray[np.bool_]:
        """By tuple: whether it has unchanged TOAST."""
        found = np.zeros(len(self.final), dtype=np.bool_)
        for kind in self.kinds:
            if not isinstance(kind, int):
                found |= kind == UNCHANGED
        return found


def walk(
    data: NDArray[np.uint8],
    words: NDArray[np.uint64],
    positions: NDArray[np.int64],
    width: int,
) -> Walk:
    """Walk tuples of ``width`` columns.

    :param data: the bytes of the chunk.
    :param words: view of ``data``; element ``i`` is the ``<u8`` that starts at byte ``i``.
    :param positions: where the kind of the first value of each tuple is, ascending.
    :raises WalkFault: a value has a kind that no tuple has, or a tuple leads out of the chunk.
    """
    starts: list[NDArray[np.int64]] = []
    ends: list[NDArray[np.int64]] = []
    kinds: list[NDArray[np.uint8] | int] = []
    for _ in range(width):
        try:
            word = words[positions].byteswap()
        except IndexError:
            raise WalkFault(int(np.argmax(positions >= len(words)))) from None
        kind = (word >> np.uint64(56)).astype(np.uint8)
        lengths = ((word >> np.uint64(24)) & np.uint64(0xFFFFFFFF)).view(np.int64)
        first = int(kind[0])
        if first in {TEXT, BINARY} and (kind == first).all():
            start = positions + 5
            positions = start + lengths
            kinds.append(first)
        else:
            is_value = (kind == TEXT) | (kind == BINARY)
            wrong = ~(is_value | (kind == NULL) | (kind == UNCHANGED))
            if wrong.any():
                raise WalkFault(int(np.argmax(wrong)))
            start = positions + np.where(is_value, 5, 1)
            positions = start + np.where(is_value, lengths, 0)
            kinds.append(kind)
        starts.append(start)
        ends.append(positions)
    return Walk(data, starts, ends, kinds, positions)


class Collector:
    """Makes Arrow columns of walked tuples, in the order and with the gaps of a block.

    :param found: the walk's result, already checked against the ends of the messages.
    :param slots: for each row of the result the number of its tuple in the walk; -1: it has none.
    """

    def __init__(self, found: Walk, slots: NDArray[np.intp]) -> None:
        self._found = found
        self._slots = slots
        self._present = slots >= 0
        self._complete = bool(self._present.all())
        self._elements = (np.maximum(slots, 0) * 2).astype(np.int32)
        self._indices = self._with_gaps(self._present)

    def values(self, column: int) -> pa.Array:
        """The column as a ``binary`` array; null where there is no tuple or no value."""
        found = self._found
        count = len(found.final)
        kind = found.kinds[column]
        indices = self._indices
        if not isinstance(kind, int):
            is_value = (kind == TEXT) | (kind == BINARY)
            if not is_value.any():
                return pa.nulls(len(self._slots), pa.binary())
            indices = self._with_gaps(is_value[self._slots] & self._present)
        offsets = np.empty(2 * count, dtype=np.int32)
        offsets[0::2] = found.starts[column]
        offsets[1::2] = found.ends[column]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(found.data)]
        values = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
        return pc.take(values, indices, boundscheck=False)

    def unchanged(self, column: int) -> NDArray[np.bool_] | None:
        """Which values are unchanged TOAST; None: none."""
        kind = self._found.kinds[column]
        if isinstance(kind, int) or not (is_unchanged := kind == UNCHANGED).any():
            return None
        marks: NDArray[np.bool_] = is_unchanged[self._slots] & self._present
        return marks

    def binary(self, column: int) -> Forms:
        """Which values are in binary form, see ``Forms``. Where there is no value, it has no meaning."""
        kind = self._found.kinds[column]
        if isinstance(kind, int):
            return kind == BINARY
        is_binary = kind == BINARY
        if not is_binary.any() or not (kind == TEXT).any():
            return bool(is_binary.any())
        marks: NDArray[np.bool_] = is_binary[self._slots] & self._present
        return marks

    def _with_gaps(self, valid: NDArray[np.bool_]) -> pa.Array:
        """Indexes into the array of values and gaps; null where not ``valid``."""
        bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(pa.int32(), len(valid), [bitmap, pa.py_buffer(self._elements)])
