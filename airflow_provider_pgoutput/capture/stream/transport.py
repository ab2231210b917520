"""The seam between the two ways of reading a slot and everything behind them.

``sql_stream.py`` and ``walsender_stream.py`` are the two. Whatever protocol version is spoken, a stream
gives whole transactions in the order of their commits, as version 1 has them; what they mean is the
decoder's matter, where a batch ends is ``staging/cut.py``'s.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_pgoutput.capture.pgoutput.reassemble import Reassembler, UnstreamedAborts
from airflow_provider_pgoutput.capture.stream.options import STREAMING_PARALLEL
from airflow_provider_pgoutput.capture.stream.spill import SPILL_BYTES, SpillFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
    from airflow_provider_pgoutput.capture.stream.options import PluginOptions
    from airflow_provider_pgoutput.capture.stream.two_phase import TwoPhase

#: Larger chunks fall out of the processor's cache while they are decoded.
CHUNK_BYTES = 3 << 20


@dataclass(frozen=True, slots=True)
class SlotRead:
    """What is read, whichever way."""

    #: See ``session.connect``.
    conninfo: str | Mapping[str, Any] = field(repr=False)
    slot_name: str
    options: PluginOptions
    #: The checkpoint; the server sends what commits at or past it.
    start: Lsn
    #: The read ends when everything that commits before it was sent.
    target: Lsn
    #: Set when prepared transactions are read before they commit.
    two_phase: TwoPhase | None = None
    #: Counts what the server rolled back without having sent it.
    unstreamed: UnstreamedAborts = field(default_factory=UnstreamedAborts)

    @contextlib.contextmanager
    def reassembler(self, readers: int = 1) -> Iterator[Reassembler]:
        """What makes whole transactions of one answer of the server; what is unfinished is dropped.

        :param readers: connections that read at the same time, which share the memory for it.
        """
        two_phase = self.two_phase
        # What is prepared has to outlive the answer.
        spill = SpillFolder(SPILL_BYTES // readers) if two_phase is None else two_phase.spill
        try:
            yield Reassembler(
                self.options.proto_version,
                chunk_bytes=CHUNK_BYTES,
                parallel=self.options.streaming == STREAMING_PARALLEL,
                new_spool=spill.new,
                prepared=None if two_phase is None else two_phase.transactions,
                unstreamed=self.unstreamed,
            )
        finally:
            if two_phase is None:
                spill.close()


class ChangeStream(Protocol):
    """One read of a slot from the checkpoint up to a target LSN.

    The slot is not moved by it. A stream is read once and closed in any case.
    """

    #: How far the chunks reach, once they were read: the target, unless a limit was asked for.
    end_lsn: Lsn

    def chunks(self) -> Iterator[MessageChunk]:
        """Whole messages in stream order.

        Every transaction whose commit LSN lies in ``[checkpoint, end_lsn)`` is among them, completely.
        Transactions before and after may be too: the reader leaves them out.

        :raises SourceUnavailable: when the connection breaks.
        :raises PublicationMissing: when the server says that it skipped a publication.
        :raises SlotAheadOfCheckpoint: when the slot starts past the checkpoint.
        """
        ...

    def stop(self) -> None:
        """Make ``chunks`` end soon, or fail, in the thread that iterates; for calls from another one."""
        ...

    def close(self) -> None:
        """End the read and free the slot; no thread iterates any more. May be called twice."""
        ...
