"""Reading a slot through ``pg_logical_slot_peek_binary_changes``: the fast way.

Never ``get``, which would confirm changes that are not durable yet.

The server writes a whole answer to a temporary file before the first row arrives, so a long range is read
in parts, by several connections at once (``sql_parts.py``), or, when a limit will end the batch early or
the server makes no copies of the slot, in slices of a number of messages. With ``two_phase`` there are no
copies, which would not send what is prepared: the batch ends where an answer of about as many messages as
wanted ends.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

import numpy as np

from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.messages import (
    parse_begin,
    parse_commit,
    parse_logical_message,
)
from airflow_provider_pgoutput.capture.stream.sql_connection import SlotSession
from airflow_provider_pgoutput.capture.stream.sql_parallel import (
    PART_BYTES,
    Cutting,
    PartedRead,
    sensible_connections,
    useful_connections,
)
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    MissingPrivilege,
    SourceUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.stream.transport import SlotRead
    from airflow_provider_pgoutput.capture.stream.two_phase import TwoPhase


_BEGIN, _COMMIT, _MESSAGE = ord("B"), ord("C"), ord("M")


def last_end(chunk: MessageChunk) -> Lsn | None:
    """Where the last transaction of the chunk ends, or a later message that belongs to none."""
    tags, alone = _tags(chunk)
    ends = np.flatnonzero((tags == _COMMIT) | alone)
    if len(ends) == 0:
        return None
    body = _body(chunk, int(ends[-1]))
    return parse_commit(body).end_lsn if body[:1] == b"C" else parse_logical_message(body).lsn


def past(reached: Lsn, chunks: Iterable[MessageChunk]) -> Iterator[MessageChunk]:
    """A stream without what ends at ``reached`` or before, which was handed over already.

    It is the same stream, so whoever got the beginning knows the relations that were announced in it.
    """
    started = False
    for chunk in chunks:
        if started:
            yield chunk
            continue
        tags, alone = _tags(chunk)
        for index in np.flatnonzero((tags == _BEGIN) | alone).tolist():
            body = _body(chunk, index)
            if body[:1] == b"B":
                started = parse_begin(body).final_lsn >= reached
            else:
                started = parse_logical_message(body).lsn > reached
            if started:
                offsets = chunk.offsets[index:]
                yield MessageChunk(chunk.data[int(offsets[0]) :], offsets - offsets[0])
                break


def _tags(chunk: MessageChunk) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """The first byte of each message, and which are logical messages that belong to no transaction."""
    starts = chunk.offsets[:-1]
    tags = chunk.data[starts]
    flags = chunk.data[np.minimum(starts + 1, len(chunk.data) - 1)]
    return tags, (tags == _MESSAGE) & (flags == 0)


def _body(chunk: MessageChunk, index: int) -> bytes:
    return chunk.data[chunk.offsets[index] : chunk.offsets[index + 1]].tobytes()


log = logging.getLogger(__name__)


#: Messages per slice.  Fewer read the WAL before the slice again too often.
SLICE_MESSAGES = 4_000_000


class SqlStream:
    """Reads through the SQL function, as Arrow record batches through ADBC.

    :param connections: how many decode at the same time at most; None: what backlog, cores and free slots
        suggest.
    :param max_messages: roughly how many messages are wanted; None: all.
    :param part_bytes: WAL per part; ranges that are shorter are read in one.
    """

    def __init__(
        self,
        read: SlotRead,
        *,
        connections: int | None = None,
        max_messages: int | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._read = read
        self._wanted = connections
        self._max_messages = max_messages
        self._part_bytes = part_bytes
        self._parted: PartedRead | None = None
        self._closed = False
        self._stopping = threading.Event()
        self.end_lsn = read.target
        self._sessions = [SlotSession(read)]

    def chunks(self) -> Iterator[MessageChunk]:
        """See ``ChangeStream``."""
        start, target = self._read.start, self._read.target
        if (two_phase := self._read.two_phase) is not None:
            if self._max_messages is None:
                return self._sessions[0].peek(target)
            return self._answer(self._max_messages, two_phase)
        if self._max_messages is None:
            connections = self._choose_connections()
            if connections > 1 or target - start > self._part_bytes:
                self._copy_slots(connections)
        if self._sessions[0].has_copy:
            cutting = Cutting(start, target, len(self._sessions), self._part_bytes)
            self._parted = PartedRead(self._sessions, cutting, self._stopping)
            return self._parted.chunks()
        return self._slices(min(self._max_messages or SLICE_MESSAGES, SLICE_MESSAGES))

    def stop(self) -> None:
        """See ``ChangeStream``."""
        self._stopping.set()
        for session in tuple(self._sessions):
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

    def _choose_connections(self) -> int:
        """How many connections are worth having for this range."""
        backlog_bytes = self._read.target - self._read.start
        if self._wanted is not None:
            return min(self._wanted, useful_connections(backlog_bytes, self._part_bytes))
        free_slots = self._sessions[0].count_free_slots()
        # What this process may use, which is not what the machine has.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return sensible_connections(backlog_bytes, cores or 1, free_slots)

    def _copy_slots(self, connections: int) -> None:
        """Open the connections, each with a copy of the slot, as far as the server lets us."""
        try:
            for number in range(connections):
                if number:
                    self._sessions.append(SlotSession(self._read))
                if self._stopping.is_set():
                    if number:
                        # Whoever closes may be done with the sessions that there were.
                        self._sessions.pop().close()
                    return
                self._sessions[number].readers = connections
                self._sessions[number].make_copy()
        except (ConfigurationError, MissingPrivilege, SourceUnavailable) as error:
            if self._stopping.is_set():
                raise
            # No more slots, or connections, or no right to the function.  One connection needs no copy; if
            # the server is gone, it will say so.
            if len(self._sessions) > 1 and not self._sessions[-1].has_copy:
                self._sessions.pop().close()
            log.warning(
                "Slot %s is decoded by %d of %d connections: %s",
                self._read.slot_name,
                len(self._sessions),
                connections,
                error.message,
            )
            return
        log.info("Slot %s is decoded by %d connections.", self._read.slot_name, connections)

    def _slices(self, slice_messages: int) -> Iterator[MessageChunk]:
        """The whole range by one connection; only what is longer than a slice takes a copy.

        Without one each answer begins where the slot stands, so it is twice as long as the one before.
        """
        session, target = self._sessions[0], self._read.target
        given: Lsn | None = None
        while not self._stopping.is_set():
            reached = None
            for chunk in self._peek_past(given, slice_messages):
                reached = last_end(chunk) or reached
                yield chunk
            if session.messages < slice_messages or (reached is not None and reached >= target):
                return
            slice_messages *= 2
            if reached is None:
                # Nothing but parts of streamed transactions, or what was given: only more reaches an end.
                continue
            if given is None and self._has_copy():
                session.move_copy(reached)
                slice_messages = min(slice_messages, SLICE_MESSAGES)
            else:
                given = reached

    def _has_copy(self) -> bool:
        """Whether the connection has a copy of the slot, or could make one now."""
        session = self._sessions[0]
        try:
            if not session.has_copy:
                session.make_copy()
        except (ConfigurationError, MissingPrivilege) as error:
            log.warning("Slot %s is read without a copy: %s", self._read.slot_name, error.message)
        return session.has_copy

    def _answer(self, messages: int, two_phase: TwoPhase) -> Iterator[MessageChunk]:
        """A first part of the range, without a copy: an answer that is long enough to hold a commit.

        A longer one begins where the slot stands, like the one before, and gives what that did not.
        """
        session, start, target = self._sessions[0], self._read.start, self._read.target
        given: Lsn | None = None
        while not self._stopping.is_set():
            reached = given
            for chunk in self._peek_past(given, messages):
                reached = last_end(chunk) or reached
                yield chunk
            if session.messages < messages:
                return
            if reached is not None and reached > start:
                self.end_lsn = min(reached, target)
                return
            messages *= 2
            two_phase.transactions.read_again()
            given = reached

    def _peek_past(self, given: Lsn | None, messages: int) -> Iterator[MessageChunk]:
        """An answer from where slot or copy stands, without what ends at ``given`` or before."""
        chunks = self._sessions[0].peek(self._read.target, messages)
        return chunks if given is None else past(given, chunks)
