"""Reading a slot through ``pg_logical_slot_peek_binary_changes``: the fast way.

Never ``get``, which would confirm changes that are not durable yet.

The server writes a whole answer to a temporary file before the first row arrives, so a long range is read
in parts (``sql_parts.py``), or, when a limit will end the batch early or the server has no room for
copies of the slot, in slices of a number of messages. With ``two_phase`` there are no copies, which would
not send what is prepared: the batch ends where an answer of about as many messages as wanted ends.
"""

from __future__ import annotations

import bisect
import logging
from typing import TYPE_CHECKING

import numpy as np

from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.messages import (
    parse_begin,
    parse_commit,
    parse_logical_message,
)
from airflow_provider_pgoutput.capture.source.sql_parts import PartedRead
from airflow_provider_pgoutput.capture.source.sql_session import SlotSession
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.source.stream import SlotRead
    from airflow_provider_pgoutput.capture.staging.prepared import TwoPhase

log = logging.getLogger(__name__)

#: WAL per part.  Every part reads the WAL again from where the slot restarts: with 64 MiB two million
#: changes took a quarter longer, and one long transaction half as long again (docs/performance.md).
PART_BYTES = 192 << 20
#: Connections that read parts; more would only take the server's cores from our decoder.
_CONNECTIONS = 2
#: Messages per slice.  Fewer read the WAL before the slice again too often.
SLICE_MESSAGES = 4_000_000


class SqlStream:
    """Reads through the SQL function, as Arrow record batches through ADBC.

    :param max_messages: roughly how many messages are wanted; None: all.
    :param part_bytes: WAL per part; ranges that are shorter are read in one.
    """

    def __init__(
        self, read: SlotRead, *, max_messages: int | None = None, part_bytes: int = PART_BYTES
    ) -> None:
        self._read = read
        self._max_messages = max_messages
        self._part_bytes = part_bytes
        self._parted: PartedRead | None = None
        self._closed = False
        self.end_lsn = read.target
        self._sessions = [SlotSession(read)]

    def chunks(self) -> Iterator[MessageChunk]:
        """See ``ChangeStream``."""
        start, target = self._read.start, self._read.target
        if (two_phase := self._read.two_phase) is not None:
            if self._max_messages is None:
                return self._sessions[0].peek(target)
            return self._answer(self._max_messages, two_phase)
        long = target - start > self._part_bytes
        if long and self._max_messages is None and self._copy_slots():
            self._parted = PartedRead(self._sessions, start, target, self._part_bytes)
            return self._parted.chunks()
        return self._slices(min(self._max_messages or SLICE_MESSAGES, SLICE_MESSAGES))

    def stop(self) -> None:
        """See ``ChangeStream``."""
        if self._parted is not None:
            self._parted.stop()
        for session in self._sessions:
            session.cancel()

    def close(self) -> None:
        """See ``ChangeStream``; temporary copies of the slot go with their connections."""
        if self._closed:
            return
        self._closed = True
        self.stop()
        if self._parted is not None:
            self._parted.join()
        for session in self._sessions:
            session.close()

    def _copy_slots(self) -> bool:
        """Give every connection a copy of the slot; False: the server has no room for them."""
        try:
            while True:
                self._sessions[-1].make_copy()
                if len(self._sessions) == _CONNECTIONS:
                    return True
                self._sessions.append(SlotSession(self._read))
        except ConfigurationError as error:
            log.info("The slot is read by one connection: %s", error)
            for session in self._sessions:
                session.close()
            self._sessions = [SlotSession(self._read)]
            return False

    def _slices(self, slice_messages: int) -> Iterator[MessageChunk]:
        """The whole range by one connection; only what is longer than a slice takes a copy."""
        session, copied = self._sessions[0], False
        while True:
            last_end = None
            for chunk in session.peek(self._read.target, slice_messages):
                last_end = _last_end(chunk) or last_end
                yield chunk
            if session.messages < slice_messages:
                return
            if last_end is None:
                # Nothing but parts of streamed transactions: only a longer slice reaches their end.
                slice_messages *= 2
                continue
            if last_end >= self._read.target:
                return
            if not copied:
                session.make_copy()
                copied = True
            session.move_copy(last_end)
            slice_messages = min(2 * slice_messages, SLICE_MESSAGES)

    def _answer(self, messages: int, two_phase: TwoPhase) -> Iterator[MessageChunk]:
        """A first part of the range, without a copy: an answer that is long enough to hold a commit.

        A longer one begins where the slot stands, like the one before, and gives what that did not.
        """
        session, start, target = self._sessions[0], self._read.start, self._read.target
        given = _Given(None)
        while True:
            last_end = None
            for chunk in session.peek(target, messages):
                last_end = _last_end(chunk) or last_end
                yield given.without(chunk)
            if session.messages < messages:
                return
            if last_end is not None and last_end > start:
                self.end_lsn = min(last_end, target)
                return
            messages *= 2
            two_phase.transactions.read_again()
            given = _Given(last_end)


class _Given:
    """What an answer had that began at the same place as the next one.

    :param end: of its last transaction, or of a later message that belongs to none; None: it had neither.
    """

    def __init__(self, end: Lsn | None) -> None:
        self._end = end

    def without(self, chunk: MessageChunk) -> MessageChunk:
        """What the next chunk has beyond it."""
        if self._end is None:
            return chunk
        starts = chunk.offsets[:-1]
        tags = chunk.data[starts]
        flags = chunk.data[np.minimum(starts + 1, len(chunk.data) - 1)]
        begins = np.flatnonzero((tags == ord("B")) | ((tags == ord("M")) & (flags == 0))).tolist()
        place = bisect.bisect_left(begins, True, key=lambda index: self._is_new(chunk, index))
        if place == len(begins):
            return MessageChunk(chunk.data[:0], chunk.offsets[:1])
        self._end = None
        first = int(chunk.offsets[begins[place]])
        return MessageChunk(chunk.data[first:], chunk.offsets[begins[place] :] - first)

    def _is_new(self, chunk: MessageChunk, index: int) -> bool:
        assert self._end is not None
        body = _body(chunk, index)
        if body[:1] == b"B":
            return parse_begin(body).final_lsn >= self._end
        return parse_logical_message(body).lsn > self._end


def _last_end(chunk: MessageChunk) -> Lsn | None:
    """Where the last transaction of the chunk ends, or a later message that belongs to none.

    The server may end a slice after either.
    """
    starts = chunk.offsets[:-1]
    tags = chunk.data[starts]
    flags = chunk.data[np.minimum(starts + 1, len(chunk.data) - 1)]
    ends = np.flatnonzero((tags == ord("C")) | ((tags == ord("M")) & (flags == 0)))
    if len(ends) == 0:
        return None
    body = _body(chunk, int(ends[-1]))
    return parse_commit(body).end_lsn if body[:1] == b"C" else parse_logical_message(body).lsn


def _body(chunk: MessageChunk, index: int) -> bytes:
    return chunk.data[chunk.offsets[index] : chunk.offsets[index + 1]].tobytes()
