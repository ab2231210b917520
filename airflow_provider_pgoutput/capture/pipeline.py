"""Start here: ``stage_batch`` stages one batch of a slot.

A batch is all transactions with ``start <= commit LSN < end``. It starts at the lake's checkpoint. Its target
is read once, before any change. A limit may end the batch before the target, and a copy may move its end past
the target. A run goes five steps:

1. facts: the server, the slot and the published tables, each read once (``run.py``);
2. start: which kind of run this is, and where its batch begins (``start.py``);
3. copy or stream: rows go into files (``stage.py``);
4. seal: the manifest makes the batch exist;
5. confirm: with ``advance="after_stage"`` the slot moves here. Otherwise the advance task moves it, after the
   apply.

There are six kinds of run. ``_sealed`` and ``_next_batch`` decide which one it is:

* ``_first_batch``: there is no checkpoint and no slot. A slot is created, and all tables are copied.
* ``_first_batch_of_existing_slot``: there is no checkpoint, but a slot.
* ``_next_batch``: the changes since the lake's checkpoint.
* ``_read_again``: the changes since ``start_lsn``, which is not past the checkpoint.
* ``_batch_after_a_loss``: the slot lacks changes that the lake needs, and ``on_slot_lost`` is not ``fail``.
* ``_batch_of_adopted_system``: as after a loss, from another server, which becomes the source.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_pgoutput.batch.answers import COPY, DIFFERENCE, FAIL, SET_ASIDE
from airflow_provider_pgoutput.batch.lsn import NO_OFFSET, Lsn
from airflow_provider_pgoutput.batch.xcom import SlotXCom
from airflow_provider_pgoutput.capture import copied_tables
from airflow_provider_pgoutput.capture.fallback import Tries
from airflow_provider_pgoutput.capture.membership import (
    begins_a_lake,
    holds_copies,
    refuse_other_root,
    seen_from_server,
)
from airflow_provider_pgoutput.capture.refused import RefusedTables
from airflow_provider_pgoutput.capture.request import AFTER_STAGE, NEVER
from airflow_provider_pgoutput.capture.run import Run
from airflow_provider_pgoutput.capture.schema.differences import unfollowable
from airflow_provider_pgoutput.capture.schema.policy import CopyNeeded
from airflow_provider_pgoutput.capture.server import PostgresSource
from airflow_provider_pgoutput.capture.slot.replication_slot import (
    check_failover,
    check_not_ahead,
    check_slot,
    check_start,
    check_two_phase_start,
    check_wal_level,
)
from airflow_provider_pgoutput.capture.slot.warnings import warn_of_dangers
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.capture.source.errors import of_slot
from airflow_provider_pgoutput.capture.source.locks import holders_named
from airflow_provider_pgoutput.capture.stage import (
    ServerRows,
    stage_after_loss,
    stage_changes,
    stage_copies,
)
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.manifests import (
    find_bridge,
    find_ending,
    find_sealed,
    make_sure,
    warn_of_refused_copies,
    warn_of_skipped,
)
from airflow_provider_pgoutput.capture.start import after_loss, first, following
from airflow_provider_pgoutput.capture.start_position import (
    as_in_lake,
    begin_again,
    check_adoptable,
    check_source,
    is_of_the_load,
    last_batch,
    last_known,
)
from airflow_provider_pgoutput.capture.stream.options import WALSENDER
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    PgoutputError,
    SlotAheadOfCheckpoint,
    SlotLost,
    SlotNotFound,
)
from airflow_provider_pgoutput.garbage import no_garbage_collection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.request import CaptureRequest
    from airflow_provider_pgoutput.capture.run import RowSource, Source
    from airflow_provider_pgoutput.capture.slot.facts import SlotFacts
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable, Server
    from airflow_provider_pgoutput.capture.start import Start
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

log = logging.getLogger(__name__)


class StagedBatch(NamedTuple):
    """A sealed batch, and the slot that it was read from."""

    manifest: Manifest
    manifest_uri: str
    #: How the slot stood when the run began; None: there was none.
    slot: SlotXCom | None
    #: Where the server was when the run began; see ``Server``.
    source_lsn: Lsn


def stage_batch(request: CaptureRequest) -> StagedBatch:
    """Stage the next batch of a slot, or find the one that an earlier attempt sealed.

    When the server cannot give the batch in the way that was asked for, another way is tried; see
    ``fallback.py``.

    :raises PgoutputError: see ``errors.py``. No batch was sealed, and the slot was not moved. One exception:
        with ``advance="after_stage"`` the error may come after the seal. The next run then finds the sealed
        batch.
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


def _stage_once(request: CaptureRequest) -> StagedBatch:
    area = StagingArea(request.staging_uri)
    with (
        of_slot(request.slot_name),
        sessions.connect(request.conninfo, slot=request.slot_name) as session,
        holders_named(session, slot=request.slot_name),
    ):
        sessions.limit_lock_waits(session)
        if request.transport == WALSENDER:
            sessions.check_replication(session, request.direct, slot=request.slot_name)
        # Its flush LSN is the batch's target, except with ``messages``; see ``PostgresSource.read_target``.
        server = as_in_lake(read_server(session, request.direct), request, area)
        if request.checkpoint is not None:
            seen = seen_from_server(session, server, request.checkpoint)
            request = dataclasses.replace(request, checkpoint=seen)
        source = PostgresSource(request, area, session, server)
        return stage_in(source, ServerRows(source))


def stage_in(source: Source, rows: RowSource) -> StagedBatch:
    """Do the five steps; see the head of this file.

    :param rows: says how changes and copies are read.
    """
    slot, confirmed, warnings = _checked_slot(source)
    with no_garbage_collection():
        facts = source.read_facts()
    goes_on = source.request.on_table_refused == SET_ASIDE
    run = Run(source, rows, facts, slot, confirmed, RefusedTables(goes_on))
    sealed = _sealed(run)
    source.check_sealed(sealed[0])
    _confirm(source, sealed)
    state = None if slot is None else _slot_xcom(slot, source.server, warnings)
    return StagedBatch(*sealed, state, source.server.flush_lsn)


def _without_unfit(run: Run) -> Run:
    """The run without the tables that cannot be staged, as far as the catalog alone shows it.

    A batch that is sealed already comes first. So this is called only if there is none.

    :raises PgoutputError: there is such a table, and it is not set aside.
    """
    refused = run.refused
    for table in run.facts.tables:
        if table.relation_oid in run.facts.refused:
            refused = refused.adding(table, run.facts.refused[table.relation_oid])
    return run.refusing(refused)


def _slot_xcom(slot: SlotFacts, server: Server, warnings: Sequence[str]) -> SlotXCom:
    kept_from = slot.restart_lsn
    state = SlotXCom(
        retained_bytes=None if kept_from is None else max(server.flush_lsn - kept_from, 0),
        wal_status=slot.wal_status,
        safe_wal_size_bytes=slot.safe_wal_size,
        wal_limit_bytes=slot.keep_size,
        idle_seconds=slot.idle_seconds,
    )
    if warnings:
        state["warnings"] = list(warnings)
    return state


def _sealed(run: Run) -> tuple[Manifest, str]:
    """Decide which kind of run this is. Each kind finds its start and ends with a sealed batch."""
    checkpoint = run.request.checkpoint
    if checkpoint is not None:
        return _next_batch(run, checkpoint)
    if run.request.adopted_system is not None:
        raise ConfigurationError(
            "The lake has no checkpoint of the slot, so there is no earlier source in whose place another one"
            " could come.",
            slot=run.request.slot_name,
            advice="check slot_name, namespace and catalog. A new pipeline begins with its own DAG.",
        )
    if run.slot is not None and run.confirmed is not None:
        return _first_batch_of_existing_slot(run, run.slot, run.confirmed)
    if run.slot is not None:
        # Lost before anything of it was applied.
        run.source.drop_slot(run.slot)
    return _first_batch(run)


def _checked_slot(source: Source) -> tuple[SlotFacts | None, Lsn | None, tuple[str, ...]]:
    """The slot, its position and warnings. The position is None when there is no slot that can be read.

    :raises PgoutputError: the server or the slot is not what is needed.
    """
    request, server = source.request, source.server
    check_wal_level(server)
    slot = source.read_slot()
    if slot is None:
        return None, None, ()
    confirmed = None
    try:
        confirmed = check_slot(slot, server, two_phase=request.options.two_phase)
    except SlotLost:
        if request.on_slot_lost == FAIL or (
            request.checkpoint is None and request.initial_copy == NEVER
        ):
            raise
    warnings = warn_of_dangers(
        slot, seconds_between_runs=request.seconds_between_runs, failover=request.failover
    )
    return slot, confirmed, warnings


def _confirm(source: Source, sealed: tuple[Manifest, str]) -> None:
    """Let the slot move over a sealed batch, with ``advance="after_stage"``."""
    # Without a checkpoint nothing would tell a later run that this is the batch to begin with.
    if source.request.advance != AFTER_STAGE or source.request.checkpoint is None:
        return
    if sealed[0].system_identifier != source.server.system_identifier:
        # A batch of the system before the one that is adopted. The slot has nothing of it.
        return
    slot = source.read_slot()
    # The slot may be lost by now. Then nothing is moved, and the batch is applied all the same.
    if slot is not None and not slot.is_lost:
        make_sure(source.area, *sealed)
        source.confirm(sealed[0].end_lsn)


def _first_batch(run: Run) -> tuple[Manifest, str]:
    """Create the slot and stage all tables as they were at its first position."""
    slot_name = run.request.slot_name
    if run.request.start_lsn is not None:
        raise SlotNotFound(
            "There is no slot, so the changes since start_lsn are not kept.",
            slot=slot_name,
            lsn=run.request.start_lsn,
            advice="make the slot before the tables are loaded, with "
            f"pg_create_logical_replication_slot('{slot_name}', 'pgoutput'); load them; then give the "
            "LSN that it returned.",
        )
    run, tables = copied_tables.of_first_batch(run)
    check_failover(run.source.server, failover=run.request.failover)
    with run.source.create_slot() as snapshot:
        point = snapshot.consistent_point
        log.info("Created slot %s at %s.", slot_name, point)
        start = first(run.request, point)
        return stage_copies(run, start, tables, snapshot)


def _first_batch_of_existing_slot(
    run: Run, slot: SlotFacts, confirmed: Lsn
) -> tuple[Manifest, str]:
    """The slot was made by somebody, or by an attempt that died during its copy."""
    request = run.request
    start = first(request, request.start_lsn or confirmed)
    if request.start_lsn is not None:
        check_start(slot, start.lsn, run.source.server)
    if request.advance == AFTER_STAGE:
        _refuse_lost_checkpoint(run, confirmed)
    found = _find_sealed(run, start.lsn)
    if found and begins_a_lake(found[0], request):
        return found
    if request.initial_copy == NEVER:
        _gaps_since(run, None)
        run, tables = copied_tables.of_loaded_lake(run)
        return stage_changes(run, start, tables)
    run, tables = copied_tables.of_first_batch(run)
    log.info("Slot %s starts at %s.", request.slot_name, confirmed)
    return stage_copies(run, start, tables)


def _refuse_lost_checkpoint(run: Run, confirmed: Lsn) -> None:
    """Refuse to begin anew if the slot has passed a sealed batch.

    With ``advance="after_stage"`` the staging area may hold the only copy of that batch's changes.
    """
    source, slot_name = run.source, run.request.slot_name
    # Such a batch begins before the slot's position, and ends at it or later. So it holds this LSN.
    before = Lsn(confirmed - 1)
    if find_bridge(source.area, slot_name, source.server, before, confirmed) is not None:
        raise SlotAheadOfCheckpoint(
            f"The lake has no checkpoint, and the slot, at {confirmed}, has passed a sealed batch.",
            slot=slot_name,
            lsn=confirmed,
            advice="if the checkpoint table was lost, rebuild it with pgoutput doctor --repair;"
            " to begin anew, drop the slot first, or empty the slot's folder of the staging area.",
        )


def _next_batch(run: Run, checkpoint: Checkpoint) -> tuple[Manifest, str]:
    """Stage what committed since the checkpoint."""
    slot, confirmed = run.slot, run.confirmed
    if run.request.adopted_system is not None:
        return _batch_of_adopted_system(run, checkpoint, run.request.adopted_system)
    earlier = check_source(run.source, checkpoint)
    run = dataclasses.replace(run, earlier_timelines=earlier)
    if run.request.start_lsn is not None:
        last = last_known(run.source.area, run.request.slot_name, checkpoint)
        if not is_of_the_load(run.request, checkpoint, last):
            return _read_again(run, checkpoint, last)
    if confirmed is not None and confirmed > checkpoint.end_lsn:
        found = _bridge(run, checkpoint, confirmed)
        if found is not None:
            return found
    if run.request.on_slot_lost != FAIL and (confirmed is None or confirmed > checkpoint.end_lsn):
        return _batch_after_a_loss(run, checkpoint)
    if slot is None or confirmed is None:
        raise SlotNotFound(
            "The slot does not exist, but the lake has a checkpoint of it. It is not made anew: the "
            "changes since then would be missing.",
            slot=run.request.slot_name,
            lsn=checkpoint.end_lsn,
            advice="find out who dropped it; then run once with on_slot_lost='copy'.",
        )
    if run.source.options.two_phase and confirmed <= checkpoint.end_lsn:
        check_two_phase_start(slot, checkpoint.end_lsn)
    check_not_ahead(confirmed, checkpoint.end_lsn, run.request.slot_name)
    # The run before may have died between sealing and telling anybody.
    found = _find_sealed_next(run, checkpoint)
    if found is not None:
        return found
    last = _last_batch(run, checkpoint)
    run = _without_unfit(run.with_timelines_of(last))
    run, tables = copied_tables.of_next_batch(run, checkpoint, _gaps_since(run, last))
    return _stage_with_copies(run, following(run.request, checkpoint, last), tables)


def _read_again(run: Run, checkpoint: Checkpoint, last: Manifest | None) -> tuple[Manifest, str]:
    """Stage again from ``start_lsn`` on.

    The slot still has these changes. The lake may have some of them already.
    """
    request, confirmed = run.request, run.confirmed
    if request.advance == AFTER_STAGE and confirmed and confirmed > checkpoint.end_lsn:
        # An attempt that died may have sealed it and moved the slot.
        found = _bridge(run, checkpoint, confirmed)
        if found is not None and found[0].start_lsn == request.start_lsn:
            return found
    start = begin_again(run, checkpoint, last)
    run = _without_unfit(run.with_timelines_of(last))
    run, tables = copied_tables.of_batch_read_again(run, checkpoint, _gaps_since(run, last))
    return _stage_with_copies(run, start, tables)


def _bridge(run: Run, checkpoint: Checkpoint, confirmed: Lsn) -> tuple[Manifest, str] | None:
    """The sealed batch that comes next for the lake, if the slot is past the checkpoint; None: there is none.

    The slot no longer has all of its changes, so it cannot be staged again.

    :raises SlotAheadOfCheckpoint: the request asks for a copy that this batch does not have, or for a
        transaction to be left out that it has.
    """
    request, source = run.request, run.source
    found = find_bridge(
        source.area, request.slot_name, source.server, checkpoint.end_lsn, confirmed
    )
    if found is None:
        return None
    manifest, uri = found
    # The lake has the commits before its checkpoint already, so nobody can want them left out.
    skip_lsns = [lsn for lsn in request.skip_lsns if lsn >= checkpoint.end_lsn]
    has_copies = holds_copies(manifest, request.copy_tables, or_refuses=True)
    lacks = not (has_copies and manifest.skips(skip_lsns))
    if not lacks and not _waits_for_copy(run.request, manifest, checkpoint):
        log.info("The slot has passed this batch, which is sealed and not applied yet: %s", uri)
        warn_of_skipped(manifest)
        warn_of_refused_copies(manifest, request.copy_tables)
        return found
    raise SlotAheadOfCheckpoint(
        f"The batch {manifest.start_lsn} to {manifest.end_lsn} is sealed and not applied, and the slot"
        " has passed it: it cannot be staged again, with copies or without a transaction.",
        slot=request.slot_name,
        lsn=checkpoint.end_lsn,
        advice="run once without copy_tables, skip_lsns and on_type_change='copy', so that the batch is"
        " applied; then run with them again. Or give the batch up: its messages and change log entries are"
        f" lost. For that, remove its manifest ({uri}) and run once with on_slot_lost='copy'.",
    )


def _stage_with_copies(
    run: Run, start: Start, tables: tuple[PublishedTable, ...]
) -> tuple[Manifest, str]:
    """Stage changes; when they ask for the copy of a table, stage them again with it."""
    while True:
        try:
            return stage_changes(run, start, tables)
        except CopyNeeded as needed:
            oid = needed.relation_oid
            # A table that the batch copies never asks for a copy, so the loop ends.
            wanted = tuple(each for each in run.source.read_tables() if each.relation_oid == oid)
            if not wanted:
                log.info("A table that has to be copied is gone: staging the batch again.")
                continue
            if oid in run.refused.followed:
                # Its copy was refused, and its changes are of no use without one.
                run = run.refusing(run.refused.following(run.refused.followed - {oid}))
                continue
            if oid in {each.relation_oid for each in tables}:
                raise AssertionError("a table that the batch copies asked for a copy") from needed
            run, copied = copied_tables.may_copy(run, wanted)
            log.info(
                "Staging the batch again, %s %s.",
                "with a copy of" if copied else "without",
                wanted[0].name,
            )
            tables += copied


def _waits_for_copy(request: CaptureRequest, sealed: Manifest, checkpoint: Checkpoint) -> bool:
    """Whether a sealed batch lacks a copy that ``on_type_change="copy"`` asks for.

    It has a change of type that apply cannot follow, and was staged without a copy of the table.
    """
    if request.schema_policy.on_type_change != COPY:
        return False
    return any(unfollowable(e, checkpoint.shapes.get(e.relation_oid)) for e in sealed.tables)


def _batch_after_a_loss(run: Run, checkpoint: Checkpoint) -> tuple[Manifest, str]:
    """Stage all published tables anew, or what the lake lacks of them.

    The batch spans what cannot be read any more.
    """
    request, source, start = run.request, run.source, checkpoint.end_lsn
    slot, confirmed = run.slot, run.confirmed
    # A batch may be sealed already: by an attempt that died, or before the slot was lost. It is returned. The
    # next run copies what is missing.
    found = _find_sealed_next(run, checkpoint)
    if found is not None:
        return found
    last = _last_batch(run, checkpoint)
    if last is not None and last.published is not None:
        refuse_other_root(
            last.published,
            run.facts.published,
            slot_name=request.slot_name,
            by_name_only=last.system_identifier != source.server.system_identifier,
        )
    run = _without_unfit(run.with_timelines_of(last))
    run, tables = copied_tables.after_loss(run, checkpoint)
    check_failover(source.server, failover=request.failover)
    log.warning(
        "Changes of slot %s since %s cannot be read %s: all %d published tables are %s.",
        request.slot_name,
        start,
        "any more" if request.adopted_system is None else "from another system",
        len(tables),
        "copied again" if request.on_slot_lost == COPY else "compared with the lake",
    )
    if request.on_slot_lost == DIFFERENCE:
        return stage_after_loss(run, checkpoint, tables)
    if confirmed is not None and slot is not None and _may_keep(source, slot, confirmed):
        # An attempt that died made this slot. The tables that it copied are taken over.
        return stage_copies(run, after_loss(request, checkpoint, confirmed), tables)
    if slot is not None:
        source.drop_slot(slot)
    with source.create_slot() as snapshot:
        point = snapshot.consistent_point
        log.info("Created slot %s at %s.", request.slot_name, point)
        return stage_copies(run, after_loss(request, checkpoint, point), tables, snapshot)


def _batch_of_adopted_system(
    run: Run, checkpoint: Checkpoint, system_identifier: str
) -> tuple[Manifest, str]:
    """Stage the rows in which the lake differs from a new server, which becomes the source with this batch.

    :param system_identifier: what the user wrote.
    """
    request, server = run.request, run.source.server
    check_adoptable(server, checkpoint, system_identifier, request.slot_name)
    earlier = checkpoint.system_identifier
    waits = find_sealed(
        run.source.area, request.slot_name, earlier, checkpoint.end_lsn, past=checkpoint.end_lsn
    )
    if waits is not None:
        log.warning(
            "The batch %s of system %s was sealed and is not applied. It comes first, and the advance task of"
            " this run fails. Then run again, to adopt system %s.",
            waits[1],
            earlier,
            system_identifier,
        )
        return waits
    log.warning(
        "System %s becomes the source of the lake, in place of system %s.",
        system_identifier,
        earlier,
    )
    if server.lsn_offset != NO_OFFSET:
        log.warning(
            "The LSNs of system %s are smaller than the lake's. The lake adds %s to them.",
            system_identifier,
            server.lsn_offset,
        )
    return _batch_after_a_loss(run, checkpoint)


def _may_keep(source: Source, slot: SlotFacts, confirmed: Lsn) -> bool:
    """Whether the slot can be kept, so that the copies of an attempt that died count.

    With two_phase, a transaction may be prepared before the slot's position and commit after it. Its rows
    must be in the staging area.
    """
    if not source.options.two_phase:
        return True
    system, name = source.server.system_identifier, source.request.slot_name
    return slot.two_phase and find_ending(source.area, name, system, confirmed) is not None


def _gaps_since(run: Run, last: Manifest | None) -> frozenset[int]:
    """OIDs of the tables that the publications lacked for a while since the lake's last batch."""
    return run.source.gaps_since(None if last is None else last.published, run.facts)


def _last_batch(run: Run, checkpoint: Checkpoint) -> Manifest | None:
    return last_batch(run.source.area, run.request.slot_name, checkpoint)


def _find_sealed_next(run: Run, checkpoint: Checkpoint) -> tuple[Manifest, str] | None:
    """The sealed batch that follows the checkpoint and has every copy that is wanted; None: there is none."""
    found = _find_sealed(run, checkpoint.end_lsn, past=checkpoint.end_lsn)
    if (
        found is None
        or not holds_copies(found[0], run.request.copy_tables)
        or _waits_for_copy(run.request, found[0], checkpoint)
    ):
        return None
    return found


def _find_sealed(run: Run, start: Lsn, past: Lsn | None = None) -> tuple[Manifest, str] | None:
    found = find_sealed(
        run.source.area,
        run.request.slot_name,
        run.source.server.system_identifier,
        start,
        past=past,
        server=run.source.server,
        skip_lsns=run.request.skip_lsns,
    )
    if found is not None:
        log.info("An earlier attempt sealed this batch already: %s", found[1])
        warn_of_skipped(found[0])
    return found
