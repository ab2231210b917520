"""Stage one batch: copies or changes, the checks before and after a read, and the seal.

``pipeline.py`` decides which of the two a run needs.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.answers import COPY
from airflow_provider_pgoutput.batch.earlier_systems import EarlierSystem
from airflow_provider_pgoutput.capture.copy.difference import stage_difference
from airflow_provider_pgoutput.capture.copy.repair import read_repairs
from airflow_provider_pgoutput.capture.copy.stage import copy_published
from airflow_provider_pgoutput.capture.request import ALWAYS
from airflow_provider_pgoutput.capture.schema.policy import CopyNeeded
from airflow_provider_pgoutput.capture.staging.batch import BatchFacts, WantedChanges
from airflow_provider_pgoutput.capture.staging.manifests import find_ending, remove_those_that_wait
from airflow_provider_pgoutput.capture.staging.repairs import RepairRefused
from airflow_provider_pgoutput.capture.start import after_loss
from airflow_provider_pgoutput.capture.stream.cut import Limits
from airflow_provider_pgoutput.capture.stream.read import Found, SlotReading
from airflow_provider_pgoutput.capture.stream.two_phase import TwoPhase
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import SlotBusy, SlotNotFound

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Manifest, SkippedTransaction
    from airflow_provider_pgoutput.capture.run import Run
    from airflow_provider_pgoutput.capture.server import PostgresSource
    from airflow_provider_pgoutput.capture.slot.replication_slot import ExportedSnapshot
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable, Server
    from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress
    from airflow_provider_pgoutput.capture.staging.repairs import Repairs
    from airflow_provider_pgoutput.capture.start import Start
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerRows:
    """Rows that the server of a run sends; see ``RowSource``."""

    source: PostgresSource

    def copy(
        self,
        batch: BatchInProgress,
        start: Start,
        tables: Sequence[PublishedTable],
        snapshot: ExportedSnapshot | None = None,
    ) -> Lsn:
        """See ``RowSource``."""
        return copy_published(self.source, batch, start, tables, snapshot)

    def repairs(self, start: Start) -> Repairs | None:
        """See ``RowSource``."""
        return read_repairs(self.source, start)

    def difference(
        self,
        batch: BatchInProgress,
        tables: Sequence[PublishedTable],
        snapshot: ExportedSnapshot,
        whole: Collection[int],
    ) -> tuple[PublishedTable, ...]:
        """See ``RowSource``."""
        return stage_difference(self.source, batch, tables, snapshot, whole)

    def open_slot(
        self, start: Start, target: Lsn, limits: Limits, two_phase: TwoPhase | None
    ) -> SlotReading:
        """See ``RowSource``."""
        settings = self.source.read_settings(start)
        return SlotReading(settings, start.reads_from, target, limits, two_phase)


def stage_changes(
    run: Run, start: Start, copied: Sequence[PublishedTable] = ()
) -> tuple[Manifest, str]:
    """Read, decode, cast and write the changes from ``start`` up to the target.

    :param copied: tables that are copied first, at a point of their own in the batch.
    """
    # A batch with copies has points of its own, and one that reads again goes past the lake.
    repairs = run.rows.repairs(start) if start.may_repair and not copied else None
    try:
        return _stage_changes(run, start, copied, repairs)
    except RepairRefused as refused:
        assert repairs is not None, "no row was read again"
        log.warning(
            "%s is not repaired, and the batch is staged once more, without a repair. %s",
            refused.table,
            refused.why,
        )
        return _stage_changes(run, start, copied, repairs.without(refused))


def _stage_changes(
    run: Run, start: Start, copied: Sequence[PublishedTable], repairs: Repairs | None
) -> tuple[Manifest, str]:
    request, target = run.request, run.source.read_target(start.lsn)
    if repairs is not None:
        target = repairs.point
    reach("stage.before_read")
    with _batch(run, start) as batch, _two_phase(run, start) as two_phase:
        if copied:
            target = max(target, run.rows.copy(batch, start, copied))
        limits = Limits()
        if start.has_limits and not batch.copied_at:
            # A batch with copies goes at least to the LSN of each copy, so no limit applies. The copies hold
            # the changes up to there. A copy that was refused, because of a lock for example, does not count.
            limits = Limits(request.max_changes, request.max_bytes, request.max_seconds)
        ends_after_facts = bool(copied) or repairs is not None or request.options.messages
        batch.want(
            WantedChanges(
                left_out=_published_since(run) if ends_after_facts else frozenset(),
                known=_only_known(run),
            )
        )
        found = _read(run, batch, start, target, limits, two_phase)
        if repairs is not None and found.end < repairs.point:
            log.info("A limit ended the batch at %s, so a later one repairs rows.", found.end)
            repairs = None
        if repairs is not None:
            for block in repairs.blocks:
                batch.repair(block)
        sealed = _seal(run, batch, start, found, two_phase)
    # Another run's batch lacks the rows.
    if repairs is not None and batch.is_sealed:
        repairs.settle_requests()
    return sealed


def stage_copies(
    run: Run,
    start: Start,
    tables: Sequence[PublishedTable],
    snapshot: ExportedSnapshot | None = None,
) -> tuple[Manifest, str]:
    """Stage a batch of copies: tables, up to the last point at which one of them was read.

    Changes of other tables are left out. In a first batch the lake has no rows of such a table. After a lost
    slot the changes are gone.

    :param snapshot: that of the slot's position; None: it is gone.
    """
    with _batch(run, start) as batch, _two_phase(run, start) as two_phase:
        batch.want(WantedChanges(only_copied=True))
        end = run.rows.copy(batch, start, tables, snapshot)
        if tables and not batch.copied_at and batch.passing.errors:
            # Nothing would be in the lake.
            raise batch.passing.errors[0]
        if start.reads_from == end:
            found = Found(end)
        elif any(point < end for point in batch.copied_at.values()):
            found = _read(run, batch, start, end, Limits(), two_phase)
        else:
            found = Found(end, skipped=_read_beside_copy(run, batch, start, end, two_phase))
        return _seal(run, batch, start, found, two_phase)


def stage_after_loss(
    run: Run, checkpoint: Checkpoint, tables: Sequence[PublishedTable]
) -> tuple[Manifest, str]:
    """Stage what the lake lacks after a lost slot: the rows in which it differs from the source.

    The slot is made anew, because only its snapshot shows what was there at its first position. An attempt
    that died leaves nothing that this one needs.
    """
    source, request = run.source, run.request
    whole = {each.relation_oid for each in tables if each.name in request.copy_tables}
    while True:
        if (slot := source.read_slot()) is not None:
            source.drop_slot(slot)
        with source.create_slot() as snapshot:
            start = after_loss(request, checkpoint, snapshot.consistent_point)
            log.info("Created slot %s at %s.", request.slot_name, start.reads_from)
            try:
                return _stage_difference(run, start, tables, snapshot, whole)
            except RepairRefused as refused:
                log.warning("%s has to be copied: %s", refused.table, refused.why)
                oid = refused.relation_oid
            except CopyNeeded as needed:
                oid = needed.relation_oid
        # A table that the batch copies never asks for a copy, so the loop ends.
        assert oid not in whole, "a table that the batch copies asked for a copy"
        whole.add(oid)


def _stage_difference(
    run: Run,
    start: Start,
    tables: Sequence[PublishedTable],
    snapshot: ExportedSnapshot,
    whole: Collection[int],
) -> tuple[Manifest, str]:
    with _batch(run, start) as batch, _two_phase(run, start) as two_phase:
        copied = run.rows.difference(batch, tables, snapshot, whole)
        end = run.rows.copy(batch, start, copied, snapshot)
        if copied and len(copied) == len(tables) and not batch.copied_at and batch.passing.errors:
            # Nothing would be in the lake.
            raise batch.passing.errors[0]
        batch.want(WantedChanges(left_out=_published_since(run), known=_only_known(run)))
        if end == start.reads_from:
            found = Found(end)
            _refuse_moved(run, start)
        else:
            found = _read(run, batch, start, end, Limits(), two_phase)
        remove_those_that_wait(run.source.area, run.request.slot_name, start.lsn)
        return _seal(run, batch, start, found, two_phase)


@contextlib.contextmanager
def _batch(run: Run, start: Start) -> Iterator[BatchInProgress]:
    """A batch in progress. Nothing of it remains when it fails."""
    batch = run.source.new_batch(start.lsn, run.refused.followed)
    for oid, (name, error) in run.refused.errors.items():
        batch.passing.leave_out(oid, name, start.lsn, error)
    try:
        yield batch
    except BaseException:
        batch.abandon()
        raise


@contextlib.contextmanager
def _two_phase(run: Run, start: Start) -> Iterator[TwoPhase | None]:
    """The prepared transactions that wait at the start of the batch; None: ``two_phase`` is off."""
    source, request = run.source, run.request
    if not source.options.two_phase:
        yield None
        return
    system, reads_from = source.server.system_identifier, start.reads_from
    earlier = find_ending(source.area, request.slot_name, system, reads_from)
    if earlier is None and request.checkpoint is not None:
        log.warning(
            "The batch that ended at %s is not in the staging area any more: a transaction that was"
            " prepared before it can no longer be applied.",
            reads_from,
        )
    with TwoPhase(
        source.area,
        reads_from,
        earlier,
        commits_without_prepare=source.options.commits_without_prepare,
    ) as two_phase:
        yield two_phase


def _published_since(run: Run) -> frozenset[int]:
    """OIDs of tables that were published since the run began; the next run copies them.

    A batch that ends after that moment may hold changes of such a table but no copy. They are left out.
    """
    if run.request.initial_copy != ALWAYS:
        return frozenset()
    now = {each.relation_oid for each in run.source.read_tables()}
    return frozenset(now - {each.relation_oid for each in run.facts.tables})


def _only_known(run: Run) -> frozenset[int] | None:
    """OIDs of the tables that the lake has: the batch leaves out changes of all others. None: of no table.

    Among the others may be a table that was published for a while only. The list of published tables does not
    have it any more.
    """
    checkpoint = run.request.checkpoint
    known = None if checkpoint is None else checkpoint.tables
    return None if run.request.on_new_table == COPY or known is None else frozenset(known)


def _read(
    run: Run,
    batch: BatchInProgress,
    start: Start,
    target: Lsn,
    limits: Limits,
    two_phase: TwoPhase | None,
) -> Found:
    """Read the slot until the batch is complete."""
    with run.rows.open_slot(start, target, limits, two_phase) as reading:
        _refuse_moved(run, start)
        found = reading.into(batch)
    _refuse_moved(run, start)
    return found


def _read_beside_copy(
    run: Run, batch: BatchInProgress, start: Start, end: Lsn, two_phase: TwoPhase | None
) -> tuple[SkippedTransaction, ...]:
    """Read what a copy does not hold: logical messages and prepared transactions from before it."""
    if two_phase is None and not run.source.options.messages:
        return ()
    with run.rows.open_slot(start, end, Limits(), two_phase) as reading:
        _refuse_moved(run, start)
        skipped = reading.beside_copy(batch)
    _refuse_moved(run, start)
    return skipped


def _seal(
    run: Run, batch: BatchInProgress, start: Start, found: Found, two_phase: TwoPhase | None
) -> tuple[Manifest, str]:
    """Complete the batch: its files, the catalogs once more, the manifest."""
    batch.finish_files()
    facts = BatchFacts(
        publication_names=tuple(run.request.publication_names),
        end=found.end,
        catalog=run.source.read_after(batch, start, run.facts, found),
        transactions=found.transactions,
        last_commit_time=found.last_commit_time,
        complete_until=_complete_until(run.source.server, found),
        prepared=() if two_phase is None else two_phase.write(batch, found.end),
        loaded_lsn=start.loaded_lsn,
        published=run.facts.published,
        skipped=found.skipped,
        skip_lsns=start.skip_lsns,
        lake_lsn=start.lake_lsn,
        adopted_from=_adopted_from(run),
        earlier_timelines=run.earlier_timelines,
    )
    return batch.seal(run.source.server_now, facts)


def _complete_until(server: Server, found: Found) -> str | None:
    """Up to which time a lake with the batch has all transactions; see ``Manifest``.

    :param server: as it was when the run began.
    """
    if found.end < server.flush_lsn:
        # A limit or a verification ended it.
        return found.last_commit_time
    return None if server.time is None else server.time.astimezone(UTC).isoformat()


def _adopted_from(run: Run) -> tuple[EarlierSystem, ...]:
    """The systems from which the lake was filled before the one that the run reads."""
    checkpoint = run.request.checkpoint
    if checkpoint is None:
        return ()
    earlier, before = checkpoint.adopted_from, checkpoint.system_identifier
    if before == run.source.server.system_identifier:
        return earlier
    offset = str(run.source.server.lsn_offset)
    return (*earlier, EarlierSystem(before, str(checkpoint.end_lsn), offset))


def _refuse_moved(run: Run, start: Start) -> None:
    """Refuse if the slot was moved since this run looked at it.

    The server would begin at the later position and say nothing.
    """
    slot, slot_name = run.source.read_slot(), run.request.slot_name
    if slot is None or slot.confirmed_flush_lsn is None:
        raise SlotNotFound("The slot was dropped while it was read.", slot=slot_name)
    if slot.confirmed_flush_lsn > start.reads_from:
        raise SlotBusy(
            "Another run moved the slot since this one began; nothing was staged.",
            slot=slot_name,
            lsn=start.reads_from,
            advice="let one run at a time use the slot (max_active_runs=1).",
        )
