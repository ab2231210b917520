"""Start here: the whole capture of one batch on one screen, ``stage_batch``.

A batch is all transactions with ``start <= commit LSN < end``. Where it starts is the lake's checkpoint;
where it ends is decided once, before reading. The slot is created here when there is none. It is moved
here only with ``advance="after_stage"``, once the batch is sealed; else the lake has to hold it first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.answers import COPY
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.fallback import Tries
from airflow_provider_pgoutput.capture.membership import (
    begins_a_lake,
    holds_copies,
    tables_to_copy,
    without_ignored,
)
from airflow_provider_pgoutput.capture.request import AFTER_STAGE, ALWAYS, NEVER
from airflow_provider_pgoutput.capture.run import CaptureContext
from airflow_provider_pgoutput.capture.schema.differences import unfollowable
from airflow_provider_pgoutput.capture.schema.policy import CopyNeeded
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.capture.source.errors import of_slot
from airflow_provider_pgoutput.capture.source.locks import holders_named
from airflow_provider_pgoutput.capture.source.slot import (
    check_failover,
    check_not_ahead,
    check_slot,
    check_start,
    check_two_phase_start,
    check_wal_level,
)
from airflow_provider_pgoutput.capture.source.slot_warnings import warn_of_dangers
from airflow_provider_pgoutput.capture.stage import ServerRows, stage_changes, stage_copies
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.manifests import (
    find_bridge,
    find_sealed,
    make_sure,
    warn_of_skipped,
)
from airflow_provider_pgoutput.capture.start import after_loss, first, following
from airflow_provider_pgoutput.capture.start_position import (
    begin_again,
    check_source,
    is_of_the_load,
    last_batch,
    last_known,
)
from airflow_provider_pgoutput.errors import (
    PgoutputError,
    SlotAheadOfCheckpoint,
    SlotLost,
    SlotNotFound,
)

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.request import CaptureRequest
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.source.slot_facts import SlotFacts
    from airflow_provider_pgoutput.capture.stage import RowSource
    from airflow_provider_pgoutput.capture.start import Start
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

log = logging.getLogger(__name__)


def stage_batch(request: CaptureRequest) -> tuple[Manifest, str]:
    """Stage the next batch of a slot, or find the one that an earlier attempt sealed.

    A server that cannot give it as asked is asked again in a way that it can, see ``second_try.py``.

    :returns: the manifest of the sealed batch and its URI.
    :raises PgoutputError: see ``errors.py``; the slot was not moved then, and no batch was sealed, but for
        ``advance="after_stage"``, where a sealed batch waits for the next run.
    """
    tries = Tries(request)
    while True:
        try:
            sealed = _stage_once(tries.request)
        except PgoutputError as error:
            tries.again(error)
        else:
            tries.succeeded()
            return sealed


def _stage_once(request: CaptureRequest) -> tuple[Manifest, str]:
    area = StagingArea(request.staging_uri)
    with (
        of_slot(request.slot_name),
        sessions.connect(request.conninfo, slot=request.slot_name) as session,
        holders_named(session, slot=request.slot_name),
    ):
        sessions.limit_lock_waits(session)
        # The flush LSN in here is the batch's target: taken once, before anything is read.
        server = read_server(session, request.conninfo)
        context = CaptureContext(request, area, session, server)
        return stage_in(context, ServerRows(context))


def stage_in(context: CaptureContext, rows: RowSource) -> tuple[Manifest, str]:
    """Take the way to a batch that the slot, the request and the lake leave; see ``stage_batch``."""
    request = context.request
    sealed = _sealed_in(context, rows)
    # Without a checkpoint nothing would tell a later run that this is the batch to begin with.
    if request.advance == AFTER_STAGE and request.checkpoint is not None:
        slot = context.read_slot()
        # A batch that was sealed before its slot was lost is applied all the same.
        if slot is not None and not slot.is_lost:
            make_sure(context.area, *sealed)
            context.confirm(sealed[0].end_lsn)
    return sealed


def _sealed_in(context: CaptureContext, rows: RowSource) -> tuple[Manifest, str]:
    request, server = context.request, context.server
    check_wal_level(server)
    slot = context.read_slot()
    two_phase = request.options.two_phase
    try:
        confirmed = None if slot is None else check_slot(slot, server, two_phase=two_phase)
    except SlotLost:
        if request.on_slot_lost != COPY or (
            request.checkpoint is None and request.initial_copy == NEVER
        ):
            raise
        confirmed = None
    if slot is not None:
        warn_of_dangers(
            slot, seconds_between_runs=request.seconds_between_runs, failover=request.failover
        )
    capture = _Capture(context, rows)
    context.check_publications()
    context.check_forms()
    context.take_marks()
    if request.checkpoint is not None:
        return capture.next_batch(request.checkpoint, slot, confirmed)
    if slot is not None and confirmed is None:
        # Lost before anything of it was applied.
        context.drop_slot(slot)
    if slot is None or confirmed is None:
        return capture.first_batch()
    return capture.first_batch_of_existing_slot(slot)


class _Capture:
    """The ways to a batch; each ends with a sealed one."""

    def __init__(self, context: CaptureContext, rows: RowSource) -> None:
        self._context, self._rows = context, rows
        self._request = context.request

    def first_batch(self) -> tuple[Manifest, str]:
        """Create the slot and stage all tables as they were at its first position."""
        slot_name = self._request.slot_name
        if self._request.start_lsn is not None:
            raise SlotNotFound(
                "There is no slot, so the changes since start_lsn are not kept.",
                slot=slot_name,
                lsn=self._request.start_lsn,
                advice="make the slot before the tables are loaded, with "
                f"pg_create_logical_replication_slot('{slot_name}', 'pgoutput'); load them; then give the "
                "LSN that it returned.",
            )
        if self._request.initial_copy == ALWAYS:
            self._context.check_may_copy(self._context.published())
        check_failover(self._context.server, failover=self._request.failover)
        with self._context.create_slot() as snapshot:
            point = snapshot.consistent_point
            log.info("Created slot %s at %s.", slot_name, point)
            start = first(self._request, point)
            return stage_copies(self._context, self._rows, start, self._first_tables(), snapshot)

    def first_batch_of_existing_slot(self, slot: SlotFacts) -> tuple[Manifest, str]:
        """The slot was made by somebody, or by an attempt that died during its copy."""
        request, confirmed = self._request, slot.confirmed_flush_lsn
        assert confirmed is not None, "check_slot refuses a slot without a position"
        start = first(request, request.start_lsn or confirmed)
        if request.start_lsn is not None:
            check_start(slot, start.lsn, self._context.server)
        if request.advance == AFTER_STAGE:
            self._refuse_lost_checkpoint(confirmed)
        found = self._find_sealed(start.lsn)
        if found and begins_a_lake(found[0], request):
            return found
        if request.initial_copy == NEVER:
            self._context.warn_of_membership_changes()
            tables = tables_to_copy(self._context.published(), None, request)
            self._context.check_may_copy(tables)
            return stage_changes(self._context, self._rows, start, tables)
        self._context.check_may_copy(self._context.published())
        log.info("Slot %s starts at %s.", request.slot_name, confirmed)
        return stage_copies(self._context, self._rows, start, self._first_tables())

    def _refuse_lost_checkpoint(self, confirmed: Lsn) -> None:
        """Where stage runs move the slot, what it has passed may wait in the staging area."""
        context, slot_name = self._context, self._request.slot_name
        before = Lsn(confirmed - 1)
        if find_bridge(context.area, slot_name, context.server, before, confirmed) is not None:
            raise SlotAheadOfCheckpoint(
                f"The lake has no checkpoint, and the slot, at {confirmed}, has passed a sealed batch.",
                slot=slot_name,
                lsn=confirmed,
                advice="if the checkpoint table was lost, rebuild it with airflow pgoutput doctor --repair;"
                " to begin anew, drop the slot first, or empty the slot's folder of the staging area.",
            )

    def next_batch(
        self, checkpoint: Checkpoint, slot: SlotFacts | None, confirmed: Lsn | None
    ) -> tuple[Manifest, str]:
        """Stage what committed since the checkpoint.

        :param confirmed: position of the slot; None: there is none that could be read.
        """
        check_source(self._context, checkpoint)
        if self._request.start_lsn is not None:
            last = last_known(self._context.area, self._request.slot_name, checkpoint)
            if not is_of_the_load(self._request, checkpoint, last):
                return self._read_again(checkpoint, slot, confirmed, last)
        if confirmed is not None and confirmed > checkpoint.end_lsn:
            found = self._bridge(checkpoint, confirmed)
            if found is not None:
                return found
        if self._request.on_slot_lost == COPY and (
            confirmed is None or confirmed > checkpoint.end_lsn
        ):
            return self._batch_after_a_loss(checkpoint, slot, confirmed)
        if slot is None or confirmed is None:
            raise SlotNotFound(
                "The slot does not exist, but the lake has a checkpoint of it. It is not made anew: the "
                "changes since then would be missing.",
                slot=self._request.slot_name,
                lsn=checkpoint.end_lsn,
                advice="find out who dropped it; then run once with on_slot_lost='copy'.",
            )
        if self._context.options.two_phase and confirmed <= checkpoint.end_lsn:
            check_two_phase_start(slot, checkpoint.end_lsn)
        check_not_ahead(confirmed, checkpoint.end_lsn, self._request.slot_name)
        # The run before may have died between sealing and telling anybody.
        found = self._find_sealed(checkpoint.end_lsn, past=checkpoint.end_lsn)
        if (
            found
            and holds_copies(found[0], self._request.copy_tables)
            and not self._waits_for_copy(found[0], checkpoint)
        ):
            return found
        last, context = self._last_batch(checkpoint), self._context
        gaps = self._gaps_since(last)
        tables = tables_to_copy(
            context.published(), checkpoint, self._request, gaps | checkpoint.passed_over.keys()
        )
        tables = context.with_waiting_copies(checkpoint.end_lsn, tables)
        tables = context.with_altered_types(tables)
        context.check_may_copy(tables)
        return self._stage_with_copies(following(self._request, checkpoint, last), tables)

    def _read_again(
        self,
        checkpoint: Checkpoint,
        slot: SlotFacts | None,
        confirmed: Lsn | None,
        last: Manifest | None,
    ) -> tuple[Manifest, str]:
        """Stage anew from ``start_lsn`` on, which the slot still holds and the lake may be past."""
        context, request = self._context, self._request
        if request.advance == AFTER_STAGE and confirmed and confirmed > checkpoint.end_lsn:
            # An attempt that died may have sealed it and moved the slot.
            found = self._bridge(checkpoint, confirmed)
            if found is not None and found[0].start_lsn == request.start_lsn:
                return found
        start = begin_again(context, slot, confirmed, checkpoint, last)
        gaps = self._gaps_since(last) | checkpoint.passed_over.keys()
        tables = tables_to_copy(context.published(), checkpoint, request, gaps)
        context.check_may_copy(tables)
        return self._stage_with_copies(start, tables)

    def _bridge(self, checkpoint: Checkpoint, confirmed: Lsn) -> tuple[Manifest, str] | None:
        """The sealed batch with what the slot has passed and the lake lacks; None: there is none.

        It cannot be staged again, so what is asked for beyond it has to wait.
        """
        request, context = self._request, self._context
        found = find_bridge(
            context.area, request.slot_name, context.server, checkpoint.end_lsn, confirmed
        )
        if found is None:
            return None
        manifest, uri = found
        # What is in the lake already cannot be meant.
        skip_lsns = [lsn for lsn in request.skip_lsns if lsn >= checkpoint.end_lsn]
        lacks = not (holds_copies(manifest, request.copy_tables) and manifest.skips(skip_lsns))
        if not lacks and not self._waits_for_copy(manifest, checkpoint):
            log.info("The slot has passed this batch, which is sealed and not applied yet: %s", uri)
            warn_of_skipped(manifest)
            return found
        raise SlotAheadOfCheckpoint(
            f"The batch {manifest.start_lsn} to {manifest.end_lsn} is sealed and not applied, and the slot"
            " has passed it: it cannot be staged again, with copies or without a transaction.",
            slot=request.slot_name,
            lsn=checkpoint.end_lsn,
            advice="run once without what asks for that, which applies it, and then with it. To give the"
            f" batch up, with its messages and change log entries, remove its manifest ({uri}) and run once"
            " with on_slot_lost='copy'.",
        )

    def _stage_with_copies(
        self, start: Start, tables: tuple[PublishedTable, ...]
    ) -> tuple[Manifest, str]:
        """Stage changes; when they ask for the copy of a table, stage them again with it."""
        while True:
            try:
                return stage_changes(self._context, self._rows, start, tables)
            except CopyNeeded as needed:
                oid = needed.relation_oid
                # One that was copied never asks again, so this ends.
                wanted = tuple(
                    each for each in self._context.published() if each.relation_oid == oid
                )
                if not wanted:
                    log.info("A table that has to be copied is gone: staging the batch again.")
                    continue
                if oid in {each.relation_oid for each in tables}:
                    raise AssertionError(
                        "a table that the batch copies asks for no copy"
                    ) from needed
                self._context.check_may_copy(wanted)
                log.info("Staging the batch again, with a copy of %s.", wanted[0].name)
                tables += wanted

    def _waits_for_copy(self, sealed: Manifest, checkpoint: Checkpoint) -> bool:
        """Whether apply could not follow the types of a batch that was staged without a copy."""
        if self._request.schema_policy.on_type_change != COPY:
            return False
        return any(unfollowable(e, checkpoint.shapes.get(e.relation_oid)) for e in sealed.tables)

    def _batch_after_a_loss(
        self, checkpoint: Checkpoint, slot: SlotFacts | None, confirmed: Lsn | None
    ) -> tuple[Manifest, str]:
        """Stage all published tables anew, in a batch that spans what cannot be read any more."""
        request, context, start = self._request, self._context, checkpoint.end_lsn
        # Sealed by an attempt that died, or before the slot was lost; what it lacks is the next run's.
        found = self._find_sealed(start, past=start)
        if (
            found
            and holds_copies(found[0], request.copy_tables)
            and not self._waits_for_copy(found[0], checkpoint)
        ):
            return found
        context.check_root(self._last_batch(checkpoint))
        tables = without_ignored(context.published(), checkpoint, request)
        # All are copied; this refuses those that were dropped and made again.
        tables_to_copy(tables, checkpoint, request)
        context.check_may_copy(tables)
        check_failover(context.server, failover=request.failover)
        log.warning(
            "Changes of slot %s since %s cannot be read any more: all %d published tables are copied again.",
            request.slot_name,
            start,
            len(tables),
        )
        if confirmed is not None and slot is not None and context.may_keep(slot, confirmed):
            # Made by an attempt that died: what that copied since then is not copied again.
            return stage_copies(
                context, self._rows, after_loss(request, checkpoint, confirmed), tables
            )
        if slot is not None:
            context.drop_slot(slot)
        with context.create_slot() as snapshot:
            point = snapshot.consistent_point
            log.info("Created slot %s at %s.", request.slot_name, point)
            return stage_copies(
                context, self._rows, after_loss(request, checkpoint, point), tables, snapshot
            )

    def _first_tables(self) -> tuple[PublishedTable, ...]:
        """The tables that the first batch copies."""
        return self._context.published() if self._request.initial_copy == ALWAYS else ()

    def _gaps_since(self, last: Manifest | None) -> frozenset[int]:
        """OIDs of the tables that were not published all the time since the lake's last batch."""
        if last is None or last.published is None:
            self._context.warn_of_membership_changes()
            return frozenset()
        return self._context.changes_of_membership(last.published)

    def _last_batch(self, checkpoint: Checkpoint) -> Manifest | None:
        return last_batch(self._context.area, self._request.slot_name, checkpoint)

    def _find_sealed(self, start: Lsn, past: Lsn | None = None) -> tuple[Manifest, str] | None:
        found = find_sealed(
            self._context.area,
            self._request.slot_name,
            self._context.server.system_identifier,
            start,
            past=past,
            server=self._context.server,
            skip_lsns=self._request.skip_lsns,
        )
        if found is not None:
            log.info("An earlier attempt sealed this batch already: %s", found[1])
            warn_of_skipped(found[0])
        return found
