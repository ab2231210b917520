"""Decodes one slot in parts, with several connections at once.

A commit LSN alone decides to which batch a transaction belongs. So a range can be cut at any LSN, and its
parts in order are the range. Each connection has a temporary copy of the slot and moves that copy to the
start of its next part. Moving is ten times cheaper than decoding. The slot itself is not touched. While one
connection hands over its part, the server decodes the parts of the others.

A part depends on the slot only, and not on the parts before it. The copy keeps WAL and catalog from where the
slot restarts. So a transaction that began before a part and commits in it is decoded whole. If a transaction
commits after the part, the server may send its beginning with this part. The reader drops it: the part with
the commit has the whole transaction. The server announces relations to each connection anew, in the order of
the WAL.

An error in a part is raised when it is the part's turn, and fails the read. A part is never left out.

Source: https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.source.threads import BoundedQueue
from airflow_provider_pgoutput.capture.stream.cut import BatchCut, Limits

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
    from airflow_provider_pgoutput.capture.stream.sql_connection import SlotSession


#: A part has at most this much WAL, and more only if a transaction is long. There is a limit because the
#: server writes each answer to a temporary file. Smaller parts cost time, because each part reads the WAL
#: again from where the slot restarts. With 64 MiB two million changes took 1.25 times as long, and one long
#: transaction 1.5 times (docs/internals/measurements.md).
PART_BYTES: Final = 192 << 20


#: A connection that the user asks for is opened if it finds at least so much WAL.
_SMALLEST_PART_BYTES: Final = 16 << 20


#: Another connection pays off for so much WAL. A backlog that one connection reads in half a second is not
#: read faster by two: first they make copies of the slot and move them, and read WAL twice for that.
_BYTES_PER_CONNECTION: Final = 32 << 20


#: If no transaction commits in so much WAL, a long one is under way. If a part ends inside it, the server
#: decodes the beginning of the transaction twice. The second time it writes the beginning to its disk: it
#: streams nothing that lies before the position of a slot.
LONG_TRANSACTION_BYTES: Final = 32 << 20


#: The size of a WAL page (``wal_block_size``) is a multiple of this. The header of a page is much shorter.
_BLOCK_BYTES: Final = 1024


#: Most connections if the user gives no number. Our decoder cannot take more than so many cores of the server
#: produce (docs/internals/measurements.md, the simulation).
_MOST_UNASKED: Final = 4


#: Most connections in any case, because each has chunks in memory.
MOST_CONNECTIONS: Final = 8


def sensible_connections(backlog_bytes: int, cores: int, free_slots: int) -> int:
    """How many connections decode a backlog if the user gives no number.

    :param cores: of this machine, without those that other processes use. The reader itself needs one.
    :param free_slots: replication slots that the server could still make. Half of them are left to others.
    """
    return max(
        1, min(_MOST_UNASKED, cores, backlog_bytes // _BYTES_PER_CONNECTION, free_slots // 2)
    )


def useful_connections(backlog_bytes: int, part_bytes: int) -> int:
    """The greatest number of connections that each find a part to decode."""
    return max(1, -(-backlog_bytes // min(part_bytes, _SMALLEST_PART_BYTES)))


@dataclass(frozen=True, slots=True)
class Cutting:
    """How ``[start, target)`` is cut for some connections.

    All parts are equally wide, and each connection gets as many, so all end at about the same time. The next
    free connection takes the next part. Narrower parts towards the end would make connections wait: parts are
    handed over in order, so one that is done early waits for the one before.

    :param part_bytes: most WAL of a part. A long transaction can make it more.
    """

    start: int
    target: int
    connections: int
    part_bytes: int = PART_BYTES

    def end(self, low: int, restart: int) -> int:
        """Where the part that starts at ``low`` ends.

        :param restart: where the server starts to read the WAL for it.
        """
        width = max(self._width, low - restart, _BLOCK_BYTES)
        rest = self.target - low - width
        if rest < width // 4:
            # To get to such a small rest would cost more than to read it in this part.
            return self.target
        # With a cut inside the header of a WAL page, the record after it would be on both sides.
        return (low + width) // _BLOCK_BYTES * _BLOCK_BYTES

    @property
    def _width(self) -> int:
        """Width of each part if no transaction is long."""
        total = max(1, self.target - self.start)
        rounds = -(-total // (self.connections * self.part_bytes))
        return -(-total // (self.connections * rounds))


#: Chunks of all connections that wait to be taken. Each connection may have at least one.
_QUEUED_CHUNKS = 8


_STOP_SECONDS = 10.0


@dataclass(slots=True)
class _Part:
    """The transactions that commit in ``[low, high)``, as they come in."""

    low: Lsn
    high: Lsn
    arrived: BoundedQueue[MessageChunk]


class PartedRead:
    """Reads the range of ``cutting`` in parts.

    :param sessions: connections that have a temporary copy of the slot each.
    :param stopping: set it to make the threads end at their next chunk.
    """

    def __init__(
        self,
        sessions: Sequence[SlotSession],
        cutting: Cutting,
        stopping: threading.Event,
    ) -> None:
        self._cutting = cutting
        self._target = Lsn(cutting.target)
        self._queued_chunks = max(1, _QUEUED_CHUNKS // len(sessions))
        #: Where the next part starts.
        self._cursor = Lsn(cutting.start)
        self._lock = threading.Lock()
        self._stopping = stopping
        #: Parts in order, so few that their memory is bounded. A thread that finds no part left calls
        #: ``end``. The first such call is right already.
        self._parts: BoundedQueue[_Part] = BoundedQueue(2 * len(sessions), stopping=self._stopping)
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

    def join(self) -> None:
        """Wait for the threads. Their connections were cancelled or have nothing more to give.

        The wait has an end: on a silent network the threads end with this process.
        """
        for thread in self._threads:
            thread.join(_STOP_SECONDS)

    def _work(self, session: SlotSession) -> None:
        while (part := self._take(session)) is not None:
            if not part.arrived.feed(_chunks_of(part, session)):
                return

    def _take(self, session: SlotSession) -> _Part | None:
        """Claim the next part, and move the session's copy of the slot to its start.

        Moving takes time, so connections move at the same time. The first one to arrive takes the part, the
        others move on from there.
        """
        while True:
            with self._lock:
                low = self._cursor
                if low >= self._target or self._stopping.is_set():
                    self._parts.end()
                    return None
            try:
                restart = session.move_copy(low)
            except BaseException as error:
                self._fail(error)
                return None
            with self._lock:
                if self._cursor == low:
                    return self._add(Lsn(self._cutting.end(low, restart)))

    def _add(self, high: Lsn) -> _Part:
        """Add the next part.

        The caller holds the lock. So no thread can end the list of parts before this part is in it.
        """
        part = _Part(self._cursor, high, BoundedQueue(self._queued_chunks, stopping=self._stopping))
        self._parts.put(part)
        self._cursor = high
        return part

    def _fail(self, error: BaseException) -> None:
        """Let the reader raise the error after it took the parts before.

        If the last part was claimed already, no part needs this connection, and nothing is raised.
        """
        with self._lock:
            if self._cursor < self._target:
                self._add(self._target).arrived.fail(error)


def _chunks_of(part: _Part, session: SlotSession) -> Generator[MessageChunk, None, None]:
    """The part's transactions. The server may send one more, which the next part sends, too."""
    cut = BatchCut(part.low, part.high, Limits())
    for chunk in session.peek(part.high):
        # That one may be longer than a chunk. Then the next chunk does not show to which transaction it
        # belongs.
        was_finished = cut.finished
        wanted = cut.take(chunk)
        if len(wanted.offsets) > 1 and not was_finished:
            yield wanted
