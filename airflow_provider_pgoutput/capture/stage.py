"""Stage a batch: what committed up to its end, or copies; the checks before and after a read, and the seal.

What is not here: one read of the slot (``slot_reading.py``), and which way a run takes (``pipeline.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airflow_provider_pgoutput.capture.copy.stage import copy_published
from airflow_provider_pgoutput.capture.source.flush_position import read_record_end
from airflow_provider_pgoutput.capture.staging.batch import BatchFacts
from airflow_provider_pgoutput.capture.stream.cut import Limits
from airflow_provider_pgoutput.capture.stream.missed_publications import (
    check_publications_throughout,
)
from airflow_provider_pgoutput.capture.stream.options import SQL
from airflow_provider_pgoutput.capture.stream.read import Found, SlotReading
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import SlotBusy, SlotNotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Manifest, SkippedTransaction
    from airflow_provider_pgoutput.capture.run import CaptureContext
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.source.slot import ExportedSnapshot
    from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress
    from airflow_provider_pgoutput.capture.start import Start
    from airflow_provider_pgoutput.capture.stream.two_phase import TwoPhase


class RowSource(Protocol):
    """Where the rows of a batch come from. The simulation brings its own."""

    def copy(
        self,
        batch: BatchInProgress,
        start: Start,
        tables: Sequence[PublishedTable],
        snapshot: ExportedSnapshot | None = None,
    ) -> Lsn:
        """Stage tables as they were at points of their own; return the greatest of those."""
        ...

    def open_slot(
        self, start: Start, target: Lsn, limits: Limits, two_phase: TwoPhase | None
    ) -> SlotReading:
        """Begin to read the slot."""
        ...


@dataclass(frozen=True, slots=True)
class ServerRows:
    """Rows that the server of a run sends."""

    context: CaptureContext

    def copy(
        self,
        batch: BatchInProgress,
        start: Start,
        tables: Sequence[PublishedTable],
        snapshot: ExportedSnapshot | None = None,
    ) -> Lsn:
        """See ``RowSource``."""
        return copy_published(self.context, batch, start, tables, snapshot)

    def open_slot(
        self, start: Start, target: Lsn, limits: Limits, two_phase: TwoPhase | None
    ) -> SlotReading:
        """See ``RowSource``."""
        settings = self.context.read_settings(start)
        return SlotReading(settings, start.reads_from, target, limits, two_phase)


def stage_changes(
    context: CaptureContext, rows: RowSource, start: Start, copied: Sequence[PublishedTable] = ()
) -> tuple[Manifest, str]:
    """Read, decode, cast and write the changes from ``start`` up to the target.

    :param copied: tables that are copied first, at a point of their own in the batch.
    """
    request, target = context.request, _target(context)
    limits = Limits()
    if start.has_limits and not copied:
        # A batch with copies has to reach them: they hold already what comes between.
        limits = Limits(request.max_changes, request.max_bytes, request.max_seconds)
    reach("stage.before_read")
    with context.batch(start.lsn) as batch, context.two_phase(start.reads_from) as two_phase:
        if copied:
            target = max(target, rows.copy(batch, start, copied))
        # A target that was taken late may lie past a table's publication: its copy is the next run's.
        batch.left_out = context.published_since_begin()
        batch.only = context.only_known()
        read = _read(context, rows, batch, start, target, limits, two_phase)
        return _seal(context, batch, start, read, two_phase)


def stage_copies(
    context: CaptureContext,
    rows: RowSource,
    start: Start,
    tables: Sequence[PublishedTable],
    snapshot: ExportedSnapshot | None = None,
) -> tuple[Manifest, str]:
    """Stage a batch of copies: tables, up to the last point at which one of them was read.

    Changes of other tables are left out: the lake has nothing that they could change, or they are lost.

    :param snapshot: that of the slot's position; None: it is gone.
    """
    with context.batch(start.lsn) as batch, context.two_phase(start.reads_from) as two_phase:
        batch.only_copied = True
        end = rows.copy(batch, start, tables, snapshot)
        if start.reads_from == end:
            return _seal(context, batch, start, Found(end), two_phase)
        if any(point < end for point in batch.copied_at.values()):
            read = _read(context, rows, batch, start, end, Limits(), two_phase)
            return _seal(context, batch, start, read, two_phase)
        skipped = _read_beside_copy(context, rows, batch, start, end, two_phase)
        return _seal(context, batch, start, Found(end, skipped=skipped), two_phase)


def _read(
    context: CaptureContext,
    rows: RowSource,
    batch: BatchInProgress,
    start: Start,
    target: Lsn,
    limits: Limits,
    two_phase: TwoPhase | None,
) -> Found:
    """Read the slot until the batch is complete."""
    with rows.open_slot(start, target, limits, two_phase) as reading:
        _refuse_moved(context, start.reads_from)
        found = reading.into(batch)
    _refuse_moved(context, start.reads_from)
    return found


def _read_beside_copy(
    context: CaptureContext,
    rows: RowSource,
    batch: BatchInProgress,
    start: Start,
    end: Lsn,
    two_phase: TwoPhase | None,
) -> tuple[SkippedTransaction, ...]:
    """Read what came before a copy and is not in it: logical messages, and what was prepared."""
    if two_phase is None and not context.options.messages:
        return ()
    with rows.open_slot(start, end, Limits(), two_phase) as reading:
        _refuse_moved(context, start.reads_from)
        skipped = reading.beside_copy(batch)
    _refuse_moved(context, start.reads_from)
    return skipped


def _seal(
    context: CaptureContext,
    batch: BatchInProgress,
    start: Start,
    read: Found,
    two_phase: TwoPhase | None,
) -> tuple[Manifest, str]:
    """Complete the batch: files, the publications once more, manifest."""
    batch.finish_files()
    context.check_publications()
    context.check_partitions(batch, start)
    request = context.request
    if read.changes and context.server.major >= 18 and read.transport == SQL:
        check_publications_throughout(
            context.session, request.slot_name, context.publication_names, read.end
        )
    facts = BatchFacts(
        publication_names=context.publication_names,
        end=read.end,
        names=context.names(batch),
        history=context.history(batch.relation_oids),
        transactions=read.transactions,
        last_commit_time=read.last_commit_time,
        prepared=() if two_phase is None else two_phase.write(batch, read.end),
        loaded_lsn=start.loaded_lsn,
        published=context.marks,
        skipped=read.skipped,
        skip_lsns=start.skip_lsns,
        lake_lsn=start.lake_lsn,
        unpublished=context.unpublished(batch),
    )
    return batch.seal(context.server_now, facts)


def _target(context: CaptureContext) -> Lsn:
    """Where the batch ends when no limit ends it before; decided once, before anything is read."""
    if context.request.options.messages:
        return read_record_end(context.session)
    return context.server.flush_lsn


def _confirmed(context: CaptureContext) -> Lsn:
    slot = context.read_slot()
    if slot is None or slot.confirmed_flush_lsn is None:
        raise SlotNotFound(
            "The slot was dropped while it was read.", slot=context.request.slot_name
        )
    return slot.confirmed_flush_lsn


def _refuse_moved(context: CaptureContext, start: Lsn) -> None:
    """The server silently begins later when the slot was moved between our look and the read."""
    if _confirmed(context) > start:
        raise SlotBusy(
            "Another run moved the slot since this one began; nothing was staged.",
            slot=context.request.slot_name,
            lsn=start,
            advice="let one run at a time use the slot (max_active_runs=1).",
        )
