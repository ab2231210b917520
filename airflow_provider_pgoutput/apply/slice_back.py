"""Takes one slice of a shared table back to an earlier snapshot. The rows of other slices stay as they are.

A table goes back when main gets an older head. That would take all slices back. So the rows of the slice are
deleted on a branch, those of the snapshot are added, and the branch is published. Its commit has the marker
that the snapshot has for the slice. Until it is published, readers see nothing of it.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.table import discard
from airflow_provider_pgoutput.apply.rows.branch_writer import BranchWriter
from airflow_provider_pgoutput.batch.checkpoint import BRANCH_PREFIX
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import PublishRefused
from airflow_provider_pgoutput.slices import SUMMARY_SLICE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_pgoutput.apply.iceberg.sql import Sql
    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable

log = logging.getLogger(__name__)

#: How many times it is tried while other pipelines write to the table.
_ATTEMPTS = 10


def take_back(spark: SparkSession, table: IcebergTable, snapshot_id: int, slot_name: str) -> None:
    """Give a slice the rows that it had in a snapshot.

    Other pipelines may write to their slices of the table meanwhile. Then it is tried again.

    :param table: as the slice sees it, and as it is now.
    :raises PublishRefused: somebody wrote to the slice meanwhile, or others to the table in every try.
    :raises CommitStateUnknown: the catalog did not say; repeating it is safe.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        branch, base = f"{BRANCH_PREFIX}back_{uuid.uuid4().hex[:8]}", table.head
        try:
            _replace_rows(spark, table, snapshot_id, slot_name, branch)
        except PublishRefused as refusal:
            discard(spark, table.name, branch)
            table.refresh()
            if attempt == _ATTEMPTS or table.slice_has_changed(since=base):
                raise
            log.warning("%s Taking the slice back again.", refusal)
        else:
            return


def _replace_rows(
    spark: SparkSession, table: IcebergTable, snapshot_id: int, slot_name: str, branch: str
) -> None:
    """Replace the rows of a slice on a new branch, and publish that, see ``take_back``."""
    slice_, own, base = table.name.slice, table.name.own(), table.head
    assert slice_ is not None, "whoever takes a whole table back moves main"
    assert own is not None
    marker = {**table.summary_of(snapshot_id, slot_name), SUMMARY_SLICE: slice_.id}
    table.create_branch(branch, base)
    writer = BranchWriter(spark, table, branch, ())
    writer.delete_all()
    reach("replay.slice_is_empty")
    writer.add(_rows_at(spark, table, snapshot_id, own), marker)
    writer.mark(marker)
    table.replace_main(branch, base, writer.head)


def _rows_at(spark: SparkSession, table: IcebergTable, snapshot_id: int, own: Sql) -> DataFrame:
    """The rows of the slice in a snapshot, in the columns of the table now."""
    at = f"SELECT * FROM {table.name.sql} VERSION AS OF {int(snapshot_id)} WHERE {own}"  # noqa: S608 - quoted
    then = spark.sql(at)
    now = spark.table(table.name.sql).schema
    held = set(then.columns)
    return then.select(
        *(
            (F.col(each.name) if each.name in held else F.lit(None))
            .cast(each.dataType)
            .alias(each.name)
            for each in now.fields
        )
    )
