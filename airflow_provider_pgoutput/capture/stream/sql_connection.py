"""One connection that reads a slot, or a temporary copy of it, through the SQL function.

``sql.py`` and ``sql_parallel.py`` decide which connection reads which range.

Source: https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from typing import TYPE_CHECKING

import numpy as np
from psycopg import sql

from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.capture.stream.choose import FREE_SLOTS, WAITS_FOR_STANDBYS
from airflow_provider_pgoutput.capture.stream.transport import CHUNK_BYTES
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from adbc_driver_manager.dbapi import Connection as AdbcConnection

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.stream.transport import SlotRead


#: Size of a row that is sent before the answer. It is larger than what the server keeps back until it has
#: enough to send. Without it, the first bytes may take long. If a connection breaks before they are there,
#: the driver calls ``std::terminate`` (https://github.com/apache/arrow-adbc/issues/3878).
_FIRST_ROW_BYTES = 9000
#: How long the request to cancel may take, and then the query to end. On a silent network neither ends, and
#: the driver waits for both without a limit.
_CANCEL_SECONDS = 5.0

#: If the copy would read more WAL than this before the start of a part, a second move of the copy pays off.
_FAR_BYTES = 16 << 20

log = logging.getLogger(__name__)


class SlotSession:
    """An ADBC connection. On request it makes a temporary copy of the slot."""

    def __init__(self, read: SlotRead) -> None:
        self._read = read
        #: How many connections read at the same time and share the memory.
        self._readers = 1
        self._slot_name = read.slot_name
        self._copy_name: str | None = None
        #: Held while the driver works. Meanwhile the connection allows nothing else but cancelling.
        self._at_work = threading.Lock()
        self._cancelling: threading.Thread | None = None
        #: Number of messages of the last answer so far, also of unfinished transactions.
        self.messages = 0
        self._connection: AdbcConnection = sessions.connect_adbc(read.conninfo, slot=read.slot_name)
        self._cursor = self._connection.cursor()
        self._cursor.adbc_statement.set_options(
            **{"adbc.postgresql.batch_size_hint_bytes": str(CHUNK_BYTES)}
        )

    def share_memory(self, readers: int) -> None:
        """Note how many connections read at the same time and share the memory, this one among them."""
        self._readers = readers

    def peek(self, up_to: Lsn, messages: int | None = None) -> Iterator[MessageChunk]:
        """Whole transactions of the copy, or of the slot if there is no copy. Neither is moved.

        :param up_to: transactions that commit at this LSN or later are not wanted.
        :param messages: the server ends the answer after about so many: after a commit, or after a part of a
            transaction that it streams. None: it sends all.
        """
        statement = sql.SQL(
            "SELECT pg_catalog.convert_to(pg_catalog.repeat(' ', {}), 'UTF8') AS data UNION ALL"
            " SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes({}, {}, {}, {})"
        ).format(
            sql.Literal(_FIRST_ROW_BYTES),
            sql.Literal(self._copy_name or self._slot_name),
            sql.Literal(str(self._read.lsn_offset.of_server(up_to))),
            sql.Literal(messages),
            self._read.options.as_arguments(),
        )
        self.messages = 0
        skipped = 1
        with self._read.reassembler(self._readers) as reassembler:
            record_batches = sessions.record_batches(
                self._cursor, statement.as_string(), slot=self._slot_name
            )
            while True:
                with self._at_work:
                    record_batch = next(record_batches, None)
                if record_batch is None:
                    return
                messages_column = record_batch.column(0).slice(skipped)
                skipped = 0
                for chunk in message_chunks(messages_column):
                    self.messages += len(chunk.offsets) - 1
                    yield from reassembler.take(chunk)

    @property
    def has_copy(self) -> bool:
        """Whether it reads a copy of the slot, and not the slot itself."""
        return self._copy_name is not None

    def count_free_slots(self) -> int:
        """How many slots the server could still make."""
        return int(self._scalar(sql.SQL(FREE_SLOTS)))

    def make_copy(self) -> None:
        """Make a temporary copy of the slot. It ends with this connection at the latest.

        :raises ConfigurationError: the server has no room for another slot, or a copy would read what the
            slot itself still waits for.
        :raises MissingPrivilege: the role may not make one.
        """
        assert not self._read.is_pooled, "a pooler would keep the session, and with it the copy"
        if int(self._scalar(WAITS_FOR_STANDBYS.format(sql.Literal(self._slot_name)))):
            raise ConfigurationError(
                "A copy of a slot with failover does not wait for synchronized_standby_slots, so it would"
                " read what is lost if one of these standbys takes over.",
                slot=self._slot_name,
            )
        name = f"pgoutput_{uuid.uuid4().hex}"
        self._scalar(
            sql.SQL(
                "SELECT slot_name::pg_catalog.text"
                " FROM pg_catalog.pg_copy_logical_replication_slot({}, {}, true)"
            ).format(sql.Literal(self._slot_name), sql.Literal(name))
        )
        self._copy_name = name

    def move_copy(self, lsn: Lsn) -> Lsn:
        """Move the copy, never the slot itself, to ``lsn``.

        :returns: the LSN at which the server starts to read the WAL for what comes after ``lsn``.
        """
        assert self._copy_name is not None, "reading never moves the pipeline's slot"
        name = sql.Literal(self._copy_name)
        advance = sql.SQL(
            "SELECT end_lsn::pg_catalog.text FROM pg_catalog.pg_replication_slot_advance({}, {})"
        ).format(name, sql.Literal(str(self._read.lsn_offset.of_server(lsn))))
        confirmed, restart = self._positions(name)
        if confirmed < lsn:
            self._scalar(advance)
            confirmed, restart = self._positions(name)
            if lsn - restart > _FAR_BYTES:
                # The restart position follows the position confirmed before. A second move brings it near.
                self._scalar(advance)
                _, restart = self._positions(name)
        return restart

    def close(self) -> None:
        """Stop what runs, and end the connection and with it the copy.

        On a silent network the connection stays until this process ends, or until the kernel gives it up.
        """
        self.cancel()
        # The driver must not free what the request to cancel is still sent on.
        is_stuck = self._cancelling is not None and self._cancelling.is_alive()
        if is_stuck or not self._at_work.acquire(timeout=_CANCEL_SECONDS):
            log.warning(
                "Slot %s: the network is silent; a connection is left to itself.", self._slot_name
            )
            return
        with contextlib.suppress(Exception):
            self._cursor.close()
        self._connection.close()

    def cancel(self) -> None:
        """Stop what another thread runs."""
        if self._cancelling is not None and self._cancelling.is_alive():
            return
        # In a thread of its own, because the driver waits until the server has the request.
        self._cancelling = threading.Thread(target=self._cancel, name="cancel", daemon=True)
        self._cancelling.start()
        self._cancelling.join(_CANCEL_SECONDS)

    def _cancel(self) -> None:
        # If everything was read, nothing runs any more, and cancelling is refused.
        with contextlib.suppress(Exception):
            self._connection.adbc_cancel()

    def _positions(self, name: sql.Literal) -> tuple[Lsn, Lsn]:
        """Confirmed LSN and restart LSN of the copy."""
        text = self._scalar(
            sql.SQL(
                "SELECT confirmed_flush_lsn::pg_catalog.text || ' ' || restart_lsn::pg_catalog.text"
                " FROM pg_catalog.pg_replication_slots WHERE slot_name = {}"
            ).format(name)
        )
        confirmed, restart = text.split(" ")
        offset = self._read.lsn_offset
        return offset.of_lake(confirmed), offset.of_lake(restart)

    def _scalar(self, statement: sql.Composable) -> str:
        with self._at_work, translated(slot=self._slot_name):
            self._cursor.execute(statement.as_string())
            ((value,),) = self._cursor.fetchall()
        return str(value)


def message_chunks(column: pa.Array, chunk_bytes: int = CHUNK_BYTES) -> Iterator[MessageChunk]:
    """View an Arrow ``binary`` column as chunks of about ``chunk_bytes``. No message is copied."""
    if len(column) == 0:
        return
    assert column.null_count == 0, "every message has bytes"
    _, offset_buffer, data_buffer = column.buffers()
    width = np.int64 if str(column.type).startswith("large") else np.int32
    stored = np.frombuffer(offset_buffer, dtype=width)
    offsets = stored[column.offset : column.offset + len(column) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, dtype=np.uint8)
    first = 0
    while first < len(column):
        wanted = np.searchsorted(offsets, offsets[first] + chunk_bytes, side="right") - 1
        last = min(max(int(wanted), first + 1), len(column))
        start, end = int(offsets[first]), int(offsets[last])
        yield MessageChunk(data[start:end], offsets[first : last + 1] - start)
        first = last
