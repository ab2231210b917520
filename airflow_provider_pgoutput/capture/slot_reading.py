"""One read of the slot into a batch: the stream, the decoder, and where it is cut.

What is not here: where a batch starts and ends, and the checks around a read (``reading.py``).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.manifest import SkippedTransaction
from airflow_provider_pgoutput.capture.drain import (
    commit_time,
    drain,
    located,
    no_garbage_collection,
)
from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.pgoutput.reassemble import UnstreamedAborts
from airflow_provider_pgoutput.capture.progress import Progress
from airflow_provider_pgoutput.capture.request import AUTO, SQL, WALSENDER
from airflow_provider_pgoutput.capture.source.room import Backlog, against_sql, read_room
from airflow_provider_pgoutput.capture.source.sql_stream import SLICE_MESSAGES, SqlStream
from airflow_provider_pgoutput.capture.source.stream import SlotRead
from airflow_provider_pgoutput.capture.source.walsender_stream import WalsenderStream
from airflow_provider_pgoutput.capture.staging.cut import BatchCut, Limits
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.context import CaptureContext
    from airflow_provider_pgoutput.capture.source.stream import ChangeStream
    from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress
    from airflow_provider_pgoutput.capture.staging.prepared import TwoPhase

log = logging.getLogger(__name__)

#: The first slice of a read that a limit on bytes or seconds ends soon.
_SOME_MESSAGES = 200_000
#: A limit on seconds that lets some parts through.
_LONG_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Found:
    """What a read of the slot found, for the manifest."""

    end: Lsn
    #: Whether row changes were read, not only what stands beside them.
    changes: bool = False
    transactions: int = 0
    last_commit_time: str | None = None
    skipped: tuple[SkippedTransaction, ...] = ()
    #: How they were read.
    transport: str = SQL


class SlotReading:
    """An open read of the slot, from ``start`` up to ``target``; to be closed in any case.

    :param limits: when the batch may end before that.
    """

    def __init__(
        self,
        context: CaptureContext,
        start: Lsn,
        target: Lsn,
        limits: Limits,
        two_phase: TwoPhase | None,
    ) -> None:
        self._context = context
        self._start, self._target, self._limits = start, target, limits
        self._prepared = None if two_phase is None else two_phase.transactions
        self._transport = _choose_transport(context, start, target, two_phase)
        self._unstreamed = UnstreamedAborts()
        self._stream = self._open_stream(two_phase)

    def into(self, batch: BatchInProgress) -> Found:
        """Read until the batch is complete: at the target, or at the first commit past a limit."""
        cut = BatchCut(self._start, self._target, self._limits)
        with no_garbage_collection(), located(self._context.request.slot_name, cut):
            decoder, progress = self._decoder(), Progress(self._start, self._target)
            self._context.describer.announced = decoder.types
            drain(self._stream, cut, batch, decoder, progress, self._prepared)
        self._log_unstreamed()
        commit = decoder.last_commit if decoder.transactions else None
        return Found(
            end=cut.end_lsn,
            changes=True,
            transactions=decoder.transactions,
            last_commit_time=None if commit is None else commit_time(commit.committed_at_us),
            skipped=self._skipped(decoder, cut.end_lsn),
            transport=self._transport,
        )

    def _skipped(self, decoder: Decoder, end: Lsn) -> tuple[SkippedTransaction, ...]:
        """What was left out on request.

        :raises ConfigurationError: a position that was given is in the batch and no commit's.
        """
        slot_name, found = self._context.request.slot_name, decoder.skipped
        for lsn in sorted(self._context.skip_lsns):
            if self._start <= lsn < end and lsn not in found:
                raise ConfigurationError(
                    "No transaction of the batch that is read commits at this LSN of skip_lsns.",
                    slot=slot_name,
                    lsn=lsn,
                    advice="give the LSN that the error names, which is that of the commit record.",
                )
        for lsn, changes in sorted(found.items()):
            log.warning(
                "Slot %s: the transaction that committed at %s is left out on request: %s row changes.",
                slot_name,
                lsn,
                f"{changes:,}",
            )
        return tuple(SkippedTransaction(str(lsn), count) for lsn, count in sorted(found.items()))

    def beside_copy(self, batch: BatchInProgress) -> tuple[SkippedTransaction, ...]:
        """Read what came before a copy and is not in it: logical messages, and what was prepared.

        Of the latter the server will send no more than its commit.

        :returns: what was left out on request.
        """
        cut, decoder = BatchCut(self._start, self._target, Limits()), self._decoder()
        with located(self._context.request.slot_name, cut):
            for chunk in self._stream.chunks():
                if self._context.options.messages and not cut.finished:
                    decoder.decode(cut.take(chunk))
                for messages in decoder.take_messages():
                    batch.add_messages(messages)
        self._log_unstreamed()
        return self._skipped(decoder, self._target) if self._context.options.messages else ()

    def _log_unstreamed(self) -> None:
        if count := len(self._unstreamed):
            log.info(
                "Slot %s: the server told of %s rolled back transactions of which it had sent nothing; they"
                " change nothing.",
                self._context.request.slot_name,
                f"{count:,}",
            )

    def close(self) -> None:
        """End the read and free the slot."""
        self._stream.close()

    def __enter__(self) -> SlotReading:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _decoder(self) -> Decoder:
        options = self._context.options
        return Decoder(
            self._start,
            self._target,
            skip_origins=options.skip_origins,
            skip_lsns=self._context.skip_lsns | self._context.left_out,
        )

    def _open_stream(self, two_phase: TwoPhase | None) -> ChangeStream:
        request, options = self._context.request, self._context.options
        read = SlotRead(
            request.conninfo,
            request.slot_name,
            options,
            self._start,
            self._target,
            two_phase,
            self._unstreamed,
        )
        if self._transport == WALSENDER:
            return WalsenderStream(read)
        return SqlStream(
            read,
            connections=request.decode_parallelism,
            max_messages=_max_messages(self._limits, request.part_bytes, is_cut=two_phase is None),
            part_bytes=request.part_bytes,
        )


def _choose_transport(
    context: CaptureContext, start: Lsn, target: Lsn, two_phase: TwoPhase | None
) -> str:
    """What was asked for; with ``auto``, SQL unless something speaks against it."""
    request = context.request
    if request.transport != AUTO:
        return request.transport
    backlog = Backlog(target - start, request.part_bytes, is_cut=two_phase is None)
    reason = against_sql(read_room(context.session, context.request.slot_name), backlog)
    if reason is None:
        return SQL
    log.info("Slot %s is read over the walsender: %s.", request.slot_name, reason)
    return WALSENDER


def _max_messages(limits: Limits, part_bytes: int, *, is_cut: bool) -> int | None:
    """Messages that the limits let through, roughly; None: no limit, or more than it pays to read in slices.

    A limit ends a read that is cut in parts at the same commit; what was decoded past it is dropped.
    """
    found = []
    if limits.max_changes is not None:
        found.append(max(10_000, limits.max_changes + limits.max_changes // 4))
    if limits.max_bytes is not None and (limits.max_bytes < part_bytes or not is_cut):
        found.append(_SOME_MESSAGES)
    if limits.max_seconds is not None and (limits.max_seconds < _LONG_SECONDS or not is_cut):
        found.append(_SOME_MESSAGES)
    most = min(found, default=None)
    return None if most is None or (is_cut and most >= SLICE_MESSAGES) else most
