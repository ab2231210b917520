"""The seam between the two ways to read a slot (``sql.py``, ``walsender.py``) and everything above them.

Whatever the protocol version, a stream gives whole transactions in the order of their commits, as version 1
does. The decoder reads them, and ``cut.py`` knows where a batch ends.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_pgoutput.batch.lsn import NO_OFFSET
from airflow_provider_pgoutput.capture.pgoutput.lsn_fields import (
    OF_LOGICAL_MESSAGES,
    OF_TRANSACTIONS,
    with_offset,
)
from airflow_provider_pgoutput.capture.pgoutput.reassemble import Reassembler, UnstreamedAborts
from airflow_provider_pgoutput.capture.stream.options import STREAMING_PARALLEL
from airflow_provider_pgoutput.capture.stream.spill import SPILL_BYTES, SpillFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider_pgoutput.batch.lsn import Lsn, LsnOffset
    from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
    from airflow_provider_pgoutput.capture.stream.options import PluginOptions
    from airflow_provider_pgoutput.capture.stream.two_phase import TwoPhase

#: Larger chunks do not stay in the processor's cache while they are decoded.
CHUNK_BYTES = 3 << 20


@dataclass(frozen=True, slots=True)
class SlotRead:
    """What to read, for both transports."""

    #: See ``session.connect``.
    conninfo: str | Mapping[str, Any] = field(repr=False)
    slot_name: str
    options: PluginOptions
    #: The checkpoint. The server sends what commits at or after it.
    start: Lsn
    #: The read ends when everything that commits before this was sent.
    target: Lsn
    #: Set if prepared transactions are read before they commit.
    two_phase: TwoPhase | None = None
    #: Counts rollbacks of what the server never sent.
    unstreamed: UnstreamedAborts = field(default_factory=UnstreamedAborts)
    #: Whether ``conninfo`` leads to a connection pooler.
    is_pooled: bool = False
    #: What the lake adds to LSNs of the server. All LSNs of this value, and of a stream, are the lake's.
    lsn_offset: LsnOffset = NO_OFFSET

    @contextlib.contextmanager
    def reassembler(self, readers: int = 1) -> Iterator[TakesChunks]:
        """Makes whole transactions of one answer of the server. What is unfinished at its end is dropped.

        :param readers: how many connections read at the same time and share the memory.
        """
        two_phase = self.two_phase
        # What is prepared must outlive the answer.
        spill = SpillFolder(SPILL_BYTES // readers) if two_phase is None else two_phase.spill
        try:
            reassembler = Reassembler(
                self.options.proto_version,
                chunk_bytes=CHUNK_BYTES,
                parallel=self.options.streaming == STREAMING_PARALLEL,
                new_spool=spill.new,
                prepared=None if two_phase is None else two_phase.transactions,
                unstreamed=self.unstreamed,
            )
            yield _Counted(reassembler, self.lsn_offset) if self.lsn_offset.bytes else reassembler
        finally:
            if two_phase is None:
                spill.close()


class TakesChunks(Protocol):
    """Makes whole transactions of the chunks of one answer."""

    def take(self, chunk: MessageChunk) -> Iterator[MessageChunk]:
        """See ``Reassembler``."""
        ...


@dataclass(frozen=True, slots=True)
class _Counted:
    """A reassembler that gets and gives LSNs of the lake."""

    reassembler: Reassembler
    offset: LsnOffset

    def take(self, chunk: MessageChunk) -> Iterator[MessageChunk]:
        """See ``TakesChunks``."""
        for whole in self.reassembler.take(with_offset(chunk, OF_TRANSACTIONS, self.offset.bytes)):
            yield with_offset(whole, OF_LOGICAL_MESSAGES, self.offset.bytes)


class ChangeStream(Protocol):
    """One read of a slot from the checkpoint to a target LSN.

    It does not move the slot. A stream is read once, and closed in any case.
    """

    #: How far the chunks reach after they were read: to the target, if there was no limit.
    end_lsn: Lsn

    def chunks(self) -> Iterator[MessageChunk]:
        """Whole messages in the order of the stream.

        Every transaction whose commit LSN is in ``[checkpoint, end_lsn)`` is among them, completely.
        Transactions before and after may be, too. The reader leaves them out.

        :raises SourceUnavailable: the connection breaks.
        :raises PublicationMissing: the server says that it skipped a publication.
        :raises SlotAheadOfCheckpoint: the slot starts past the checkpoint.
        """
        ...

    def stop(self) -> None:
        """Make ``chunks`` end soon, or fail, in the thread that iterates. Another thread may call this."""
        ...

    def close(self) -> None:
        """End the read and free the slot, when no thread iterates any more. May be called twice."""
        ...
