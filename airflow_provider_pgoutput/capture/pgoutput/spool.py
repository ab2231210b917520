"""Keeps messages until their transaction ends, and cuts chunks of messages into fragments for that.

A *fragment* is some messages in the order of the stream, each with its transaction ID, in the form of
protocol version 1: the ID that streamed messages carry is taken out. A *spool* holds the fragments of one
transaction. All of it is vectorised: no message becomes a Python object. ``reassemble.py`` decides which
fragment belongs to which transaction. ``stream/spill.py`` has the spool that writes files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

_ORIGIN = ord("O")
_XID_BYTES = 4
_TAG_AND_XID_BYTES = 1 + _XID_BYTES


@dataclass(frozen=True, slots=True)
class Fragment:
    """Messages of one transaction. It keeps no reference to the chunk from which they came."""

    data: NDArray[np.uint8]
    #: Bytes of each message; their sum is the length of ``data``.
    lengths: NDArray[np.int64]
    #: The (sub)transaction that wrote each message.
    xids: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each message starts, and where the last one ends."""
        return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.lengths)))

    @property
    def tags(self) -> NDArray[np.uint8]:
        """The first byte of each message."""
        return self.data[self.offsets[:-1]]


class Spool(Protocol):
    """Holds the fragments of one transaction that is not committed yet."""

    def append(self, fragment: Fragment) -> None:
        """Add a fragment at the end."""
        ...

    def fragments(self) -> Iterator[Fragment]:
        """All fragments in order, as often as asked. They may be cut differently than they were added."""
        ...

    def discard(self) -> None:
        """Forget everything. Nothing else may be called afterwards."""
        ...


class MemorySpool:
    """A spool without files."""

    def __init__(self) -> None:
        self._fragments: list[Fragment] = []

    def append(self, fragment: Fragment) -> None:
        """See ``Spool``."""
        self._fragments.append(fragment)

    def fragments(self) -> Iterator[Fragment]:
        """See ``Spool``."""
        return iter(tuple(self._fragments))

    def discard(self) -> None:
        """See ``Spool``."""
        self._fragments.clear()


def check_offsets(chunk: MessageChunk) -> None:
    """Check that a chunk has whole messages, none of them empty.

    :raises ProtocolError: it has not.
    """
    offsets = chunk.offsets
    if len(offsets) == 0 or offsets[0] < 0 or offsets[-1] > len(chunk.data):
        raise ProtocolError("The offsets of a chunk lead out of its data.")
    if len(offsets) > 1 and (np.diff(offsets) <= 0).any():
        raise ProtocolError("A message is empty or its offset goes back, at byte 0.")


def whole_fragment(chunk: MessageChunk, first: int, last: int, xid: int) -> Fragment:
    """Messages ``first`` to ``last`` (exclusive) of a chunk, which have no ID, as a fragment of ``xid``."""
    offsets = chunk.offsets[first : last + 1]
    data = chunk.data[int(offsets[0]) : int(offsets[-1])].copy()
    return Fragment(data, np.diff(offsets), np.full(last - first, xid, dtype=np.uint32))


def streamed_fragment(chunk: MessageChunk, first: int, last: int, xid: int) -> Fragment:
    """Messages ``first`` to ``last`` (exclusive) of a stream block of ``xid``, with their IDs taken out.

    All messages of a stream block have the ID of their (sub)transaction after the tag, except for Origin.

    :raises ProtocolError: a message is too short for an ID.
    """
    starts, ends = chunk.offsets[first:last], chunk.offsets[first + 1 : last + 1]
    carries = chunk.data[starts] != _ORIGIN
    if (carries & (ends - starts < _TAG_AND_XID_BYTES)).any():
        raise ProtocolError(
            "A streamed message is cut short: its transaction id is missing, at byte 1."
        )
    xids = np.full(last - first, xid, dtype=np.uint32)
    words = np.ndarray(
        (max(len(chunk.data) - _XID_BYTES + 1, 0),),
        dtype=">u4",
        buffer=np.ascontiguousarray(chunk.data).data,
        strides=(1,),
    )
    xids[carries] = words[starts[carries] + 1]
    # Arrow copies runs of bytes: for each message its tag, and what follows the ID.
    cuts = np.empty((last - first, 4), dtype=np.int64)
    cuts[:, 0], cuts[:, 3] = starts, ends
    cuts[:, 1] = starts + 1
    cuts[:, 2] = starts + 1 + np.where(carries, _XID_BYTES, 0)
    kept = np.arange(2 * (last - first), dtype=np.int64) * 2
    data = _runs(chunk.data, cuts.reshape(-1), kept)
    return Fragment(data, ends - starts - np.where(carries, _XID_BYTES, 0), xids)


def without(fragment: Fragment, xids: Iterable[int]) -> Fragment:
    """The fragment without the messages of some (sub)transactions."""
    unwanted = np.isin(fragment.xids, np.fromiter(xids, dtype=np.uint32))
    if not unwanted.any():
        return fragment
    kept = np.flatnonzero(~unwanted)
    offsets = fragment.offsets
    data = _runs(fragment.data, offsets, kept) if len(kept) else fragment.data[:0]
    return Fragment(data, fragment.lengths[kept], fragment.xids[kept])


def chunks_of(fragments: Iterable[Fragment], chunk_bytes: int) -> Iterator[MessageChunk]:
    """The messages of fragments, in chunks of about ``chunk_bytes``, whatever the sizes of the fragments."""
    waiting: list[Fragment] = []
    size = 0
    for fragment in fragments:
        if len(fragment) == 0:
            continue
        waiting.append(fragment)
        size += len(fragment.data)
        if size >= chunk_bytes:
            yield from _cut(joined(waiting), chunk_bytes)
            waiting, size = [], 0
    if waiting:
        yield from _cut(joined(waiting), chunk_bytes)


def joined(fragments: list[Fragment]) -> Fragment:
    """One fragment of several."""
    if len(fragments) == 1:
        return fragments[0]
    return Fragment(
        np.concatenate([each.data for each in fragments]),
        np.concatenate([each.lengths for each in fragments]),
        np.concatenate([each.xids for each in fragments]),
    )


def one_message(body: bytes, xid: int) -> Fragment:
    """A fragment of a single message."""
    return Fragment(
        np.frombuffer(body, dtype=np.uint8),
        np.array([len(body)], dtype=np.int64),
        np.array([xid], dtype=np.uint32),
    )


def _cut(fragment: Fragment, chunk_bytes: int) -> Iterator[MessageChunk]:
    offsets = fragment.offsets
    first = 0
    while first < len(fragment):
        wanted = np.searchsorted(offsets, offsets[first] + 2 * chunk_bytes, side="right") - 1
        last = min(max(int(wanted), first + 1), len(fragment))
        yield MessageChunk(fragment.data, offsets[first : last + 1])
        first = last


def _runs(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], kept: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """The bytes of some of the runs between ``offsets``, one after the other."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(data)]
    runs = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    taken = pc.take(runs, pa.array(kept), boundscheck=False)
    ends = np.frombuffer(taken.buffers()[1], dtype=np.int64)[: len(kept) + 1]
    content = np.frombuffer(taken.buffers()[2], dtype=np.uint8)
    return content[int(ends[0]) : int(ends[-1])]
