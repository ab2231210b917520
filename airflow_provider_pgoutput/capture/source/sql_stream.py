"""Reading a slot through ``pg_logical_slot_peek_binary_changes``: the fast way.

The server writes the whole answer to a temporary file before the first row arrives, so it is asked
for in slices of a bounded number of messages. The first slice comes from the slot itself; later ones
from a temporary copy of it that is moved to the end of the slice before, which costs little. Never
``get``: it would confirm changes that are not durable yet.

Source: https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
from psycopg import sql

from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.messages import parse_commit
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.capture.source.stream import CHUNK_BYTES, PROTOCOL_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from adbc_driver_manager.dbapi import Connection as AdbcConnection

    from airflow_provider_pgoutput.batch.lsn import Lsn

log = logging.getLogger(__name__)

#: Messages per slice.  Fewer read the WAL before the slice again too often.
SLICE_MESSAGES = 2_000_000


class SqlStream:
    """Reads through the SQL function, as Arrow record batches through ADBC.

    :param conninfo: see ``session.connect``.
    :param target: LSN up to which the server is asked to decode.
    :param slice_messages: messages after which the server ends an answer, at the next commit.
    """

    def __init__(
        self,
        conninfo: str | Mapping[str, Any],
        slot_name: str,
        publication_names: tuple[str, ...],
        target: Lsn,
        *,
        slice_messages: int = SLICE_MESSAGES,
    ) -> None:
        self._slot_name = slot_name
        self._publications = sessions.publication_list(publication_names)
        self._target = target
        self._slice_messages = slice_messages
        self._connection: AdbcConnection | None = sessions.connect_adbc(conninfo, slot=slot_name)
        self._cursor = self._connection.cursor()
        self._cursor.adbc_statement.set_options(
            **{"adbc.postgresql.batch_size_hint_bytes": str(CHUNK_BYTES)}
        )

    def chunks(self) -> Iterator[MessageChunk]:
        """See ``ChangeStream``."""
        slot_name = self._slot_name
        while True:
            messages, last_commit = 0, None
            for chunk in self._slice(slot_name):
                messages += len(chunk.offsets) - 1
                last_commit = _last_commit_end(chunk) or last_commit
                yield chunk
            if messages < self._slice_messages or last_commit is None:
                return
            if last_commit >= self._target:
                return
            if slot_name == self._slot_name:
                slot_name = self._copy_slot()
            self._advance(slot_name, last_commit)

    def close(self) -> None:
        """See ``ChangeStream``; a temporary copy of the slot goes with the session."""
        if self._connection is None:
            return
        connection, self._connection = self._connection, None
        # Nothing runs any more when everything was read; cancelling then is refused.
        with contextlib.suppress(Exception):
            connection.adbc_cancel()
        self._cursor.close()
        connection.close()

    def _slice(self, slot_name: str) -> Iterator[MessageChunk]:
        statement = sql.SQL(
            "SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes({}, {}, {},"
            " 'proto_version', {}, 'publication_names', {})"
        ).format(
            sql.Literal(slot_name),
            sql.Literal(str(self._target)),
            sql.Literal(self._slice_messages),
            sql.Literal(PROTOCOL_VERSION),
            sql.Literal(self._publications),
        )
        for record_batch in sessions.record_batches(
            self._cursor, statement.as_string(), slot=self._slot_name
        ):
            yield from message_chunks(record_batch.column(0))

    def _copy_slot(self) -> str:
        """Make a temporary copy of the slot, which ends with this session at the latest."""
        name = f"pgoutput_{uuid.uuid4().hex}"
        self._call(
            sql.SQL(
                "SELECT slot_name::pg_catalog.text"
                " FROM pg_catalog.pg_copy_logical_replication_slot({}, {}, true)"
            ).format(sql.Literal(self._slot_name), sql.Literal(name))
        )
        return name

    def _advance(self, slot_name: str, lsn: Lsn) -> None:
        """Move the temporary copy, never the pipeline's own slot."""
        assert slot_name != self._slot_name, "reading never moves the pipeline's slot"
        self._call(
            sql.SQL(
                "SELECT end_lsn::pg_catalog.text FROM pg_catalog.pg_replication_slot_advance({}, {})"
            ).format(sql.Literal(slot_name), sql.Literal(str(lsn)))
        )

    def _call(self, statement: sql.Composable) -> None:
        with translated(slot=self._slot_name):
            self._cursor.execute(statement.as_string())
            self._cursor.fetchall()


def message_chunks(column: pa.Array, chunk_bytes: int = CHUNK_BYTES) -> Iterator[MessageChunk]:
    """View an Arrow ``binary`` column as chunks of about ``chunk_bytes``; no message is copied."""
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


def _last_commit_end(chunk: MessageChunk) -> Lsn | None:
    """End LSN of the last commit in the chunk."""
    commits = np.flatnonzero(chunk.data[chunk.offsets[:-1]] == ord("C"))
    if len(commits) == 0:
        return None
    index = int(commits[-1])
    body = chunk.data[chunk.offsets[index] : chunk.offsets[index + 1]].tobytes()
    return parse_commit(body).end_lsn
