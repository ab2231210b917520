"""Reads a slot through ``pg_logical_slot_peek_binary_changes``: the fast way.

It never uses the ``get`` function, which would confirm changes that are not durable yet.

The server writes a whole answer to a temporary file before the first row comes. So a long range is read in
parts by several connections at once (``sql_parallel.py``). A range is read in slices of some messages, if a
limit will end the batch early, or if the server makes no copies of the slot. With ``two_phase`` there are no
copies, because a copy would not send prepared transactions. Then one answer of about the wanted number of
messages is read, and the batch ends where this answer ends.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import numpy as np

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.messages import (
    parse_begin,
    parse_commit,
    parse_logical_message,
)
from airflow_provider_pgoutput.capture.stream.cores import FreeCores
from airflow_provider_pgoutput.capture.stream.sql_connection import SlotSession
from airflow_provider_pgoutput.capture.stream.sql_parallel import (
    LONG_TRANSACTION_BYTES,
    MOST_CONNECTIONS,
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
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.stream.transport import SlotRead
    from airflow_provider_pgoutput.capture.stream.two_phase import TwoPhase


_BEGIN, _COMMIT, _MESSAGE = ord("B"), ord("C"), ord("M")


def last_end(chunk: MessageChunk) -> Lsn | None:
    """Where the last transaction of a chunk ends, or a later message that belongs to no transaction.

    None: nothing ends in the chunk.
    """
    tags, alone = _tags(chunk)
    ends = np.flatnonzero((tags == _COMMIT) | alone)
    if len(ends) == 0:
        return None
    body = _body(chunk, int(ends[-1]))
    return parse_commit(body).end_lsn if body[:1] == b"C" else parse_logical_message(body).lsn


def past(reached: Lsn, chunks: Iterable[MessageChunk]) -> Iterator[MessageChunk]:
    """The stream without what ends at or before ``reached``, which was handed over already.

    The relations that were announced there are not announced again. The caller's decoder knows them, because
    it got the beginning of the same stream.
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
    """The first byte of each message, and whether it is a logical message of no transaction."""
    starts = chunk.offsets[:-1]
    tags = chunk.data[starts]
    flags = chunk.data[np.minimum(starts + 1, len(chunk.data) - 1)]
    return tags, (tags == _MESSAGE) & (flags == 0)


def _body(chunk: MessageChunk, index: int) -> bytes:
    return chunk.data[chunk.offsets[index] : chunk.offsets[index + 1]].tobytes()


log = logging.getLogger(__name__)


#: Messages for each slice. With fewer, the WAL before the slice is read again too often.
SLICE_MESSAGES = 4_000_000


class SqlStream:
    """Reads through the SQL function, as Arrow record batches through ADBC.

    :param connections: how many decode at the same time at most; None: the backlog, the free cores and the
        free slots decide.
    :param max_messages: about how many messages are wanted; None: all.
    :param part_bytes: WAL for each part. A shorter range is read in one part.
    :param count_free_cores: says how many cores of this machine are free; None: it is measured.
    """

    def __init__(
        self,
        read: SlotRead,
        *,
        connections: int | None = None,
        max_messages: int | None = None,
        part_bytes: int = PART_BYTES,
        count_free_cores: Callable[[], int] | None = None,
    ) -> None:
        self._read = read
        self._wanted = connections
        self._max_messages = max_messages
        self._part_bytes = part_bytes
        self._parted: PartedRead | None = None
        self._closed = False
        self._stopping = threading.Event()
        self.end_lsn = read.target
        self._count_free_cores = count_free_cores or FreeCores().count
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
        """See ``ChangeStream``. Temporary copies of the slot end with their connections."""
        if self._closed:
            return
        self._closed = True
        self.stop()
        if self._parted is not None:
            self._parted.join()
        for session in self._sessions:
            session.close()

    def _choose_connections(self) -> int:
        """How many connections pay off for this range."""
        backlog_bytes = self._read.target - self._read.start
        if self._wanted is not None:
            return min(self._wanted, useful_connections(backlog_bytes, self._part_bytes))
        free_slots = self._sessions[0].count_free_slots()
        if sensible_connections(backlog_bytes, MOST_CONNECTIONS, free_slots) == 1:
            return 1
        return sensible_connections(backlog_bytes, self._count_free_cores(), free_slots)

    def _begins_with_a_long_transaction(self) -> bool:
        """Whether no published transaction commits at the beginning of the range.

        The first session has a copy of the slot there.
        The server ends this answer at the first commit, so it is short if there is one.
        """
        session, start = self._sessions[0], self._read.start
        session.move_copy(start)
        near = min(self._read.target, Lsn(start + LONG_TRANSACTION_BYTES))
        # The answer is read to its end, because the connection allows nothing else before.
        return sum(len(chunk.offsets) - 1 for chunk in session.peek(near, messages=1)) == 0

    def _copy_slots(self, connections: int) -> None:
        """Open the connections, each with a copy of the slot, as many as the server allows."""
        if self._read.is_pooled:
            log.info(
                "Slot %s is decoded by one connection. A connection pooler would keep the session of a"
                " temporary copy of the slot, and the copy would hold WAL.",
                self._read.slot_name,
            )
            return
        try:
            for number in range(connections):
                if number == 1 and self._wanted is None and self._begins_with_a_long_transaction():
                    log.info(
                        "Slot %s is decoded by one connection: no published transaction ends at the"
                        " beginning of the backlog.",
                        self._read.slot_name,
                    )
                    self._sessions[0].share_memory(1)
                    return
                if number:
                    self._sessions.append(SlotSession(self._read))
                if self._stopping.is_set():
                    if number:
                        # ``close`` may have run already, without this session.
                        self._sessions.pop().close()
                    return
                self._sessions[number].share_memory(connections)
                self._sessions[number].make_copy()
        except (ConfigurationError, MissingPrivilege, SourceUnavailable) as error:
            if self._stopping.is_set():
                raise
            # The server has no more slots or connections, or the role no right to the function. One
            # connection needs no copy. If the server is gone, that connection will say so.
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
        """Read the whole range with one connection. Only a range that is longer than a slice needs a copy.

        Without a copy each answer begins where the slot stands, so it is made twice as long as the one
        before.
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
                # The answer has only parts of streamed transactions, or what was handed over before. A longer
                # one is needed to reach an end.
                continue
            if given is None and self._has_copy():
                session.move_copy(reached)
                slice_messages = min(slice_messages, SLICE_MESSAGES)
            else:
                given = reached

    def _has_copy(self) -> bool:
        """Whether the connection has a copy of the slot, or can make one now."""
        session = self._sessions[0]
        if self._read.is_pooled:
            return False
        try:
            if not session.has_copy:
                session.make_copy()
        except (ConfigurationError, MissingPrivilege) as error:
            log.warning("Slot %s is read without a copy: %s", self._read.slot_name, error.message)
        return session.has_copy

    def _answer(self, messages: int, two_phase: TwoPhase) -> Iterator[MessageChunk]:
        """Read one answer without a copy of the slot. The batch ends where it ends.

        If no transaction ends in the answer, one of twice as many messages is read. It begins at the slot
        again, so what was handed over before is left out.

        :param messages: about how many messages the first answer has.
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
        """An answer from the slot or the copy, without what ends at or before ``given``."""
        chunks = self._sessions[0].peek(self._read.target, messages)
        return chunks if given is None else past(given, chunks)
