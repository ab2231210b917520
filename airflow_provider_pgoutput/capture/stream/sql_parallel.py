"""One slot decoded in parts by several connections at once.

A batch is decided by commit LSNs alone, so a range can be cut at any LSN and its parts, in order, are the
range. Each connection works on a temporary copy of the slot and moves that copy to where its next part
starts: moving is ten times cheaper than decoding. The slot itself is not touched. While one connection
hands its part over, the server decodes the parts of the others.

What belongs to a part follows from the slot alone, not from the parts before it. The copy keeps the WAL and
the catalog from where the slot restarts, so a transaction that began before a part and commits in it is
decoded whole; one that commits past it, streamed up to there, is dropped, for the part with its commit has
all of it again. The server announces relations to each connection anew, in the order of the WAL.

An error of one part is raised when its turn comes, and fails the read: no part is ever left out.

What is not here: where the cuts are (``parts.py``).
Source: https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.source.threads import HandOver
from airflow_provider_pgoutput.capture.stream.cut import BatchCut, Limits

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
    from airflow_provider_pgoutput.capture.stream.sql_connection import SlotSession


#: WAL of a part at most, unless a long transaction makes it more: the server puts the answer into a
#: temporary file.  Every part reads the WAL again from where the slot restarts: with 64 MiB two million
#: changes took a quarter longer, and one long transaction half as long again (docs/performance.md).
PART_BYTES: Final = 192 << 20


#: WAL for which a connection that was asked for is opened at least.
_SMALLEST_PART_BYTES: Final = 16 << 20


#: WAL for which another connection pays: a copy of the slot takes some hundredths of a second.
_BYTES_PER_CONNECTION: Final = 32 << 20


#: Pages of the WAL are multiples of it (``wal_block_size``), and their headers much shorter.
_BLOCK_BYTES: Final = 1024


#: Connections at most, when nobody says how many: our own decoder cannot take more than so many servers'
#: cores make (docs/performance.md, the simulation).
_MOST_UNASKED: Final = 4


#: Connections at most in any case; each has chunks in memory.
MOST_CONNECTIONS: Final = 8


def sensible_connections(backlog_bytes: int, cores: int, free_slots: int) -> int:
    """How many connections decode a backlog, when nobody says it.

    :param cores: those of this machine, of which the reader itself needs one.
    :param free_slots: replication slots that the server could still make; half of them are left to others.
    """
    return max(
        1, min(_MOST_UNASKED, cores, backlog_bytes // _BYTES_PER_CONNECTION, free_slots // 2)
    )


def useful_connections(backlog_bytes: int, part_bytes: int) -> int:
    """How many connections find a part to decode."""
    return max(1, -(-backlog_bytes // min(part_bytes, _SMALLEST_PART_BYTES)))


@dataclass(frozen=True, slots=True)
class Cutting:
    """How ``[start, target)`` is cut for some connections.

    Parts are equally wide and as many for each connection, so that all are done at about the same time;
    whoever is free takes the next one. Narrower parts towards the end would keep connections waiting: parts
    are handed over in order, so one that is done early waits for the one before.

    :param part_bytes: WAL of a part at most, unless a long transaction makes it more.
    """

    start: int
    target: int
    connections: int
    part_bytes: int = PART_BYTES

    def end(self, low: int, restart: int) -> int:
        """Where the part that starts at ``low`` ends.

        :param restart: from where the server reads the WAL for it.
        """
        width = max(self._width, low - restart, _BLOCK_BYTES)
        rest = self.target - low - width
        if rest < width // 4:
            # To get to so small a rest would cost more than to read it.
            return self.target
        # A cut inside the header of a WAL page would have the record behind it on both sides.
        return (low + width) // _BLOCK_BYTES * _BLOCK_BYTES

    @property
    def _width(self) -> int:
        """What each part would have if no transaction were long."""
        total = max(1, self.target - self.start)
        rounds = -(-total // (self.connections * self.part_bytes))
        return -(-total // (self.connections * rounds))


#: Chunks that wait to be taken, of all connections together, but one at least of each.
_QUEUED_CHUNKS = 8


_STOP_SECONDS = 10.0


@dataclass(slots=True)
class _Part:
    """The transactions that commit in ``[low, high)``, as they arrive."""

    low: Lsn
    high: Lsn
    arrived: HandOver[MessageChunk]


class PartedRead:
    """Reads the range of ``cutting`` in parts.

    :param sessions: connections, each with a temporary copy of the slot made already.
    :param stopping: set by whoever wants the threads to end at their next chunk.
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
        #: Parts in order, few enough that what they hold stays bounded.  Each thread says when there are no
        #: more; the first that does is right.
        self._parts: HandOver[_Part] = HandOver(2 * len(sessions), stopping=self._stopping)
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
        """Claim the next part, with the session's copy of the slot moved to its start.

        Moving takes time, so connections do it side by side; the one that arrives first takes the part, and
        the others go on from there.
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
        """Put the next part behind the others. The lock is held: nobody says the end before it is there."""
        part = _Part(self._cursor, high, HandOver(self._queued_chunks, stopping=self._stopping))
        self._parts.put(part)
        self._cursor = high
        return part

    def _fail(self, error: BaseException) -> None:
        """Let the reader raise the error when it has taken the parts before; none is left when all are."""
        with self._lock:
            if self._cursor < self._target:
                self._add(self._target).arrived.fail(error)


def _chunks_of(part: _Part, session: SlotSession) -> Generator[MessageChunk, None, None]:
    """The part's transactions; the server may send one more, which the next part sends too."""
    cut = BatchCut(part.low, part.high, Limits())
    for chunk in session.peek(part.high):
        # It may be longer than a chunk, so that the next one does not say whose it is.
        was_finished = cut.finished
        wanted = cut.take(chunk)
        if len(wanted.offsets) > 1 and not was_finished:
            yield wanted
