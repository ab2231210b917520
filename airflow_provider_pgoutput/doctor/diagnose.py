"""Compares slot, checkpoint, tables and staging area of one pipeline, and names what does not agree.

It changes nothing. ``observe.py`` reads what is compared here, ``findings.py`` explains what a running task
causes, ``repair.py`` repairs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.checkpoint import DEAD_AFTER
from airflow_provider_pgoutput.batch.earlier_systems import from_text
from airflow_provider_pgoutput.batch.lsn import NO_OFFSET, Lsn
from airflow_provider_pgoutput.capture.slot.replication_slot import (
    check_not_ahead,
    check_slot,
    check_wal_level,
)
from airflow_provider_pgoutput.capture.source.timelines import check_system, check_written
from airflow_provider_pgoutput.capture.staging.manifests import first_of_bridge, preference
from airflow_provider_pgoutput.doctor.findings import NOTE, PROBLEM, Finding, without_work
from airflow_provider_pgoutput.errors import (
    PgoutputError,
    SlotBusy,
    SlotNotFound,
    SourceChanged,
    SourceUnavailable,
)
from airflow_provider_pgoutput.lake.state import key_of, tables_set_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.doctor.findings import Observed
    from airflow_provider_pgoutput.lake.state import LakeTable, Recorded


def examine(observed: Observed) -> list[Finding]:
    """Name everything that does not agree. If all is well, the list is empty."""
    checks: tuple[Callable[[Observed], Iterator[Finding]], ...] = (
        _source,
        _slot,
        _checkpoint,
        _tables,
        _set_aside,
        _branches,
        _staging,
    )
    return without_work([finding for check in checks for finding in check(observed)], observed)


def _source(observed: Observed) -> Iterator[Finding]:
    server, checkpoint = observed.server, observed.checkpoint
    if server is None:
        return
    try:
        check_wal_level(server)
    except PgoutputError as error:
        yield _problem("source", error)
    if server.lsn_offset != NO_OFFSET:
        what = f"The lake adds {server.lsn_offset} to the LSNs of the server."
        yield Finding(NOTE, "source", what, "nothing: the server was adopted with smaller LSNs.")
    end_lsn = None if checkpoint is None else checkpoint.end_lsn
    try:
        check_system(server, observed.system_identifier, end_lsn, observed.slot_name)
        if end_lsn is not None:
            check_written(server, end_lsn, observed.slot_name)
    except (SourceChanged, SourceUnavailable) as error:
        yield _problem("source", error)


def _slot(observed: Observed) -> Iterator[Finding]:
    server, slot, checkpoint = observed.server, observed.slot, observed.checkpoint
    if server is None:
        return
    if slot is None:
        if checkpoint is not None:
            missing = SlotNotFound(
                f"The slot does not exist; the lake is at {checkpoint.end_lsn}.",
                advice="find out who dropped it; changes since then are gone: run once with"
                " on_slot_lost='copy'.",
            )
            yield _problem("slot", missing)
        else:
            yield Finding(
                PROBLEM,
                "slot",
                f"There is no slot {observed.slot_name} at the source, and the namespace has no batch of it.",
                "look whether slot_name and namespace are the pipeline's. Its first run makes the slot.",
                in_runs=True,
            )
        return
    try:
        confirmed = check_slot(slot, server, two_phase=observed.two_phase)
        waits = None if checkpoint is None else bridge(observed, checkpoint.end_lsn, confirmed)
        if waits is not None:
            yield Finding(
                NOTE,
                "slot",
                f"The slot has passed the batch {_range(waits)}, which is not applied: only the staging "
                "area holds its changes.",
                "run the DAG, which applies it and, run by run, what follows; keep the staging area until"
                " then.",
                in_runs=True,
            )
        elif checkpoint is not None:
            check_not_ahead(confirmed, checkpoint.end_lsn, slot.name)
    except PgoutputError as error:
        yield replace(_problem("slot", error), in_runs=isinstance(error, SlotBusy))
        return
    if checkpoint is not None and confirmed < checkpoint.end_lsn:
        yield Finding(
            NOTE,
            "slot",
            f"The slot is at {confirmed}, the lake at {checkpoint.end_lsn}: the server keeps "
            f"{checkpoint.end_lsn - confirmed} bytes of WAL that nobody needs.",
            f"{observed.unless_at_work}run the advance task.",
            in_runs=True,
        )


def bridge(observed: Observed, checkpoint: Lsn, confirmed: Lsn) -> Manifest | None:
    """The complete batch that the next run takes if the slot is past the checkpoint; None: there is none."""
    server = observed.server
    complete = [
        each
        for each in reversed(observed.manifests)
        if is_ours(each, observed) and each.batch_id not in observed.incomplete
    ]

    def longest(
        counts: Callable[[Lsn, Lsn], bool], accepts: Callable[[Manifest], bool]
    ) -> Manifest | None:
        found = [
            each for each in complete if counts(each.start_lsn, each.end_lsn) and accepts(each)
        ]
        return max(found, key=lambda each: (each.end_lsn, preference(each)), default=None)

    return None if server is None else first_of_bridge(longest, server, checkpoint, confirmed)


def _checkpoint(observed: Observed) -> Iterator[Finding]:
    checkpoint = observed.checkpoint
    applied = [each for each in observed.lake.tables if each.marker is not None]
    if checkpoint is None and applied and observed.lake.recorded:
        # A batch records the rows of its tables and its own row in one commit. Here the own row is missing.
        yield Finding(
            NOTE,
            "checkpoint",
            f"{len(applied)} tables hold batches of the slot, and the checkpoint table has rows of tables"
            " only: a replay of some tables into this namespace.",
            "nothing. No pipeline can go on in this namespace, as it holds only a replay.",
        )
    elif checkpoint is None and applied:
        yield Finding(
            PROBLEM,
            "checkpoint",
            f"The checkpoint table has no row of the slot, and {len(applied)} tables hold batches of it: the "
            "next run would copy everything again.",
            "rebuild the checkpoint from the tables' snapshot summaries: run this command with --repair.",
            repairable=True,
        )


def _tables(observed: Observed) -> Iterator[Finding]:
    checkpoint = observed.checkpoint
    present = {each.key: each for each in observed.lake.tables}
    shared = {each.target for each in observed.lake.tables if each.is_shared}
    # A table that was made again at the source has another OID.
    of_slices: dict[tuple[str, str | None], Recorded] = {}
    newest: dict[str, Recorded] = {}
    for row in observed.lake.recorded or ():
        if row.target in shared:
            of_slices[str(row.target), row.table_name] = row
        elif row.target is not None:
            newest[row.target] = row
    newest |= {key_of(str(e.target), e.relation_oid): e for e in of_slices.values()}
    for key, row in sorted(newest.items()):
        target, table = str(row.target), present.get(key)
        if table is None:
            yield _gone(observed, row, newest)
        elif table.marker is None or table.marker.end_lsn < row.end_lsn:
            says = "nothing" if table.marker is None else table.marker.end_lsn
            yield Finding(
                PROBLEM,
                target,
                f"The checkpoint says {row.end_lsn}, the table says {says}: it was rolled back.",
                _ways_forward(table, row.table_name or table.source_name),
                in_replays=True,
            )
    for table in observed.lake.tables:
        if strangers := _strangers(table, observed):
            known = newest.get(table.key)
            if known is None or not _is_left_behind(known, newest):
                yield _half_adopted(table, known, strangers, observed)
            continue
        if table.was_rolled_back and table.key not in newest:
            yield Finding(
                PROBLEM,
                table.target,
                "The table does not hold the batch that was published last: it was rolled back.",
                _ways_forward(table, table.source_name),
                in_replays=True,
            )
        if table.marker and checkpoint and table.marker.end_lsn > checkpoint.end_lsn:
            yield Finding(
                NOTE,
                table.target,
                f"The table holds a batch up to {table.marker.end_lsn}, the checkpoint is "
                f"{checkpoint.end_lsn}: an apply died after it published this table"
                + (", or is under way." if observed.running is None else "."),
                f"{observed.unless_at_work}run the apply task again; what is there already is passed over.",
                in_runs=True,
            )


def _strangers(table: LakeTable, observed: Observed) -> list[str]:
    """Systems that wrote to a table, and of which the checkpoint table knows nothing."""
    whole = [each for each in observed.lake.recorded or () if each.table_name is None]
    known = {each.system_identifier for each in whole}
    known |= {e.system_identifier for each in whole for e in from_text(each.adopted_from)}
    if observed.checkpoint is None or None in known:
        # The checkpoint table is gone, or an early version of the package wrote to it.
        return []
    found = {table.system_identifier}
    if table.marker is not None:
        found.add(table.marker.system_identifier)
    return sorted(found - known)


def _is_left_behind(row: Recorded, newest: Mapping[str, Recorded]) -> bool:
    """Whether a later batch wrote the same table of the source to another target."""
    return any(
        each.relation_oid == row.relation_oid and each.end_lsn > row.end_lsn
        for each in newest.values()
    )


def _half_adopted(
    table: LakeTable, row: Recorded | None, systems: list[str], observed: Observed
) -> Finding:
    """The finding for a table that has the batch of an adoption, while the checkpoint lacks that batch.

    :param row: the table's newest row in the checkpoint table; None: the adoption made the table.
    """
    way = (
        "drop the table."
        if row is None
        else f"copy the table (copy_tables=[{row.table_name!r}]), a change log into a new target."
    )
    return Finding(
        PROBLEM,
        table.target,
        f"System {', '.join(systems)} began to write to the table, and the checkpoint has nothing of it: the"
        " apply of the batch that adopts this system died"
        + (", or is under way." if observed.running is None else "."),
        f"{observed.unless_at_work}run that apply task again. If you gave the adoption up, {way}",
        in_runs=True,
    )


def _ways_forward(table: LakeTable, source_name: str) -> str:
    """The ways to mend a table that was rolled back, the cheapest one first."""
    ways = []
    if table.published_snapshot_id is not None:
        snapshot = f"'{table.target}', {table.published_snapshot_id}"
        ways.append(f"undo it in Spark: CALL <catalog>.system.set_current_snapshot({snapshot})")
    if table.marker is not None:
        replay = (
            f"PgoutputReplayOperator(from_lsn='{table.marker.end_lsn}', tables=[{source_name!r}])"
        )
        ways.append(f"apply its batches again: {replay}")
    ways.append(f"copy it again: copy_tables=[{source_name!r}]")
    return "; or ".join(ways) + "."


def _set_aside(observed: Observed) -> Iterator[Finding]:
    for each in tables_set_aside(observed.lake.recorded or ()).values():
        yield Finding(
            PROBLEM,
            each.table_name,
            f"It is set aside since {each.since_lsn}. {each.in_words} {each.refusal}",
            "when the cause is gone, copy it (copy_tables), a change log into a new target."
            if each.needs_copy
            else "when the cause is gone, run PgoutputReplayOperator without from_lsn. A table that was"
            " rolled back or dropped, or that lacks rows, is copied (copy_tables)."
            + (" So is a change log, into a new target." if each.lacks_unstaged else ""),
        )


def _gone(observed: Observed, row: Recorded, newest: Mapping[str, Recorded]) -> Finding:
    """The finding for a target that the checkpoint names and the lake does not have."""
    said = f"The table is gone; batches up to {row.end_lsn} were applied to it"
    later = [
        each.target
        for each in newest.values()
        if each.relation_oid == row.relation_oid and each.end_lsn > row.end_lsn
    ]
    ours = [each for each in observed.manifests if is_ours(each, observed)]
    last = max(ours, key=lambda each: each.end_lsn, default=None)
    published = None if last is None else last.published
    if later:
        text = f"{said}. Since then its source is written to {', '.join(map(str, later))}."
        return Finding(NOTE, str(row.target), text, "nothing, if you dropped it.")
    if published is not None and row.relation_oid not in {
        each.relation_oid for each in published.tables
    }:
        text = f"{said}. Its source is not published any more."
        return Finding(NOTE, str(row.target), text, "nothing, if you dropped it.")
    advice = f"bring it back, or copy it again: copy_tables=[{row.table_name!r}]."
    return Finding(PROBLEM, str(row.target), f"{said}.", advice)


def _branches(observed: Observed) -> Iterator[Finding]:
    for table in {each.target: each for each in observed.lake.tables}.values():
        dead = dead_branches(table, observed.now)
        if dead:
            by_hand = (
                "but --repair cannot: pyiceberg writes no table of this format version to this catalog. By"
                f" hand: ALTER TABLE <catalog>.{table.target} DROP BRANCH <name>"
            )
            way = "and so does --repair." if table.is_writable else by_hand
            yield Finding(
                NOTE,
                table.target,
                f"{len(dead)} branches of attempts that died are left: {', '.join(dead)}.",
                f"the next apply that changes the table removes them, {way}",
                repairable=table.is_writable,
            )


def dead_branches(table: LakeTable, now: datetime) -> list[str]:
    """Our branches whose attempt is dead."""
    return sorted(name for name, newest in table.branches.items() if now - newest > DEAD_AFTER)


def _staging(observed: Observed) -> Iterator[Finding]:
    checkpoint = observed.checkpoint
    position = Lsn(0) if checkpoint is None else checkpoint.end_lsn
    waiting = [
        each for each in observed.manifests if each.end_lsn > position and is_ours(each, observed)
    ]
    for manifest in waiting:
        if manifest.batch_id in observed.incomplete:
            yield Finding(
                NOTE,
                "staging",
                f"Files of the batch {_range(manifest)} are missing.",
                "bring them back from a backup: the slot has passed the batch."
                if _is_passed(manifest, observed)
                else "run the stage task: it stages the batch again, as the slot still holds its changes.",
            )
        elif _is_passed_over(manifest, observed):
            yield Finding(
                NOTE,
                "staging",
                f"The batch {_range(manifest)} was sealed before the source was promoted and not applied.",
                "run the stage task: it stages anew what the source has; do not apply this batch.",
            )
        elif checkpoint is not None and manifest.start_lsn > position:
            confirmed = None if observed.slot is None else observed.slot.confirmed_flush_lsn
            yield Finding(
                PROBLEM,
                "staging",
                f"The batch {_range(manifest)} starts past the checkpoint {position}: the batch between is "
                "missing.",
                "bring back the batch between. If it is lost for good: run once with on_slot_lost='copy'."
                if confirmed is None or confirmed > position
                else f"remove {manifest.path} from the staging area: the next run stages all from"
                f" {position} on.",
            )
        else:
            position = max(position, manifest.end_lsn)
            yield Finding(
                NOTE,
                "staging",
                f"The batch {_range(manifest)} is sealed and not applied.",
                f"{observed.unless_at_work}run the apply task; the next run finds it by itself.",
                in_runs=True,
            )


def _is_passed(manifest: Manifest, observed: Observed) -> bool:
    """Whether the slot is past the start of a batch, so that it cannot give all of its changes again."""
    confirmed = None if observed.slot is None else observed.slot.confirmed_flush_lsn
    return confirmed is None or confirmed > manifest.start_lsn


def _is_passed_over(manifest: Manifest, observed: Observed) -> bool:
    """Whether no run takes a batch, as it is of a timeline that the source has left.

    It may end with transactions that the source lost at a promotion.
    """
    server, slot = observed.server, observed.slot
    if server is None or manifest.timeline >= server.timeline:
        return False
    return slot is None or manifest.end_lsn != slot.confirmed_flush_lsn


def is_ours(manifest: Manifest, observed: Observed) -> bool:
    """Whether a batch is of the system from which the lake was filled."""
    known = observed.system_identifier
    return known is None or manifest.system_identifier == known


def _range(manifest: Manifest) -> str:
    return f"{manifest.start_lsn} to {manifest.end_lsn}"


def _problem(where: str, error: PgoutputError) -> Finding:
    return Finding(PROBLEM, where, error.message, error.advice or "")
