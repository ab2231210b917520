"""Where a batch ends. The decoder skips the transactions that commit before the batch starts.

A batch has the transactions whose commit LSN lies in its range, whoever reads it and however often. A limit
cuts only after a commit, at its end LSN. It never cuts inside a transaction, or between rows with the same
LSN.

In protocol version 1 transactions come whole and in the order of their commits. So a cut is one position in
the stream.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.messages import parse_begin, parse_commit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.batch.lsn import Lsn

_BEGIN, _COMMIT = ord("B"), ord("C")
#: By tag: whether a message is a row message, which counts for ``max_changes``.
_IS_CHANGE = np.zeros(256, dtype=np.bool_)
_IS_CHANGE[list(b"IUDT")] = True
#: By tag: whether a message counts for ``max_bytes``. Announcements do not, because each connection gets them
#: anew.
_HAS_SIZE = _IS_CHANGE.copy()
_HAS_SIZE[ord("M")] = True


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that end a batch before its target; None: no limit.

    The batch ends at the first commit at which one of them is reached.
    """

    max_changes: int | None = None
    max_bytes: int | None = None
    max_seconds: float | None = None


class BatchCut:
    """Passes chunks on until the end of the batch.

    :param start: the checkpoint. Earlier transactions count for no limit.
    :param target: the batch ends here if no limit is reached before.
    """

    def __init__(self, start: Lsn, target: Lsn, limits: Limits) -> None:
        self._start = start
        self._limits = limits
        self._deadline = (
            None if limits.max_seconds is None else time.monotonic() + limits.max_seconds
        )
        #: Whether a transaction that commits at or after the start was seen.
        self._inside = False
        #: Where the batch ends: at the target, until a limit is reached.
        self.end_lsn = target
        #: True: nothing that comes later belongs to the batch.
        self.finished = False
        #: Counted only if there is a limit.
        self.changes = 0
        self.size_bytes = 0
        #: How far the stream is, for the progress in the log.
        self.last_lsn = start

    def take(self, chunk: MessageChunk) -> MessageChunk:
        """The part of ``chunk`` that lies before the end of the batch."""
        tags = chunk.data[chunk.offsets[:-1]]
        begins = np.flatnonzero(tags == _BEGIN)
        chunk, tags = self._up_to_target(chunk, tags, begins)
        if not self._limited:
            return chunk
        if self.finished:
            self._count(chunk, tags, len(tags))
            return chunk
        return self._up_to_limit(chunk, tags)

    def end_at(self, lsn: Lsn) -> None:
        """Let the batch end where its stream did. That is never inside a transaction."""
        self.end_lsn = min(self.end_lsn, lsn)

    @property
    def _limited(self) -> bool:
        limits = self._limits
        return (limits.max_changes, limits.max_bytes, limits.max_seconds) != (None, None, None)

    def _up_to_target(
        self, chunk: MessageChunk, tags: NDArray[np.uint8], begins: NDArray[np.intp]
    ) -> tuple[MessageChunk, NDArray[np.uint8]]:
        """Cut before the first transaction that commits at or past the target."""
        if len(begins) == 0:
            return chunk, tags
        self.last_lsn = _begin_lsn(chunk, int(begins[-1]))
        if self.last_lsn < self.end_lsn:
            return chunk, tags
        self.finished = True
        index = int(begins[_first_at(chunk, begins, self.end_lsn)])
        return _head(chunk, index), tags[:index]

    def _up_to_limit(self, chunk: MessageChunk, tags: NDArray[np.uint8]) -> MessageChunk:
        """Cut after the first commit at which a limit is reached."""
        commits = np.flatnonzero(tags == _COMMIT)
        wanted = self._wanted(chunk, tags)
        changes = self.changes + np.cumsum(_IS_CHANGE[tags] & wanted)
        sizes = self.size_bytes + np.cumsum(np.diff(chunk.offsets) * (_HAS_SIZE[tags] & wanted))
        reached = np.zeros(len(commits), dtype=np.bool_)
        if self._limits.max_changes is not None:
            reached |= changes[commits] >= self._limits.max_changes
        if self._limits.max_bytes is not None:
            reached |= sizes[commits] >= self._limits.max_bytes
        if self._deadline is not None and time.monotonic() >= self._deadline:
            reached[:] = True
        # ``max_seconds`` may be over before the start is reached. A cut there would make an empty batch in
        # every run.
        reached &= wanted[commits]
        found = np.flatnonzero(reached)
        if len(found) == 0:
            self._count(chunk, tags, len(tags))
            return chunk
        index = int(commits[found[0]])
        body = chunk.data[chunk.offsets[index] : chunk.offsets[index + 1]].tobytes()
        self.end_lsn = self.last_lsn = parse_commit(body).end_lsn
        self.finished = True
        self._count(chunk, tags, index + 1)
        return _head(chunk, index + 1)

    def _wanted(self, chunk: MessageChunk, tags: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Which messages are in transactions that commit at or after the start."""
        wanted = np.full(len(tags), self._inside)
        if not self._inside:
            begins = np.flatnonzero(tags == _BEGIN)
            index = _first_at(chunk, begins, self._start)
            if index < len(begins):
                wanted[int(begins[index]) :] = True
        return wanted

    def _count(self, chunk: MessageChunk, tags: NDArray[np.uint8], messages: int) -> None:
        wanted = self._wanted(chunk, tags)[:messages]
        self.changes += int((_IS_CHANGE[tags[:messages]] & wanted).sum())
        sized = _HAS_SIZE[tags[:messages]] & wanted
        self.size_bytes += int((np.diff(chunk.offsets)[:messages] * sized).sum())
        self._inside = self._inside or bool(wanted.any())


def _begin_lsn(chunk: MessageChunk, index: int) -> Lsn:
    body = chunk.data[chunk.offsets[index] : chunk.offsets[index + 1]].tobytes()
    return parse_begin(body).final_lsn


def _first_at(chunk: MessageChunk, begins: NDArray[np.intp], lsn: Lsn) -> int:
    """Index in ``begins`` of the first transaction that commits at or after ``lsn``.

    :returns: ``len(begins)``: none does.
    """
    low, high = 0, len(begins)
    while low < high:
        middle = (low + high) // 2
        if _begin_lsn(chunk, int(begins[middle])) >= lsn:
            high = middle
        else:
            low = middle + 1
    return low


def _head(chunk: MessageChunk, messages: int) -> MessageChunk:
    offsets = chunk.offsets[: messages + 1]
    return MessageChunk(chunk.data[: int(offsets[-1])], offsets)
