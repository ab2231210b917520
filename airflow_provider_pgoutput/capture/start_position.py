"""Checks the position at which a run begins: that of the lake, or ``start_lsn``.

PostgreSQL silently begins later when it is asked for a position that the slot has passed. Here such a run is
refused. ``slot/replication_slot.py`` reads the slot, and ``pipeline.py`` finds where a first batch begins.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.earlier_systems import is_of, name_from
from airflow_provider_pgoutput.batch.lsn import NO_OFFSET, Lsn, LsnOffset
from airflow_provider_pgoutput.capture.request import NEVER
from airflow_provider_pgoutput.capture.slot.replication_slot import check_two_phase_start
from airflow_provider_pgoutput.capture.source.timelines import (
    BEGIN_ANEW,
    check_system,
    check_timeline,
    check_written,
)
from airflow_provider_pgoutput.capture.staging.archive import find_overlaps, newest_readable
from airflow_provider_pgoutput.capture.staging.manifests import find_ending, find_sealed
from airflow_provider_pgoutput.capture.staging.sealed import sealed_batches
from airflow_provider_pgoutput.capture.start import again
from airflow_provider_pgoutput.errors import (
    BatchRefused,
    ConfigurationError,
    SlotAheadOfCheckpoint,
    SlotNotFound,
    SourceChanged,
    TableRefused,
)

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.earlier_systems import EarlierTimeline
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.request import CaptureRequest
    from airflow_provider_pgoutput.capture.run import Run, Source
    from airflow_provider_pgoutput.capture.slot.facts import SlotFacts
    from airflow_provider_pgoutput.capture.source.catalog import Server
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.capture.start import Start
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

log = logging.getLogger(__name__)

_ARCHIVE = (
    "staged batches hold what is older: PgoutputReplayOperator applies them again from any LSN; to go on"
    " without, leave start_lsn out."
)


def check_source(source: Source, checkpoint: Checkpoint) -> tuple[EarlierTimeline, ...]:
    """Refuse another source than the one that filled the lake, and a source that is behind the lake.

    :return: if it was promoted since the checkpoint: its earlier timelines. Otherwise empty.
    :raises SourceChanged: it is another system, or it lost what the lake has.
    :raises SourceUnavailable: it is a standby that has not replayed so far yet.
    """
    server, slot_name = source.server, source.request.slot_name
    check_system(server, checkpoint.system_identifier, checkpoint.end_lsn, slot_name)
    check_written(server, checkpoint.end_lsn, slot_name)
    return check_timeline(
        source.request.direct,
        server,
        then=checkpoint.timeline,
        end_lsn=checkpoint.end_lsn,
        slot=slot_name,
    )


def as_in_lake(server: Server, request: CaptureRequest, area: StagingArea) -> Server:
    """The server of a run, with the name and the LSNs that it has in the lake.

    If the run adopts it, it gets them here.

    :param server: as it describes itself.
    :raises BatchRefused: a batch of an adoption that was sealed by an earlier attempt cannot be read.
    :raises ConfigurationError: the checkpoint is lost, and with it what the lake adds to the server's LSNs.
    :raises SourceUnavailable: the source does not answer.
    """
    checkpoint = request.checkpoint
    if checkpoint is None:
        _refuse_lost_offset(server, request, area)
        return server
    known = server.as_in_lake(checkpoint.system_identifier, checkpoint.systems.lsn_offset)
    if request.adopted_system != server.system_identifier:
        return known
    name = server.system_identifier
    if known is not server:
        if not _went_back(known, request, checkpoint):
            return known
        name = _begun_name(known, request, checkpoint, area) or name_from(name, server.timeline)
    return server.as_in_lake(name, _offset_of(name, server.flush_lsn, request, checkpoint, area))


def _refuse_lost_offset(server: Server, request: CaptureRequest, area: StagingArea) -> None:
    """Refuse to begin anew with LSNs that the tables of the lake would take for older ones."""
    newest = max(sealed_batches(area, request.slot_name), key=lambda e: e.end_lsn, default=None)
    if newest is None or newest.end_lsn <= server.flush_lsn:
        return
    manifest = newest.read()
    is_same = is_of(manifest.system_identifier, server.system_identifier, server.timeline)
    if is_same and manifest.systems.lsn_offset != NO_OFFSET:
        raise ConfigurationError(
            "The lake has no checkpoint of the slot. Staged batches of it add"
            f" {manifest.systems.lsn_offset} to the LSNs of the server.",
            slot=request.slot_name,
            lsn=newest.end_lsn,
            advice="rebuild the checkpoint with pgoutput doctor --repair --staging-uri. To begin anew, drop"
            " the pipeline's tables, and use another slot_name or empty the slot's folder of the staging"
            " area.",
        )


def _begun_name(
    server: Server, request: CaptureRequest, checkpoint: Checkpoint, area: StagingArea
) -> str | None:
    """The name under which an earlier attempt has staged the adoption; None: there was none.

    The server may have been promoted once more since. Then it is still the same system.
    """
    for each in sealed_batches(area, request.slot_name):
        if each.start_lsn != checkpoint.end_lsn:
            continue
        manifest = each.read()
        name, began = manifest.system_identifier, manifest.timeline
        own = server.system_identifier.partition("@")[0]
        if not manifest.adopts or "@" not in name or not is_of(name, own, server.timeline):
            continue
        then = dataclasses.replace(checkpoint, timeline=began, end_lsn=manifest.end_lsn)
        offset = manifest.systems.lsn_offset
        if not _went_back(dataclasses.replace(server, lsn_offset=offset), request, then):
            return name
    return None


def _went_back(server: Server, request: CaptureRequest, checkpoint: Checkpoint) -> bool:
    """Whether the system of the lake began a timeline before the checkpoint, so that it can be adopted.

    On an earlier timeline, or on the same one, nothing tells it from the server as it was before.
    """
    if checkpoint.timeline is None or server.timeline <= checkpoint.timeline:
        return False
    try:
        check_timeline(
            request.direct,
            server,
            then=checkpoint.timeline,
            end_lsn=checkpoint.end_lsn,
            slot=request.slot_name,
        )
    except SourceChanged:
        return True
    return False


def _offset_of(
    name: str, flush_lsn: Lsn, request: CaptureRequest, checkpoint: Checkpoint, area: StagingArea
) -> LsnOffset:
    """What the lake adds to the LSNs of a system that it adopts. Once a batch has an offset, it stays.

    :param flush_lsn: as the server counts.
    """
    # Tables may have a batch of an earlier attempt. The server may have written past the lake's LSN since.
    start = checkpoint.end_lsn
    sealed = find_sealed(area, request.slot_name, name, start, past=start)
    if sealed is not None:
        return sealed[0].systems.lsn_offset
    return NO_OFFSET if flush_lsn > start else LsnOffset.past(start)


def check_adoptable(
    server: Server, checkpoint: Checkpoint, system_identifier: str, slot_name: str
) -> None:
    """Refuse a server that cannot become the source of the lake. Nothing was made on it yet.

    :param system_identifier: what the user wrote.
    :raises ConfigurationError: the connection leads to another system, to the one that is the source already,
        or to one that was the source before.
    """
    found, end_lsn = server.system_identifier, checkpoint.end_lsn
    if not is_of(found, system_identifier, server.timeline):
        raise ConfigurationError(
            f"The connection leads to system {found}, and new_system_identifier is {system_identifier!r}.",
            slot=slot_name,
            lsn=end_lsn,
            advice="correct the connection or the argument: SELECT system_identifier FROM pg_control_system()"
            " on the new server.",
        )
    if found == checkpoint.system_identifier:
        raise ConfigurationError(
            f"System {found} is the source of the lake already.",
            slot=slot_name,
            lsn=end_lsn,
            advice="there is nothing to adopt: let the pipeline's own DAG go on. A server that was restored"
            " keeps its identifier. It can be adopted only if it began a timeline with a greater number: the"
            f" server's is {server.timeline}, the lake's {checkpoint.timeline}. If it went back otherwise:"
            f" {BEGIN_ANEW}",
        )
    if any(each.system_identifier == found for each in checkpoint.adopted_from):
        raise ConfigurationError(
            f"System {found} was the source of the lake before, and another one was adopted since.",
            slot=slot_name,
            lsn=end_lsn,
            advice=BEGIN_ANEW,
        )


def last_batch(area: StagingArea, slot_name: str, checkpoint: Checkpoint) -> Manifest | None:
    """The last batch that was applied, or the newest readable one before it; None: there is none any more.

    A damaged manifest of the last batch does no harm, since the batch is applied. An older manifest says what
    was published at an earlier time. So the comparison with now finds all changes since the last batch, and
    perhaps some older ones.
    """
    system, end = checkpoint.system_identifier, checkpoint.end_lsn
    try:
        return find_ending(area, slot_name, system, end, checkpoint.batch_id)
    except BatchRefused as error:
        log.warning("A manifest that ends at the checkpoint cannot be read. %s", error)
        return newest_readable(area, slot_name, system, end)


def last_known(area: StagingArea, slot_name: str, checkpoint: Checkpoint) -> Manifest | None:
    """The last batch that was applied, or the newest one before it that is there and can be read."""
    return last_batch(area, slot_name, checkpoint) or newest_readable(
        area, slot_name, checkpoint.system_identifier, checkpoint.end_lsn
    )


def is_of_the_load(request: CaptureRequest, checkpoint: Checkpoint, last: Manifest | None) -> bool:
    """Whether ``start_lsn`` is the position at which tables were loaded from outside.

    Such a ``start_lsn`` may stay in the DAG file after the first run.

    :param last: the last batch that was applied; None: it is not known.
    """
    start, begun_at = request.start_lsn, checkpoint.begun_at
    if start is None or request.initial_copy != NEVER:
        return False
    if begun_at is not None and start > begun_at:
        return False
    loaded = None if last is None else last.loaded_lsn
    if loaded not in {None, str(start)}:
        return False
    log.info(
        "start_lsn %s is not past the LSN at which the lake begins. So it is taken for the LSN at which the"
        " tables were loaded by other means, and ignored. The run begins at the checkpoint, %s.",
        start,
        checkpoint.end_lsn,
    )
    return True


def begin_again(run: Run, checkpoint: Checkpoint, last: Manifest | None) -> Start:
    """Begin at ``start_lsn``. The lake may have more already.

    Transactions that earlier batches left out on request are left out again.

    :param last: the last batch that was applied; None: it is not known.
    :raises SlotNotFound: there is no slot to read.
    :raises SlotAheadOfCheckpoint: the slot is past the position.
    :raises ConfigurationError: the position is past the checkpoint. Or a table was copied, or its columns
        changed, after the position. Or, with ``two_phase``, no staged batch ends at the position.
    """
    source, slot, request = run.source, run.slot, run.request
    start, name = request.start_lsn, request.slot_name
    assert start is not None, "the caller asks for it"
    _check_position(slot, run.confirmed, start, checkpoint, name)
    assert slot is not None, "that is checked"
    if source.options.two_phase:
        _check_prepared(source.area, slot, start, checkpoint)
    _check_shapes(start, checkpoint, name)
    overlaps = find_overlaps(
        source.area, name, checkpoint.system_identifier, start, checkpoint.end_lsn
    )
    _check_copies(start, checkpoint, overlaps.copied_until, name)
    left_out = _left_out(checkpoint, name) | overlaps.left_out
    log.info(
        "Slot %s is read again from %s on; the lake is at %s.", name, start, checkpoint.end_lsn
    )
    return again(request, start, checkpoint, last, left_out)


def _check_position(
    slot: SlotFacts | None, confirmed: Lsn | None, start: Lsn, checkpoint: Checkpoint, name: str
) -> None:
    if slot is None or confirmed is None:
        raise SlotNotFound(
            "There is no slot that could be read from start_lsn on.",
            slot=name,
            lsn=start,
            advice=_ARCHIVE,
        )
    if confirmed > start:
        raise SlotAheadOfCheckpoint(
            f"start_lsn is {start}, but the slot begins at {confirmed}: the server may have recycled what"
            " lies between.",
            slot=name,
            lsn=start,
            advice=_ARCHIVE,
        )
    if start > checkpoint.end_lsn:
        raise ConfigurationError(
            f"start_lsn is {start}, and the lake is at {checkpoint.end_lsn}: it would lack the changes"
            " between.",
            slot=name,
            lsn=start,
            advice="give a position up to the checkpoint, or leave start_lsn out.",
        )


def _check_prepared(area: StagingArea, slot: SlotFacts, start: Lsn, checkpoint: Checkpoint) -> None:
    """Refuse a position if no staged batch ends there: the server sends no prepared transaction twice."""
    check_two_phase_start(slot, checkpoint.end_lsn)
    if start == checkpoint.end_lsn:
        return
    known = False
    if start == slot.confirmed_flush_lsn:
        try:
            system = checkpoint.system_identifier
            known = find_ending(area, slot.name, system, start) is not None
        except BatchRefused as error:
            log.warning("A manifest that ends at start_lsn cannot be read. %s", error)
    if not known:
        raise ConfigurationError(
            "With two_phase the server does not send again what was prepared before start_lsn, and no staged"
            " batch ends there that has it.",
            slot=slot.name,
            lsn=start,
            advice=f"give the checkpoint, {checkpoint.end_lsn}; {_ARCHIVE}",
        )


def _left_out(checkpoint: Checkpoint, slot_name: str) -> frozenset[Lsn]:
    """Commits that applied batches left out, as the checkpoint table has them."""
    try:
        return frozenset(Lsn.parse(lsn) for text in checkpoint.skipped for lsn in json.loads(text))
    except (ValueError, TypeError, ConfigurationError) as error:
        raise TableRefused(
            "The column skipped of the checkpoint table is not what the pipeline writes.",
            slot=slot_name,
            advice="somebody changed it; without start_lsn it is not needed.",
        ) from error


def _check_shapes(start: Lsn, checkpoint: Checkpoint, slot_name: str) -> None:
    """Refuse a position before a change of columns: nothing tells which rows came before the change."""
    if start == checkpoint.end_lsn:
        return
    tables = checkpoint.tables or {}
    # A table that was never applied, because it is set aside, has no columns in the lake.
    lacking = tables.keys() - checkpoint.shaped_at.keys() - checkpoint.passed_over.keys()
    if unknown := sorted(tables[oid] for oid in lacking):
        raise ConfigurationError(
            "The checkpoint table does not know since when the table has its columns: it was rebuilt, or"
            " filled by an earlier version.",
            slot=slot_name,
            table=unknown[0],
            lsn=start,
            advice=f"give the checkpoint, {checkpoint.end_lsn}; {_ARCHIVE}",
        )
    later = {oid: since for oid, since in checkpoint.shaped_at.items() if since > start}
    if later:
        oid = max(later, key=lambda each: later[each])
        raise ConfigurationError(
            f"The table was copied first, or its columns changed, in the batch that ended at {later[oid]}.",
            slot=slot_name,
            table=tables.get(oid),
            lsn=start,
            advice=f"give {later[oid]} or a later position; {_ARCHIVE}",
        )


def _check_copies(
    start: Lsn, checkpoint: Checkpoint, copied_until: Lsn | None, slot_name: str
) -> None:
    """Refuse a position before a copy: the stream has no copied rows, so the new batch would lack them."""
    known = [each for each in (checkpoint.copied_until, copied_until) if each is not None]
    if known and max(known) > start:
        raise ConfigurationError(
            f"A table was copied in the batch that ended at {max(known)}, and the stream has no copies.",
            slot=slot_name,
            lsn=start,
            advice=f"give {max(known)} or a later position; {_ARCHIVE}",
        )
