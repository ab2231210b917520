"""Reads a slot through the replication protocol: for sources without room for temporary files.

A thread owns the connection. It gathers messages into chunks and hands them over in a short queue. While the
reader of the queue is slow, the thread still replies to the server. Without replies the server would end the
connection after ``wal_sender_timeout``. A reply says how far we received, so that the server can shut down.
It never has a flush LSN, because that alone would move the slot. A server that says nothing is asked, and
given up if it does not answer.

Source: https://www.postgresql.org/docs/current/protocol-replication.html
"""

from __future__ import annotations

import queue
import select
import struct
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import psycopg
from psycopg import sql

from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.messages import POSTGRES_EPOCH_US
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.errors import meaning, skipped_publication, translated
from airflow_provider_pgoutput.capture.stream.transport import CHUNK_BYTES
from airflow_provider_pgoutput.errors import PgoutputError, ProtocolError, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg.pq.abc import PGconn, PGresult

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.stream.transport import SlotRead

_XLOG_DATA, _KEEPALIVE = ord("w"), ord("k")
#: Tag, start and end of the WAL, time of the server. The message follows.
_XLOG_HEADER_BYTES = 25
_XLOG_START_LAYOUT = struct.Struct("!cQ")
_KEEPALIVE_LAYOUT = struct.Struct("!cQqB")
#: Tag, received, flushed, applied, our time, whether an answer is wanted.
_REPLY_LAYOUT = struct.Struct("!cQQQqB")
_LSN_LAYOUT = struct.Struct("!Q")
#: By tag: the offset of the LSN of the commit or prepare, in messages that have one. These are Begin, Stream
#: Commit, Begin Prepare, Stream Prepare and Commit Prepared.
_LSN_OFFSETS = {"B": 1, "c": 6, "b": 1, "p": 2, "K": 2}

#: At most so many messages are gathered before the next look at the clock.
_BURST_MESSAGES = 4096
_QUEUED_CHUNKS = 4
#: How soon a quiet server is asked how far it is. The wait doubles until it answers. At a steady short
#: interval a stalled connection would stay stalled for ever. Example: the server's data does not fit our
#: receive window. Then its kernel sends a part of the data after a timer of at least 0.2 s. Each packet of
#: ours starts that timer again.
_ASK_SECONDS = 0.05
#: How long a wait lasts before it checks whether the read was stopped.
_POLL_SECONDS = 0.2
#: How long a server may say nothing although it is asked again and again. If twice its ``wal_sender_timeout``
#: is longer, that counts. A kernel or a proxy may keep the connection of a dead server open.
SILENCE_SECONDS = 120.0
#: The same if ``wal_sender_timeout`` is 0, which means no limit. Then the server is expected to take long.
_LONG_SILENCE_SECONDS = 3600.0
#: How long a server may take when it is asked to stop.
_STOP_SECONDS = 2.0


class WalsenderStream:
    """Reads through START_REPLICATION."""

    def __init__(self, read: SlotRead) -> None:
        self._read = read
        self._slot_name = read.slot_name
        self.end_lsn = read.target
        #: As the server counts, like all LSNs in the thread that owns the connection.
        self._target = read.lsn_offset.of_server(read.target)
        self._queue: queue.Queue[MessageChunk | PgoutputError | None] = queue.Queue(_QUEUED_CHUNKS)
        self._stopping = threading.Event()
        self._received = int(read.lsn_offset.of_server(read.start))
        self._notices: list[PgoutputError] = []
        self._session = sessions.connect(read.conninfo, replication=True, slot=read.slot_name)
        try:
            self._session.add_notice_handler(self._notice)
            with translated(slot=read.slot_name):
                row = self._session.execute(
                    "SELECT setting::int4 FROM pg_catalog.pg_settings"
                    " WHERE name = 'wal_sender_timeout'"
                ).fetchone()
                # From here on no other session can move the slot. So ``capture/stage.py`` compares its
                # position with the start after this.
                self._session.execute(_start_statement(read))
        except BaseException:
            self._session.close()
            raise
        timeout_seconds = (row[0] if row else 0) / 1000
        self._reply_seconds = min(10.0, (timeout_seconds or 60.0) / 4)
        self._silence_seconds = (
            max(SILENCE_SECONDS, 2 * timeout_seconds) if timeout_seconds else _LONG_SILENCE_SECONDS
        )
        self._streaming = True
        self._thread = threading.Thread(target=self._run, name="walsender", daemon=True)
        self._thread.start()

    def chunks(self) -> Iterator[MessageChunk]:
        """See ``ChangeStream``."""
        with self._read.reassembler() as reassembler:
            while not self._stopping.is_set():
                try:
                    item = self._queue.get(timeout=_POLL_SECONDS)
                except queue.Empty:
                    continue
                if item is None:
                    return
                if isinstance(item, PgoutputError):
                    raise item
                yield from reassembler.take(item)

    def stop(self) -> None:
        """See ``ChangeStream``."""
        self._stopping.set()

    def close(self) -> None:
        """See ``ChangeStream``."""
        self.stop()
        self._thread.join()

    # What follows runs in the thread that owns the connection.

    def _run(self) -> None:
        last: PgoutputError | None = None
        try:
            with translated(slot=self._slot_name):
                self._receive(self._session.pgconn)
                self._streaming = False
                self._stop(self._session.pgconn)
        except PgoutputError as error:
            last = error
        except OSError as error:
            last = SourceUnavailable(
                f"The connection to the walsender failed: {type(error).__name__}.",
                slot=self._slot_name,
            )
            last.__cause__ = error
        except Exception as error:
            last = ProtocolError(f"The reader of the walsender failed: {type(error).__name__}.")
            last.__cause__ = error
        finally:
            self._streaming = False
            self._session.close()
        self._hand_over(last)

    def _receive(self, connection: PGconn) -> None:
        """Gather messages until the target is reached or the reader has enough."""
        gathered: list[memoryview] = []
        size = 0
        idle = False
        replied = heard = time.monotonic()
        ask_seconds = _ASK_SECONDS
        while not self._stopping.is_set():
            wal_end, more, drained = self._burst(connection, gathered)
            size += more
            if more or wal_end:
                heard = time.monotonic()
            elif time.monotonic() - heard >= self._silence_seconds:
                raise self._silent()
            if more:
                idle, ask_seconds = False, _ASK_SECONDS
            reached = wal_end >= self._target
            if gathered and (idle or size >= CHUNK_BYTES or reached):
                chunk = _chunk(gathered)
                gathered, size = [], 0
                reached = reached or _reaches(chunk, self._target)
                self._hand_over(chunk)
                heard = time.monotonic()
            if self._notices:
                raise self._notices[0]
            if reached:
                return
            # If the server has nothing to send, it is asked how far it is. By itself it may say so only after
            # half of its timeout. If it sends, a reply shows that this client is alive.
            quiet_seconds = time.monotonic() - replied
            if quiet_seconds >= self._reply_seconds or (idle and quiet_seconds >= ask_seconds):
                self._reply(connection, ask=idle)
                replied = time.monotonic()
                if idle:
                    ask_seconds = min(2 * ask_seconds, self._reply_seconds)
            if drained:
                readable, _, _ = select.select([connection.socket], [], [], _ASK_SECONDS)
                idle = not readable
                if readable:
                    # A part of a message that takes long to arrive is also a sign of life.
                    heard = time.monotonic()
                connection.consume_input()

    def _burst(self, connection: PGconn, gathered: list[memoryview]) -> tuple[int, int, bool]:
        """Take what has arrived.

        How far the server read comes from a keepalive, or from where the change of the last message is. While
        one open transaction is streamed without a pause, nothing else shows the end.

        :return: how far the server read, the number of bytes gathered, and whether nothing more is there.
        """
        get, append = connection.get_copy_data, gathered.append
        wal_end, size = 0, 0
        last: bytes | memoryview = b""
        for _ in range(_BURST_MESSAGES):
            length, data = get(1)
            if length > 0:
                if data[0] == _XLOG_DATA:
                    append(data[_XLOG_HEADER_BYTES:])
                    size += length
                    last = data
                elif data[0] == _KEEPALIVE:
                    _, wal_end, _, wants_reply = _KEEPALIVE_LAYOUT.unpack(data)
                    self._received = max(self._received, wal_end)
                    if wants_reply:
                        self._reply(connection, ask=False)
                    if wal_end >= self._target:
                        return wal_end, size, True
                else:
                    raise ProtocolError("The walsender sent a message of an unknown kind.")
            elif length == 0:
                return max(wal_end, _change_lsn(last)), size, True
            else:
                self._ended(connection)
        return max(wal_end, _change_lsn(last)), size, False

    def _reply(self, connection: PGconn, *, ask: bool) -> None:
        """Show that this client is alive, and how far it received.

        Flush and apply stay zero, which means unknown. Only ``advance.py`` moves the slot.
        """
        now_us = int(time.time() * 1_000_000) - POSTGRES_EPOCH_US
        connection.put_copy_data(_REPLY_LAYOUT.pack(b"r", self._received, 0, 0, now_us, ask))
        deadline = time.monotonic() + self._silence_seconds
        while connection.flush():
            if time.monotonic() >= deadline:
                raise self._silent()
            select.select([connection.socket], [connection.socket], [], self._reply_seconds)
            connection.consume_input()

    def _silent(self) -> SourceUnavailable:
        return SourceUnavailable(
            f"The walsender has not said a word for {self._silence_seconds:.0f} s, although it was asked.",
            slot=self._slot_name,
            advice="nothing; the next attempt connects again. If it repeats, look at what lies between:"
            " a server that needs longer is given it by a longer wal_sender_timeout.",
        )

    def _hand_over(self, item: MessageChunk | PgoutputError | None) -> None:
        """Give the reader an item. While the reader is slow, reply to the server."""
        while not self._stopping.is_set():
            try:
                self._queue.put(item, timeout=self._reply_seconds)
            except queue.Full:
                # After the end of the stream there is nobody to reply to. Only wait for the reader.
                if self._streaming:
                    self._reply(self._session.pgconn, ask=False)
            else:
                return

    def _ended(self, connection: PGconn) -> None:
        """Raise what the server said when it ended the stream."""
        result = _result(connection, time.monotonic() + _STOP_SECONDS)
        if result is not None and result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
            sqlstate = (result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b"").decode()
            primary = result.error_field(psycopg.pq.DiagnosticField.MESSAGE_PRIMARY) or b""
            text = primary.decode("utf-8", "replace") or "the connection was closed"
            raise meaning(sqlstate, text, slot=self._slot_name)
        raise meaning("57P01", "the walsender ended the stream", slot=self._slot_name)

    def _stop(self, connection: PGconn) -> None:
        """End the stream properly, so that the slot is free at once."""
        connection.put_copy_end()
        connection.flush()
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline:
            length, _ = connection.get_copy_data(1)
            if length < 0:
                while _result(connection, deadline) is not None:
                    pass
                return
            if length == 0:
                select.select([connection.socket], [], [], _ASK_SECONDS)
                connection.consume_input()

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        """From version 18 on a missing publication is only a warning, and its changes are left out."""
        if (missing := skipped_publication(diagnostic, slot=self._slot_name)) is not None:
            self._notices.append(missing)


def _result(connection: PGconn, deadline: float) -> PGresult | None:
    """The next result; None: there is none by the deadline.

    libpq itself would wait without a limit, and every thread of this process would stand still meanwhile.

    :param deadline: on the monotonic clock.
    """
    while connection.is_busy():
        if time.monotonic() >= deadline:
            return None
        select.select([connection.socket], [], [], _ASK_SECONDS)
        connection.consume_input()
    return connection.get_result()


def _start_statement(read: SlotRead) -> sql.Composed:
    return sql.SQL("START_REPLICATION SLOT {} LOGICAL {} ({})").format(
        sql.Identifier(read.slot_name),
        sql.SQL(str(read.lsn_offset.of_server(read.start))),  # digits and a slash by construction
        read.options.as_options(),
    )


def _chunk(gathered: list[memoryview]) -> MessageChunk:
    offsets = np.zeros(len(gathered) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, gathered), dtype=np.int64, count=len(gathered)), out=offsets[1:])
    return MessageChunk(np.frombuffer(b"".join(gathered), dtype=np.uint8), offsets)


def _change_lsn(data: bytes | memoryview) -> int:
    """Where the change of an XLogData message is in the WAL; 0: there is no message.

    Messages come as the server reads the WAL, but those of a transaction only at its end or when it is
    streamed. So a message at or after an LSN means that everything which committed before was sent. The
    reverse is not true.
    """
    return _XLOG_START_LAYOUT.unpack_from(data)[1] if len(data) else 0


def _reaches(chunk: MessageChunk, target: Lsn) -> bool:
    """Whether the chunk has the end of a transaction, or its prepare, at or after the target.

    The server sends these in the order of the WAL, so everything that commits before was sent.
    """
    tags = chunk.data[chunk.offsets[:-1]]
    for tag, offset in _LSN_OFFSETS.items():
        found = np.flatnonzero(tags == ord(tag))
        if len(found):
            first = int(chunk.offsets[found[-1]]) + offset
            (lsn,) = _LSN_LAYOUT.unpack(chunk.data[first : first + _LSN_LAYOUT.size].tobytes())
            if lsn >= target:
                return True
    return False
