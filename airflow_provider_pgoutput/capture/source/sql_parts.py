"""One slot read in parts by two connections, so that the server prepares one part while we take another.

A batch is decided by commit LSNs alone, so a range can be cut at any LSN and its parts, in order, are the
range. Each connection works on a temporary copy of the slot and moves that copy to where its next part
starts: moving is ten times cheaper than decoding. The slot itself is not touched.

Behind a long transaction the server decodes from its beginning again for each part; parts grow with that
distance, so the work stays within a small factor of reading once.

Source: https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.hand_over import HandOver
from airflow_provider_pgoutput.capture.staging.cut import BatchCut, Limits

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
    from airflow_provider_pgoutput.capture.source.sql_session import SlotSession

_QUEUED_CHUNKS = 4
_STOP_SECONDS = 10.0


@dataclass(slots=True)
class _Part:
    """The transactions that commit in ``[low, high)``, as they arrive."""

    low: Lsn
    high: Lsn
    arrived: HandOver[MessageChunk]


class PartedRead:
    """Reads ``[start, target)`` in parts.

    :param sessions: connections, each with a temporary copy of the slot made already.
    :param part_bytes: WAL per part, unless a long transaction makes it more.
    """

    def __init__(
        self, sessions: Sequence[SlotSession], start: Lsn, target: Lsn, part_bytes: int
    ) -> None:
        self._target = target
        self._part_bytes = part_bytes
        self._cursor = start
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        #: Parts in order. Each thread says when there are no more; the first that does is right.
        self._parts: HandOver[_Part] = HandOver(0, stopping=self._stopping)
        self._threads = [
            threading.Thread(target=self._work, args=(each,), name=f"part-{number}", daemon=True)
            for number, each in enumerate(sessions)
        ]
        for thread in self._threads:
            thread.start()

    def chunks(self) -> Iterator[MessageChunk]:
        """All chunks of all parts in order."""
        for part in self._parts:
            yield from part.arrived

    def stop(self) -> None:
        """Let the threads end at their next chunk."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the threads; their connections were cancelled or have nothing more to give.

        Not for ever: on a network that is silent they end with this process.
        """
        for thread in self._threads:
            thread.join(_STOP_SECONDS)

    def _work(self, session: SlotSession) -> None:
        while (part := self._take(session)) is not None:
            if not part.arrived.feed(_chunks_of(part, session)):
                return

    def _take(self, session: SlotSession) -> _Part | None:
        """Claim the next part, with the session's copy of the slot moved to its start."""
        with self._lock:
            low = self._cursor
            if low >= self._target or self._stopping.is_set():
                self._parts.end()
                return None
            part = _Part(low, self._target, HandOver(_QUEUED_CHUNKS, stopping=self._stopping))
            try:
                restart = session.move_copy(low)
                width = max(self._part_bytes, low - restart)
                part.high = Lsn(min(self._target, low + width))
            except BaseException as error:
                self._cursor = self._target
                self._parts.put(part)
                part.arrived.fail(error)
                return None
            self._cursor = part.high
            self._parts.put(part)
            return part


def _chunks_of(part: _Part, session: SlotSession) -> Generator[MessageChunk, None, None]:
    """The part's transactions; the server may send one more, which the next part sends too."""
    cut = BatchCut(part.low, part.high, Limits())
    for chunk in session.peek(part.high):
        wanted = cut.take(chunk)
        if len(wanted.offsets) > 1:
            yield wanted
