"""Read the slot into a batch: decode, cast and write what committed up to the batch's end.

What is not here: how the bytes travel (``source/``), how they are decoded (``pgoutput/``), and which way a
run takes (``pipeline.py``).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.crash_points import reach
from airflow_provider_pgoutput.capture.copying import copy_published
from airflow_provider_pgoutput.capture.drain import (
    commit_time,
    drain,
    located,
    no_garbage_collection,
)
from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.progress import Progress
from airflow_provider_pgoutput.capture.request import SQL, WALSENDER
from airflow_provider_pgoutput.capture.source.publication_watch import (
    check_publications_throughout,
)
from airflow_provider_pgoutput.capture.source.slot import check_not_ahead, read_slot
from airflow_provider_pgoutput.capture.source.sql_stream import SqlStream
from airflow_provider_pgoutput.capture.source.stream import SlotRead
from airflow_provider_pgoutput.capture.source.target import read_record_end
from airflow_provider_pgoutput.capture.source.walsender_stream import WalsenderStream
from airflow_provider_pgoutput.capture.staging.cut import BatchCut, Limits
from airflow_provider_pgoutput.errors import SlotBusy, SlotNotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.context import CaptureContext
    from airflow_provider_pgoutput.capture.request import CaptureRequest
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.source.slot import ExportedSnapshot
    from airflow_provider_pgoutput.capture.source.stream import ChangeStream
    from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress
    from airflow_provider_pgoutput.capture.staging.prepared import TwoPhase


def stage_changes(
    context: CaptureContext, start: Lsn, copied: Sequence[PublishedTable] = ()
) -> tuple[Manifest, str]:
    """Read, decode, cast and write the changes from ``start`` up to the target.

    :param copied: tables that are copied first, at a point of their own in the batch.
    """
    request, target = context.request, _target(context)
    limits = Limits(request.max_changes, request.max_bytes, request.max_seconds)
    if request.start_lsn == start:
        # What a load from outside holds already lies in one batch with all that came by now: then the
        # last state of a row wins, whatever the load found of it.
        limits = Limits()
    reach("stage.before_read")
    with context.batch(start) as batch, context.two_phase(start) as two_phase:
        if copied:
            # The batch has to reach the copies: what comes between is in them already.
            target = max(target, copy_published(context, batch, start, copied))
            limits = Limits()
        read = _read(context, batch, start, target, limits, two_phase)
        return _seal(context, batch, read, two_phase)


def stage_copies(
    context: CaptureContext,
    start: Lsn,
    tables: Sequence[PublishedTable],
    snapshot: ExportedSnapshot | None = None,
    reads_from: Lsn | None = None,
) -> tuple[Manifest, str]:
    """Stage a batch of copies: tables, up to the last point at which one of them was read.

    Changes of other tables are left out: the lake has nothing that they could change, or they are lost.

    :param snapshot: that of the slot's position; None: it is gone.
    :param reads_from: the slot's position, when that is past ``start``; what a table's copy lacks is read
        from there on, so no older copy of it may be taken over.
    """
    reads_from = reads_from or start
    with context.batch(start) as batch, context.two_phase(reads_from) as two_phase:
        batch.only_copied = True
        end = copy_published(context, batch, reads_from, tables, snapshot)
        if reads_from == end:
            return _seal(context, batch, _Read(end), two_phase)
        if any(point < end for point in batch.copied_at.values()):
            read = _read(context, batch, reads_from, end, Limits(), two_phase)
            return _seal(context, batch, read, two_phase)
        _read_beside_copy(context, batch, reads_from, end, two_phase)
        return _seal(context, batch, _Read(end), two_phase)


@dataclass(frozen=True, slots=True)
class _Read:
    """What a read of the slot found, for the manifest."""

    end: Lsn
    #: Whether row changes were read, not only what stands beside them.
    changes: bool = False
    transactions: int = 0
    last_commit_time: str | None = None


def _read(
    context: CaptureContext,
    batch: BatchInProgress,
    start: Lsn,
    target: Lsn,
    limits: Limits,
    two_phase: TwoPhase | None,
) -> _Read:
    """Read the slot from ``start`` until the batch is complete."""
    cut = BatchCut(start, target, limits)
    prepared = None if two_phase is None else two_phase.transactions
    with (
        contextlib.closing(_open_stream(context, start, target, two_phase)) as stream,
        no_garbage_collection(),
        located(context.request.slot_name, cut),
    ):
        check_not_ahead(_confirmed(context), start, context.request.slot_name)
        decoder = _decoder(context, start, target)
        drain(stream, cut, batch, decoder, Progress(start, target), prepared)
    _refuse_moved(context, start)
    commit = decoder.last_commit if decoder.transactions else None
    return _Read(
        end=cut.end_lsn,
        changes=True,
        transactions=decoder.transactions,
        last_commit_time=None if commit is None else commit_time(commit.committed_at_us),
    )


def _read_beside_copy(
    context: CaptureContext,
    batch: BatchInProgress,
    start: Lsn,
    end: Lsn,
    two_phase: TwoPhase | None,
) -> None:
    """Read what came before a copy and is not in it: logical messages, and what was prepared.

    Of the latter the server will send no more than its commit.
    """
    if two_phase is None and not context.options.messages:
        return
    cut, decoder = BatchCut(start, end, Limits()), _decoder(context, start, end)
    stream = _open_stream(context, start, end, two_phase)
    with contextlib.closing(stream), located(context.request.slot_name, cut):
        for chunk in stream.chunks():
            if context.options.messages and not cut.finished:
                decoder.decode(cut.take(chunk))
            for messages in decoder.take_messages():
                batch.add_messages(messages)


def _seal(
    context: CaptureContext, batch: BatchInProgress, read: _Read, two_phase: TwoPhase | None
) -> tuple[Manifest, str]:
    """Complete the batch: files, the publications once more, manifest."""
    batch.finish_files()
    context.check_publications()
    request = context.request
    if read.changes and context.server.major >= 18 and request.transport == SQL:
        check_publications_throughout(
            context.session, request.slot_name, context.publication_names, read.end
        )
    return batch.seal(
        context.server,
        context.publication_names,
        read.end,
        names=context.names(batch),
        history=context.history(batch.relation_oids),
        transactions=read.transactions,
        last_commit_time=read.last_commit_time,
        prepared=() if two_phase is None else two_phase.write(batch, read.end),
        loaded_lsn=context.request.start_lsn,
        published=context.marks,
    )


def _target(context: CaptureContext) -> Lsn:
    """Where the batch ends when no limit ends it before; decided once, before anything is read."""
    if context.request.options.messages:
        return read_record_end(context.session)
    return context.server.flush_lsn


def _decoder(context: CaptureContext, start: Lsn, end: Lsn) -> Decoder:
    skip_origins, binary = context.options.skip_origins, context.options.binary
    return Decoder(start, end, skip_origins=skip_origins, binary=binary)


def _open_stream(
    context: CaptureContext, start: Lsn, target: Lsn, two_phase: TwoPhase | None
) -> ChangeStream:
    request = context.request
    read = SlotRead(request.conninfo, request.slot_name, context.options, start, target, two_phase)
    if request.transport == WALSENDER:
        return WalsenderStream(read)
    return SqlStream(read, max_messages=_max_messages(request))


def _max_messages(request: CaptureRequest) -> int | None:
    """Messages that the limits let through, roughly; None: no limit."""
    if request.max_changes is not None:
        return max(10_000, request.max_changes + request.max_changes // 4)
    limited = request.max_bytes is not None or request.max_seconds is not None
    return 200_000 if limited else None


def _confirmed(context: CaptureContext) -> Lsn:
    slot = read_slot(context.session, context.request.slot_name)
    if slot is None or slot.confirmed_flush_lsn is None:
        raise SlotNotFound(
            "The slot was dropped while it was read.", slot=context.request.slot_name
        )
    return slot.confirmed_flush_lsn


def _refuse_moved(context: CaptureContext, start: Lsn) -> None:
    """The server silently begins later when the slot was moved between our look and the read."""
    if _confirmed(context) > start:
        raise SlotBusy(
            "Another run moved the slot while it was read; nothing was staged.",
            slot=context.request.slot_name,
            lsn=start,
            advice="let one run at a time use the slot (max_active_runs=1).",
        )
