"""A replay in place first takes its tables back to the start of its first batch.

All tables are checked before the first one goes back. Each table goes back in a commit of its own. A replay
that was killed between two of them is run again, and starts from the beginning.

The checkpoint table names the snapshot of each table at the LSN where the first batch starts. If it does not
(it was lost, and rebuilt from the newest snapshots), the summaries of the table's own snapshots and its tags
show it. If they do not either, one of the batches must hold a copy of the table.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.slice_back import take_back
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.apply.table.row_filter import refuse_other_filter
from airflow_provider_pgoutput.apply.table.start import (
    refuse_other_deletes,
    refuse_other_masks,
    start,
)
from airflow_provider_pgoutput.batch.applied import find_batch_end, start_of_next
from airflow_provider_pgoutput.batch.checkpoint import (
    PROPERTY_MASKS,
    PROPERTY_RELATION_OID,
    PROPERTY_ROW_FILTER,
)
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import BatchGap, TableRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.replay_steps import Step
    from airflow_provider_pgoutput.apply.table.target import Target
    from airflow_provider_pgoutput.batch.jobs import ReplayJob
    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Manifest

log = logging.getLogger(__name__)


def go_back(
    spark: SparkSession,
    job: ReplayJob,
    steps: Sequence[Step],
    firsts: Mapping[str, tuple[Target, Manifest]],
    progress: checkpoint.Progress,
) -> frozenset[str]:
    """Take all tables back.

    :param firsts: each table with the first batch in which it appears, by target.
    :return: the targets that do not go back because a copy in a batch replaces their rows.
    :raises BatchGap: the last batch does not end where the lake is.
    :raises TableRefused: a table can neither go back nor begin with a copy. Then no table has moved.
    """
    last = steps[-1].batch.manifest
    if progress.end_lsn != last.end_lsn:
        raise BatchGap(
            f"The batches end at {last.end_lsn}, and the checkpoint is {progress.end_lsn}: another run"
            " applied a batch meanwhile.",
            slot=last.slot_name,
            lsn=last.end_lsn,
            advice="run the task again.",
        )
    from_lsn = steps[0].batch.manifest.start_lsn
    keys = {each.source.relation_oid: each.name.key for each, _ in firsts.values() if each.slice}
    known = checkpoint.snapshots_at(spark, job, last, from_lsn, keys)
    copied: set[str] = set()
    rollbacks: list[tuple[IcebergTable, int]] = []
    for name, (target, manifest) in firsts.items():
        _refuse_other_target(target, progress)
        table = IcebergTable.load(spark, target.name)
        snapshot_id = None
        if table is not None:
            end_lsn, snapshots = known.get(name, (None, ()))
            slot_name = manifest.slot_name
            by_history = find_batch_end(
                manifest, table.snapshots(slot_name), table.tagged(slot_name), from_lsn
            )
            ends = {
                each: table.end_of(each, slot_name)
                for each in (*snapshots, by_history)
                if each is not None
            }
            # A snapshot counts only if it is of the batch that the checkpoint names. If it were of an older
            # batch, changes in between would be missing.
            snapshot_id = next((each for each in ends if end_lsn in {None, ends[each]}), None)
            # Called for its refusals only: the table may belong to another pipeline. The result is not used.
            start(spark, target, manifest, checkpoint.Progress(from_lsn))
            refuse_other_deletes(target, table)
            _refuse_other_rows(target, table)
        _refuse_other_columns(steps, target, table, snapshot_id)
        is_copied = target.source.copy_lsn is not None and not target.keeps_past
        # A snapshot from before a copy may have rows with other masks than the table's properties say, or
        # that passed another filter.
        of_rows = {PROPERTY_MASKS, PROPERTY_ROW_FILTER}
        if is_copied and table is not None and not of_rows.isdisjoint(table.properties):
            snapshot_id = None
        if table is not None and snapshot_id is not None:
            _refuse_inside_batch(table, manifest, snapshot_id, from_lsn)
            rollbacks.append((table, snapshot_id))
        elif is_copied:
            copied.add(name)
        else:
            raise TableRefused(
                f"The snapshot of the table at {from_lsn} is not there any more, and no batch copies it.",
                slot=manifest.slot_name,
                table=name,
                lsn=from_lsn,
                advice="begin where the table was copied, or copy it again (copy_tables); a change log or"
                " a history cannot begin anew in place: replay it into another namespace.",
            )
    changed = {target.name.target for target, _ in firsts.values()}
    if untouched := sorted(set(progress.tables) - changed):
        log.info(
            "No batch has a change of these, so they stay as they are: %s.", ", ".join(untouched)
        )
    for table, snapshot_id in rollbacks:
        if table.name.slice is not None:
            log.info("A slice of %s goes back to snapshot %d.", table.name.target, snapshot_id)
            table.refresh()
            take_back(spark, table, snapshot_id, last.slot_name)
        elif table.head != snapshot_id:
            log.info("%s goes back to snapshot %d.", table.name.target, snapshot_id)
            table.go_back(snapshot_id)
        reach("replay.after_rollback")
    return frozenset(copied)


def _refuse_other_target(target: Target, progress: checkpoint.Progress) -> None:
    """Refuse if the pipeline writes the source's table to another target.

    The replay would make a second target.
    """
    earlier = progress.target_of.get(target.source.relation_oid)
    if earlier is not None and earlier != target.name.target:
        raise TableRefused(
            f"The pipeline writes the table to {earlier}.",
            table=target.source.name,
            advice="give table_options as the pipeline has them.",
        )


def _refuse_other_rows(target: Target, table: IcebergTable) -> None:
    """Refuse what ``start`` would refuse only after the table has gone back.

    Its properties do not go back. They say that its rows are of another table of the source, have other
    masks, or passed another filter.
    """
    source = target.source
    oid = str(source.relation_oid)
    if source.copy_lsn is None and table.properties.get(PROPERTY_RELATION_OID, oid) != oid:
        raise TableRefused(
            "The table was dropped and created again at the source since, so it cannot go back in place.",
            table=target.name.target,
            advice="begin with the batch that copied the new table, replay into another namespace, or name"
            " the other tables (tables).",
        )
    refuse_other_masks(
        target,
        table,
        "begin with the batch that copied the table with the masks of now, replay into another namespace, or"
        " name the other tables (tables).",
    )
    refuse_other_filter(
        source,
        table.properties,
        "begin with the batch that copied the table with the filter of now, replay into another namespace, or"
        " name the other tables (tables).",
    )


def _refuse_other_columns(
    steps: Sequence[Step], target: Target, table: IcebergTable | None, snapshot_id: int | None
) -> None:
    """Refuse to replay a change of columns into a table that already has the changed columns.

    Example: a default that a new column gave to older rows would be missing in them.
    """
    versions = [
        version.columns
        for step in steps
        for each in step.targets
        if each.name == target.name
        for version in each.source.versions
    ]
    # The attribute number tells a column from an earlier, dropped one of the same name. Batches of version
    # 0.1 have no numbers.
    numbered = all(column.attribute_number for columns in versions for column in columns)
    shapes = {
        tuple((each.name, each.lake_type, numbered and each.attribute_number) for each in columns)
        for columns in versions
    }
    other = table is not None and snapshot_id is not None and table.has_other_columns(snapshot_id)
    if len(shapes) > 1 or other:
        raise TableRefused(
            "The table's columns changed since, so it cannot go back in place.",
            table=target.name.target,
            advice="replay into another namespace, begin after the change, or copy the table again"
            " (copy_tables).",
        )


def _refuse_inside_batch(
    table: IcebergTable, manifest: Manifest, snapshot_id: int, from_lsn: Lsn
) -> None:
    """Refuse to begin inside the batch that the table got next: that batch's first changes would be missing.

    :param manifest: any batch of the slot; it names slot and system.
    """
    history = table.snapshots(manifest.slot_name)
    following = start_of_next(manifest, history, snapshot_id)
    if following is not None and following < from_lsn:
        raise TableRefused(
            f"The table got its next changes by a batch that begins at {following}, before {from_lsn}: those"
            " between would be missing.",
            slot=manifest.slot_name,
            table=table.name.target,
            lsn=from_lsn,
            advice=f"begin at {following}.",
        )
