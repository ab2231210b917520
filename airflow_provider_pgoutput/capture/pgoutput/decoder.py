"""The decoder: a chunk of messages in, blocks of changes out, whatever the chunk boundaries.

It steers. ``transactions.py`` places each message in its transaction, this file reads the messages that
are not rows, ``relations.py`` knows the version of each row's relation, ``rows.py`` and ``columns.py`` cut
the rows, ``assemble.py`` makes blocks of them and ``logical_messages.py`` of the logical messages;
``origins.py`` reads where transactions come from. What must come out is said by ``reference.py``. Nothing
here opens a connection or looks anything up.

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

#: Arrow's offsets are signed numbers of 32 bits; a chunk beyond this is decoded in parts.
_PART_BYTES: Final = 1 << 30


class Decoder:
    """Decodes whole transactions in the order of their commits: protocol version 1.

    Transactions whose commit LSN is before ``start_lsn``, or at or past ``end_lsn``, are skipped: their
    rows are not looked at, their relations and types are learnt. After an error the decoder refuses to
    go on; what it gave before is valid up to the last commit.

    :param start_lsn: None: from the beginning.
    :param end_lsn: None: without an end.
    :param skip_origins: skip transactions that this server replicated from another, as the server's
        option ``origin 'none'`` does from version 16 on.
    :param skip_lsns: commit LSNs of transactions to skip, whatever is in them.
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
        #: Number of the message behind the last announcement of the chunk; -1: another one came after that.
        self._behind = -1
        self._origins = Origins()
        self._found_messages: list[LogicalMessageBlock] = []
        self._failed = False
        #: Messages of ``pg_logical_emit_message`` so far, in skipped transactions too.
        self.logical_messages = 0
        #: Origin messages so far, in skipped transactions too.
        self.origins = 0
        #: The last announced name of each type that is not built in, by OID.
        self.types: dict[int, TypeMessage] = {}

    @property
    def relations(self) -> dict[int, Relation]:
        """The last announced version of each relation, by OID."""
        return self._relations.by_oid

    @property
    def transactions(self) -> int:
        """Transactions that ended so far, without skipped ones."""
        return self._transactions.count

    @property
    def skipped(self) -> dict[Lsn, int]:
        """Row changes of the transactions that were skipped by their commit LSN, by that."""
        return self._transactions.skipped

    @property
    def last_commit(self) -> Commit | None:
        """The last commit so far, of a skipped transaction too."""
        return self._transactions.last_commit

    @property
    def in_transaction(self) -> bool:
        """Whether the last chunk ended inside a transaction."""
        return self._transactions.begin is not None

    def decode(self, chunk: MessageChunk) -> list[ChangeBlock]:
        """Decode the next chunk into one block for each version of a relation that it changes.

        The blocks are in the order of their first changes. When a relation returns to an earlier version
        within the chunk, that is another block, so blocks of one relation keep the order of the stream.
        Nothing in a block refers to the chunk's buffer.

        :raises ProtocolError: when a message is invalid or may not stand where it stands. Then nothing of
            the chunk may be used, and the decoder is of no more use.
        """
        if self._failed:
            raise ProtocolError("This decoder met an error before and cannot go on.")
        self._failed = True
        blocks = [block for part in _parts(chunk) for block in self._decode(part)]
        self._failed = False
        return blocks

    def take_messages(self) -> list[LogicalMessageBlock]:
        """Give the wanted logical messages of the chunks that were decoded since the last call."""
        found, self._found_messages = self._found_messages, []
        return found

    def _decode(self, chunk: MessageChunk) -> list[ChangeBlock]:
        messages = Messages(chunk)
        placed = Chunk(messages, self._transactions.follow(messages), self._relations)
        self._relations.start_chunk()
        truncates: list[tuple[int, int]] = []
        if self._behind == 0:
            self._follow(messages, 0)
        for index in messages.of("RYT").tolist():
            self._control(placed, index, truncates)
        self._behind = 0 if self._behind == len(messages) else -1
        origins = self._origins.follow(messages, placed.placement)
        self.origins += len(messages.of("O"))
        self.logical_messages += len(messages.of("Mm"))
        if (found := cut_logical_messages(placed, *self._range)) is not None:
            self._found_messages.append(found)
        return assemble(select_rows(placed, truncates), origins)

    def _control(self, chunk: Chunk, index: int, truncates: list[tuple[int, int]]) -> None:
        """Take note of a message that is neither a row nor a transaction's bracket."""
        event = chunk.messages.event(index)
        body = chunk.messages.body(index)
        lsn = chunk.placement.lsn(index)
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
            if chunk.placement.wanted[chunk.placement.transaction[index]]:
                truncates += [(index, oid) for oid in truncate.relation_oids]

    def _follow(self, messages: Messages, index: int) -> None:
        """Look at what follows an announcement: a row may show that it was one of a partition."""
        self._behind = index
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
    """Cut a chunk that Arrow's offsets cannot span; the server makes no message of a GiB or more."""
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
