"""The repairs that cannot lose anything: rebuild the checkpoint table, and remove unused branches.

``diagnose.py`` finds what is wrong. Where two places contradict each other, nothing is repaired by itself.
"""

from __future__ import annotations

import dataclasses
import logging
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.batch.earlier_systems import Systems, is_of
from airflow_provider_pgoutput.batch.earlier_systems import to_text as earlier_text
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.passed_over import PassedOver, first_lsn, to_text
from airflow_provider_pgoutput.batch.set_aside import Refusal, staged_without
from airflow_provider_pgoutput.doctor.diagnose import bridge, dead_branches, is_ours
from airflow_provider_pgoutput.errors import BatchGap, TableRefused
from airflow_provider_pgoutput.lake.checkpoint_rows import append_rows
from airflow_provider_pgoutput.lake.failures import lake_errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.catalog import Catalog

    from airflow_provider_pgoutput.batch.applied import Marker
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.doctor.findings import Observed
    from airflow_provider_pgoutput.lake.state import LakeTable

log = logging.getLogger(__name__)

#: How many tables one warning names.
_MOST_NAMED = 20
_LACKS = Refusal(
    "TableRolledBack",
    "The checkpoint table was rebuilt, and the table lacks this batch.",
    "run PgoutputReplayOperator without from_lsn, or copy the table again (copy_tables).",
)


def remove_dead_branches(catalog: Catalog, observed: Observed) -> int:
    """Remove branches of dead attempts, where pyiceberg can, and return how many it removed.

    If an attempt is still alive, its publish is refused, and it prepares its branch again.

    :raises LakeUnavailable: the catalog failed.
    """
    removed = 0
    for each in {table.target: table for table in observed.lake.tables}.values():
        dead = dead_branches(each, observed.now)
        if not dead or not each.is_writable:
            continue
        with lake_errors("changed"):
            change = catalog.load_table(each.target).manage_snapshots()
            for name in dead:
                change = change.remove_branch(name)
            change.commit()
        removed += len(dead)
    return removed


def rebuild_checkpoint(catalog: Catalog, namespace: str, observed: Observed) -> Lsn:
    """Rebuild the checkpoint table from the summaries of the tables' commits.

    :return: the checkpoint's LSN. Everything after it can be read again: from the slot, or from a sealed
        batch if the slot is past it. What a table has already is skipped when it is applied again.
    :raises TableRefused: there is a checkpoint already, or a table was rolled back. Or the systems of the
        tables are not known to follow each other, or the connection leads to another one than the newest.
    :raises BatchGap: the slot is past the end of the tables, and no staged batch bridges the gap.
    """
    if observed.checkpoint is not None:
        raise TableRefused(
            "There is a checkpoint of the slot already.",
            slot=observed.slot_name,
            table=f"{namespace}.{lake_names.CHECKPOINT_TABLE}",
        )
    if observed.lake.recorded:
        raise TableRefused(
            "The checkpoint table has rows of tables only: some tables were replayed into this namespace.",
            slot=observed.slot_name,
            advice="make a namespace that a pipeline goes on from by a replay of all tables.",
        )
    rolled_back = [each.target for each in observed.lake.tables if each.was_rolled_back]
    if rolled_back:
        raise TableRefused(
            "Tables were rolled back. A checkpoint would say that they have changes which they lack: "
            + ", ".join(rolled_back),
            slot=observed.slot_name,
            advice="set main of each to its newest snapshot again, or drop it and copy it again.",
        )
    applied = [(each, each.marker) for each in observed.lake.tables if each.marker is not None]
    systems = _systems(observed, applied)
    if (
        observed.server is not None
        and observed.server.system_identifier != systems.system_identifier
    ):
        observed = observed.as_in_lake(systems.system_identifier, systems.lsn_offset)
    observed = dataclasses.replace(
        observed,
        manifests=[e for e in observed.manifests if e.systems == systems.at(e.end_lsn)],
    )
    position = _position(observed, [marker for _, marker in applied])
    rows = [_table_row(observed, table, marker) for table, marker in applied]
    rows += _lacking_rows(observed, position)
    then = systems.at(position)
    newest = max((marker for _, marker in applied), key=lambda each: each.end_lsn)
    rows.append(
        {
            "slot_name": observed.slot_name,
            "system_identifier": then.system_identifier,
            "batch_id": lake_names.REBUILT,
            "start_lsn": position.sortable,
            "end_lsn": position.sortable,
            "passed_over": _passed_over(observed, position),
            "timeline": newest.timeline
            if newest.system_identifier == then.system_identifier
            else None,
            "adopted_from": earlier_text(then.earlier),
            "complete_until": _complete_until(observed, position),
        }
    )
    append_rows(catalog, namespace, rows)
    if then != systems:
        log.warning(
            "The checkpoint is where system %s was adopted. Start the DAG that adopts it again: it finds the"
            " batch that was staged.",
            systems.system_identifier,
        )
    log.info("The checkpoint of slot %s is %s again.", observed.slot_name, position)
    return position


def _complete_until(observed: Observed, position: Lsn) -> datetime | None:
    """Up to when the lake has all, by the batches before a position that are still staged."""
    texts = [e.complete_until for e in observed.manifests if e.end_lsn <= position]
    return max((datetime.fromisoformat(text) for text in texts if text), default=None)


def _systems(observed: Observed, applied: list[tuple[LakeTable, Marker]]) -> Systems:
    """The system of the tables' newest batch, and those before it, as the manifests name them.

    A batch that adopts a system may have been given up. So its manifest counts only if it is the newest batch
    of the tables. A later batch of the system was staged after the adoption was applied.

    :raises TableRefused: no manifest tells how the tables' systems follow each other, or the connection leads
        to another system.
    """
    newest = max((marker for _, marker in applied), key=lambda each: each.end_lsn, default=None)
    if newest is None:
        raise TableRefused("No table has a batch of the slot.", slot=observed.slot_name)
    manifests = [
        each
        for each in observed.manifests
        if each.system_identifier == newest.system_identifier
        and (not each.adopts or each.batch_id == newest.batch_id)
    ]
    last = max(manifests, key=lambda each: each.start_lsn, default=None)
    systems = Systems(newest.system_identifier, () if last is None else last.adopted_from)
    strangers = [
        f"{table.target} (system {marker.system_identifier}, up to {marker.end_lsn})"
        for table, marker in applied
        if not systems.have(marker.system_identifier, marker.end_lsn)
    ]
    if strangers and last is None:
        raise TableRefused(
            f"The tables have batches of several systems, and no staged batch of the newest, system"
            f" {systems.system_identifier}, tells when it was adopted.",
            slot=observed.slot_name,
            lsn=newest.end_lsn,
            advice="bring back the manifests of its newest batches, or drop the tables and begin anew. For"
            " another source use another namespace."
            if observed.staging_read
            else "give --staging-uri.",
        )
    of_newest = _some(
        table.target
        for table, marker in applied
        if marker.system_identifier == systems.system_identifier
    )
    if strangers:
        raise TableRefused(
            f"System {systems.system_identifier} has the newest batch of the tables, and batches of other"
            f" tables do not come before it: {_some(strangers)}.",
            slot=observed.slot_name,
            advice=f"if system {systems.system_identifier} is the source, drop these tables. If it was never"
            f" adopted for good, drop those that have its batches: {of_newest}. The next run copies what was"
            " dropped.",
        )
    server = observed.server
    if server is not None and server.system_identifier == newest.system_identifier:
        if last is None and newest.end_lsn > server.flush_lsn:
            raise TableRefused(
                f"The tables are at {newest.end_lsn}, and the server has written up to {server.flush_lsn}."
                " No staged batch tells what the lake adds to its LSNs.",
                slot=observed.slot_name,
                lsn=newest.end_lsn,
                advice="bring back the manifests of the newest batches, or drop the tables and begin anew."
                if observed.staging_read
                else "give --staging-uri.",
            )
    elif server is not None and not is_of(
        systems.system_identifier, server.system_identifier, server.timeline
    ):
        is_known = any(e.system_identifier == server.system_identifier for e in systems.earlier)
        raise TableRefused(
            f"The connection leads to system {server.system_identifier}, and the newest batch of the tables"
            f" is of system {systems.system_identifier}.",
            slot=observed.slot_name,
            lsn=newest.end_lsn,
            advice="give the connection of that system. If its adoption was given up, drop the tables that"
            f" have its batches; the next run copies them: {of_newest}."
            if is_known
            else "give the connection of that system. If the other system was adopted since, no table has a"
            " batch of it yet: drop the tables of the lake and begin anew.",
        )
    return systems


def _some(names: Iterable[str]) -> str:
    """The first of some names."""
    ordered = sorted(names)
    return ", ".join(ordered[:_MOST_NAMED]) + (", ..." if len(ordered) > _MOST_NAMED else "")


def _passed_over(observed: Observed, position: Lsn) -> str | None:
    """What the batches up to a position pass over, as far as the staging area still has them.

    The stage task noted in the manifest what it passed over. What the apply task passed over is seen by the
    table: it is gone at the source, and lacks the batch.
    """
    ours = [
        each for each in observed.manifests if is_ours(each, observed) and each.end_lsn <= position
    ]
    reached = _reached(observed)
    _warn_of_pruned(observed, min((each.start_lsn for each in ours), default=position))
    found = list[PassedOver]()
    for manifest in ours:
        found += manifest.passed_over
        for table in manifest.tables:
            since = first_lsn(table.versions)
            has_it = reached.get(table.relation_oid, Lsn(0)) >= manifest.end_lsn
            if table.is_gone and since is not None and not has_it:
                found.append(
                    PassedOver(
                        table.relation_oid,
                        table.name,
                        str(since),
                        table.counts.changes,
                        "The apply task passed the table over.",
                    )
                )
    return to_text(found)


def _warn_of_pruned(observed: Observed, oldest: Lsn) -> None:
    """Name the tables that batches without a manifest may have passed over.

    :param oldest: the start of the oldest batch with a manifest. A table that was changed since was not
        passed over before.
    """
    names = [
        each.source_name
        for each in observed.lake.tables
        if each.marker is not None and each.marker.end_lsn <= oldest
    ]
    if not names:
        return
    log.warning(
        "No staged batch tells whether these %d tables lack changes from before %s: %s. If one was set aside,"
        " or passed over because it was not published, name it in copy_tables.",
        len(names),
        oldest,
        _some(names),
    )


def _lacking_rows(observed: Observed, position: Lsn) -> list[dict[str, Any]]:
    """A row for each staged batch up to a position that a table lacks, as far as its marker shows.

    The table was set aside, or the batch changed nothing in it. Either way a replay is right: it finds
    nothing to do, or what is missing. The manifest says which tables the stage task set aside.
    """
    reached = _reached(observed)
    by_name = {each.source_name: each.marker for each in observed.lake.tables}
    passed_over: set[int] = set()
    rows = []
    for manifest in observed.manifests:
        if manifest.end_lsn > position or not is_ours(manifest, observed):
            continue
        for entry in manifest.passed_over:
            # Without an LSN, a copy ended it.
            (passed_over.discard if entry.since_lsn is None else passed_over.add)(
                entry.relation_oid
            )
            refusal = staged_without(entry)
            if refusal is not None:
                rows.append(
                    _lacking_row(observed, manifest, entry.relation_oid, entry.table_name, refusal)
                )
        for table in manifest.tables:
            marker = reached.get(table.relation_oid)
            is_passed_over = table.is_gone or table.relation_oid in passed_over
            if marker is None and table.name in by_name:
                # A table that has the name of another one was replaced by it, or is to be replaced by it.
                of_name = by_name[table.name]
                marker = manifest.end_lsn if of_name is None else of_name.end_lsn
            has_it = marker is not None and marker >= manifest.end_lsn
            if has_it or is_passed_over:
                continue
            rows.append(_lacking_row(observed, manifest, table.relation_oid, table.name, _LACKS))
    return rows


def _lacking_row(
    observed: Observed, manifest: Manifest, relation_oid: int, name: str, refusal: Refusal
) -> dict[str, Any]:
    return {
        "slot_name": observed.slot_name,
        "system_identifier": manifest.system_identifier,
        "batch_id": manifest.batch_id,
        "table_name": name,
        "relation_oid": relation_oid,
        "start_lsn": manifest.start_lsn.sortable,
        "end_lsn": manifest.end_lsn.sortable,
        "set_aside": refusal.to_text(),
    }


def _position(observed: Observed, markers: list[Marker]) -> Lsn:
    """The LSN up to which all tables have everything, and from which the pipeline can go on.

    :raises BatchGap: the slot is gone; or it is past what the tables have, and no staged batch bridges the
        gap; or it is not known whether all tables have the newest batch.
    """
    newest = max(markers, key=lambda each: each.end_lsn)
    slot = observed.slot
    if slot is None or slot.confirmed_flush_lsn is None:
        raise BatchGap(
            "The slot is gone, so it is not known from which LSN on changes can be read again.",
            slot=observed.slot_name,
            advice="make a new slot by a run with copy_tables of all tables.",
        )
    confirmed, named = slot.confirmed_flush_lsn, newest.batch_id
    batch = next((each for each in observed.manifests if each.batch_id == named), None)
    # A batch starts at the checkpoint, so every table has everything up to here.
    start = newest.start_lsn or (None if batch is None else batch.start_lsn)
    # A batch of copies alone can end where it starts. Such an LSN does not say which tables have the batch.
    is_point = start == newest.end_lsn
    if start is not None and confirmed <= start and not is_point:
        return start
    if not observed.staging_read:
        raise BatchGap(
            f"The slot is at {confirmed}, past the start of the newest batch. Only the staging area shows"
            " whether all tables have that batch.",
            slot=observed.slot_name,
            lsn=newest.end_lsn,
            advice="give --staging-uri.",
        )
    positions = [newest.end_lsn, start or newest.end_lsn]
    if batch is not None and batch.adopts and _all_have(observed, newest):
        # At its start the lake had another system, and somebody would have to adopt this one again.
        del positions[1]
    for position in positions:
        waits = bridge(observed, position, confirmed)
        if position == newest.end_lsn and not _all_have(observed, newest):
            # Two batches may overlap. This may be the shorter one, and some tables may lack it.
            continue
        if waits is not None and not waits.is_empty:
            return position
    if not _all_have(observed, newest):
        raise BatchGap(
            "It is not known whether all tables have the newest batch: its manifest is missing, or some"
            " tables lack the batch.",
            slot=observed.slot_name,
            lsn=newest.end_lsn,
            advice="run the apply task of that batch again, or give the pipeline's own --staging-uri with the"
            " files brought back that are missing, or copy the tables again (copy_tables).",
        )
    return _passed_by_empty_batches(observed, newest, confirmed)


def _all_have(observed: Observed, newest: Marker) -> bool:
    """Whether the whole newest batch was applied: a later one was staged, or all of its tables have it."""
    ours = [each for each in observed.manifests if is_ours(each, observed)]
    if any(each.start_lsn >= newest.end_lsn for each in ours):
        return True
    batch = next((each for each in ours if each.batch_id == newest.batch_id), None)
    reached = _reached(observed)
    return batch is not None and all(
        reached.get(table.relation_oid, Lsn(0)) >= newest.end_lsn for table in batch.tables
    )


def _passed_by_empty_batches(observed: Observed, newest: Marker, confirmed: Lsn) -> Lsn:
    """The LSN up to which the tables have everything, because the batches up to it are empty.

    Later batches that are not applied are still in the staging area.
    """
    explained = newest.end_lsn
    for manifest in observed.manifests:
        follows = manifest.start_lsn <= explained < manifest.end_lsn
        if follows and manifest.is_empty and is_ours(manifest, observed):
            explained = manifest.end_lsn
    if bridge(observed, explained, confirmed) is not None:
        return explained
    if confirmed > explained:
        raise BatchGap(
            f"The slot is at {confirmed}, the tables at {newest.end_lsn}. It is not known whether there were "
            "changes in between.",
            slot=observed.slot_name,
            lsn=newest.end_lsn,
            advice="copy the tables again (copy_tables).",
        )
    return confirmed


def _reached(observed: Observed) -> dict[int, Lsn]:
    """By OID: the end of the newest batch that the table has in the lake."""
    return {
        each.relation_oid: each.marker.end_lsn
        for each in observed.lake.tables
        if each.marker is not None
    }


def _table_row(observed: Observed, table: LakeTable, marker: Marker) -> dict[str, Any]:
    start = marker.start_lsn or marker.end_lsn
    return {
        "slot_name": observed.slot_name,
        "system_identifier": marker.system_identifier,
        "batch_id": marker.batch_id,
        "table_name": table.source_name,
        "relation_oid": table.relation_oid,
        "target": table.target,
        "start_lsn": start.sortable,
        "end_lsn": marker.end_lsn.sortable,
        "snapshot_id": marker.snapshot_id,
    }
