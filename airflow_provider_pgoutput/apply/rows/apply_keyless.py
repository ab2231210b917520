"""Applies the changes of a table without a key to a branch. Equal rows are counted.

With REPLICA IDENTITY FULL a delete removes exactly one of several equal rows. Without it, only inserts and
truncates can come. ``branch_writer.py`` finds the rows to delete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import StorageLevel

from airflow_provider_pgoutput.apply.iceberg.sql import Sql
from airflow_provider_pgoutput.apply.rows import change_log
from airflow_provider_pgoutput.apply.rows.full_identity import COPIES, image, net_images
from airflow_provider_pgoutput.apply.rows.unknown_values import settle
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import BatchRefused, TableRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_pgoutput.apply.rows.segments import Segment
    from airflow_provider_pgoutput.apply.rows.table_state import TableState


def apply(preparation: TableState, segment: Segment, changes: DataFrame, is_last: bool) -> None:
    """Apply a segment's changes to the branch.

    :raises RowMissing: a row that was deleted or updated is not in the target.
    :raises BatchRefused: updates or deletes came, and nothing identifies the rows.
    :raises TableRefused: the table was loaded from outside, perhaps with some of these changes.
    """
    if preparation.start.overlaps and not preparation.empty and not changes.isEmpty():
        raise TableRefused(
            "The table was loaded from outside and has no key, so it is not known which changes the load "
            "has already.",
            table=segment.table,
            advice="name the table in copy_tables; to give it a key with key_columns, remove the manifest of "
            "this batch too, so that it is staged again.",
        )
    if segment.full:
        _apply_net(preparation, segment, changes, is_last)
        return
    if not changes.where("op != 'I'").isEmpty():
        raise BatchRefused(
            "Updates or deletes came for a table whose rows nothing identifies.",
            table=segment.table,
            advice="name columns that identify a row in key_columns of the stage task, or give the table a"
            " primary key or REPLICA IDENTITY FULL on the source; then name it in copy_tables, and remove the"
            " manifest of this batch, so that it is staged again.",
        )
    if changes.isEmpty():
        return
    _append(preparation, changes, is_last, preparation.counts.inserts)


def _apply_net(
    preparation: TableState, segment: Segment, changes: DataFrame, is_last: bool
) -> None:
    netted = images = net_images(changes, segment).persist(StorageLevel.MEMORY_AND_DISK)
    # With soft delete, a row that is marked as deleted does not count as an equal row.
    live = Sql(f"NOT ({preparation.marked_deleted})")
    try:
        gone = netted.where(f"{COPIES} < 0").selectExpr(
            *(image(i) for i in segment.image_columns), f"-{COPIES} AS {COPIES}"
        )
        if segment.unknown and not gone.isEmpty():
            held = preparation.writer().images(segment.image_columns, live)
            found = settle(netted, held, segment)
            if found.missing:
                raise preparation.writer().row_missing()
            netted, gone = found.netted, found.gone
        counts = netted.selectExpr(
            f"sum(greatest({COPIES}, 0)) AS added", f"sum(greatest(-{COPIES}, 0)) AS removed"
        ).collect()[0]
        added, removed = counts["added"] or 0, counts["removed"] or 0
        kept = f"array_repeat(true, CAST(greatest({COPIES}, 0) AS INT))"
        if removed:
            preparation.writer().delete_images(gone, COPIES, live)
            preparation.count(deleted_keys=removed)
            if preparation.soft_delete:
                kept = f"array_repeat({COPIES} > 0, CAST(abs({COPIES}) AS INT))"
        reach("apply.after_delete")
        if added or (removed and preparation.soft_delete):
            rows = netted.selectExpr("*", f"explode({kept}) AS live")
            _append(preparation, rows, is_last, added)
    finally:
        images.unpersist()


def _append(preparation: TableState, rows: DataFrame, is_last: bool, count: int) -> None:
    if "live" not in rows.columns:
        rows = rows.selectExpr("*", "true AS live")
    marker = preparation.marker if is_last else None
    preparation.writer().append(rows, change_log.of_folded(), marker)
    preparation.note_rows(count)
    reach("apply.after_append")
