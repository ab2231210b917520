"""The decoder: chunks of messages in, blocks of changes out. It does not matter where chunks are cut.

This file calls the others and reads the messages that are not rows. ``transactions.py`` finds the transaction
of each message. ``relations.py`` knows the version of each row's relation. ``row_messages.py`` and
``tuple_walk.py`` cut the rows, and ``assemble.py`` makes blocks of them. ``logical_messages.py`` reads
logical messages, ``origins.py`` reads where transactions come from. ``reference.py`` is a slow decoder that
says what must come out. Nothing here opens a connection or asks a catalog.

Source: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from airflow_provider_pgoutput.capture.pgoutput.assemble import assemble
from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock, MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.logical_messages import cut_logical_messages
from airflow_provider_pgoutput.capture.pgoutput.messages import (
    parse_relation,
    parse_truncate,
    parse_type,
)
from airflow_provider_pgoutput.capture.pgoutput.origins import Origins
from airflow_provider_pgoutput.capture.pgoutput.partitions import Partitions
from airflow_provider_pgoutput.capture.pgoutput.relations import Relations
from airflow_provider_pgoutput.capture.pgoutput.row_messages import Chunk, select_rows
from airflow_provider_pgoutput.capture.pgoutput.transactions import Messages, Transactions
from airflow_provider_pgoutput.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.pgoutput.blocks import LogicalMessageBlock
    from airflow_provider_pgoutput.capture.pgoutput.messages import Commit, Relation, TypeMessage

#: Arrow's offsets are signed 32-bit numbers. A larger chunk is decoded in parts.
_PART_BYTES: Final = 1 << 30


class Decoder:
    """Decodes whole transactions in the order of their commits: protocol version 1.

    Transactions that commit before ``start_lsn``, or at or after ``end_lsn``, are skipped: their rows are not
    read, but the relations and types that they announce are. After an error the decoder refuses to go on.
    What it returned before is valid up to the last commit.

    :param start_lsn: None: from the beginning.
    :param end_lsn: None: without an end.
    :param skip_origins: skip transactions that this server replicated from another one. From version 16 on
        the server does it itself with the option ``origin 'none'``.
    :param skip_lsns: commit LSNs of transactions to skip, whatever they contain.
    """

    def __init__(
        self,
        start_lsn: Lsn | None = None,
        end_lsn: Lsn | None = None,
        *,
        skip_origins: bool = False,
        skip_lsns: Collection[Lsn] = (),
    ) -> None:
        self._transactions = Transactions(
            start_lsn, end_lsn, skip_origins=skip_origins, skip_lsns=skip_lsns
        )
        self._range = start_lsn, end_lsn
        self._relations = Relations()
        self._partitions = Partitions()
        #: Number of the message that follows the last announcement. Between two chunks: 0: the last chunk
        #: ended with an announcement, so message 0 of the next chunk is looked at; -1: it did not.
        self._after_announcement = -1
        self._origins = Origins()
        self._found_messages: list[LogicalMessageBlock] = []
        self._failed = False
        #: Number of ``pg_logical_emit_message`` messages so far, also in skipped transactions.
        self.logical_messages = 0
        #: Number of Origin messages so far, also in skipped transactions.
        self.origins = 0
        #: By OID: the last announced name of each type that is not built in.
        self.types: dict[int, TypeMessage] = {}

    @property
    def relations(self) -> dict[int, Relation]:
        """The last announced version of each relation, by OID."""
        return self._relations.by_oid

    @property
    def transactions(self) -> int:
        """Number of transactions that ended so far, without skipped ones."""
        return self._transactions.count

    @property
    def skipped(self) -> dict[Lsn, int]:
        """Number of row changes by commit LSN, for the transactions that were skipped by their LSN."""
        return self._transactions.skipped

    @property
    def last_commit(self) -> Commit | None:
        """The last commit so far, also of a skipped transaction."""
        return self._transactions.last_commit

    @property
    def in_transaction(self) -> bool:
        """Whether the last chunk ended inside a transaction."""
        return self._transactions.begin is not None

    def decode(self, chunk: MessageChunk) -> list[ChangeBlock]:
        """Decode the next chunk into blocks, one for each version of a relation that it changes.

        The blocks are in the order of their first changes. If a relation returns to an earlier version inside
        the chunk, that is another block, so the blocks of a relation keep the order of the stream. A block
        keeps no reference to the chunk's buffer.

        :raises ProtocolError: a message is invalid, or may not stand at its position. Then nothing of the
            chunk may be used, and the decoder cannot go on.
        """
        if self._failed:
            raise ProtocolError("This decoder met an error before and cannot go on.")
        self._failed = True
        blocks = [block for part in _parts(chunk) for block in self._decode(part)]
        self._failed = False
        return blocks

    def take_messages(self) -> list[LogicalMessageBlock]:
        """Return the logical messages since the last call, without those that are out of the range.

        Messages of skipped transactions are left out, too.
        """
        found, self._found_messages = self._found_messages, []
        return found

    def _decode(self, chunk: MessageChunk) -> list[ChangeBlock]:
        messages = Messages(chunk)
        located = Chunk(messages, self._transactions.follow(messages), self._relations)
        self._relations.start_chunk()
        truncates: list[tuple[int, int]] = []
        if self._after_announcement == 0:
            self._follow(messages, 0)
        for index in messages.of("RYT").tolist():
            self._control(located, index, truncates)
        self._after_announcement = 0 if self._after_announcement == len(messages) else -1
        origins = self._origins.follow(messages, located.positions)
        self.origins += len(messages.of("O"))
        self.logical_messages += len(messages.of("Mm"))
        if (found := cut_logical_messages(located, *self._range)) is not None:
            self._found_messages.append(found)
        return assemble(select_rows(located, truncates), origins)

    def _control(self, chunk: Chunk, index: int, truncates: list[tuple[int, int]]) -> None:
        """Read a message that is neither a row nor the begin or commit of a transaction."""
        event = chunk.messages.event(index)
        body = chunk.messages.body(index)
        lsn = chunk.positions.lsn(index)
        if event == "R":
            for relation in self._partitions.announce(parse_relation(body, lsn)):
                self._relations.announce(index, relation)
            self._follow(chunk.messages, index + 1)
        elif event == "Y":
            type_message = parse_type(body, lsn)
            self.types[type_message.oid] = type_message
            self._follow(chunk.messages, index + 1)
        else:
            truncate = parse_truncate(body, lsn)
            if chunk.positions.wanted[chunk.positions.transaction[index]]:
                truncates += [(index, oid) for oid in truncate.relation_oids]

    def _follow(self, messages: Messages, index: int) -> None:
        """Look at the message after an announcement.

        The server announces a root, then its partition, and then sends a row of the root. So if a row of the
        root follows the two announcements, the second one is that of a partition; see ``partitions.py``.
        """
        self._after_announcement = index
        if index == len(messages):
            return
        event = messages.event(index)
        if event in "IUD":
            oid = int(messages.head[index] >> np.uint64(24)) & 0xFFFFFFFF
            root = self._partitions.row(oid)
            if root is not None:
                self._relations.announce(index - 1, root)
        elif event not in "RY":
            self._partitions.end_run()


def _parts(chunk: MessageChunk) -> list[MessageChunk]:
    """Cut a chunk that is too large for Arrow's offsets. The server makes no message of 1 GiB or more."""
    offsets = chunk.offsets
    if not len(offsets) or offsets[-1] - offsets[0] <= _PART_BYTES:
        return [chunk]
    parts = []
    first = 0
    while first < len(offsets) - 1:
        last = int(np.searchsorted(offsets, offsets[first] + _PART_BYTES, side="right")) - 1
        last = max(last, first + 1)
        parts.append(MessageChunk(chunk.data, offsets[first : last + 1]))
        first = last
    return parts
