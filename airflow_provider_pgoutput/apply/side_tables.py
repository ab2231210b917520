"""Appends rows to the pipeline's own two tables, exactly once.

A value that does not fit its column is NULL in the table; one side table keeps its text. The other side table
has the logical messages, which belong to no table of the source. All slots of a namespace share the two. Each
commit carries its batch's marker, as in every table.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.failures import named_failures
from airflow_provider_pgoutput.apply.iceberg.sql import Sql, TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable, discard
from airflow_provider_pgoutput.apply.iceberg.views import refuse_view
from airflow_provider_pgoutput.apply.publish import remove_dead_branches
from airflow_provider_pgoutput.apply.rows.staged_files import read_files
from airflow_provider_pgoutput.apply.schema.evolve import create_table, evolve
from airflow_provider_pgoutput.apply.table.given_up import lost_since
from airflow_provider_pgoutput.batch.changes import COMMIT_LSN, LSN, MESSAGES, REJECTED
from airflow_provider_pgoutput.batch.checkpoint import (
    BRANCH_PREFIX,
    MESSAGES_TABLE,
    OWN_PROPERTIES,
    REJECTED_TABLE,
    marker_of,
)
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import CommitStateUnknown, PublishRefused, TableRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_pgoutput.apply.rows.staged_files import StagedBatch
    from airflow_provider_pgoutput.batch.applied import Marker
    from airflow_provider_pgoutput.batch.manifest import Manifest

log = logging.getLogger(__name__)

#: Other slots may publish to the same table at the same time.
_ATTEMPTS = 10
_SLOT_NAME = "slot_name"


@dataclass(frozen=True, slots=True)
class SideTable:
    """One of the pipeline's own tables that a batch appends rows to."""

    name: TableName
    #: Name and lake type of the staged columns. The table also has ``slot_name``, because all slots share it.
    columns: Sequence[tuple[str, str]]
    comment: str


def check_side_tables(spark: SparkSession, batch: StagedBatch) -> None:
    """Look at the side tables that the batch appends to, before anything is published.

    :raises TableRefused: a slot of the same name of another system filled one, or a view has its name.
    """
    manifest = batch.manifest
    wanted = ((REJECTED_TABLE, manifest.rejected_files), (MESSAGES_TABLE, manifest.message_files))
    for each in [_name(batch, table) for table, files in wanted if files]:
        table = IcebergTable.load(spark, each)
        if table is None:
            refuse_view(spark, each)
        else:
            _refuse_other_system(each, table.marker(manifest.slot_name), manifest)


def _refuse_other_system(name: TableName, marker: Marker | None, manifest: Manifest) -> None:
    if marker and not manifest.systems.have(marker.system_identifier, marker.end_lsn):
        raise TableRefused(
            f"The table has rows of a slot of this name of system {marker.system_identifier}; the batch"
            f" is of system {manifest.system_identifier}.",
            table=name.target,
            advice="name the new source's slot otherwise, or drop this table if it is no longer needed.",
        )


def append_rejected(spark: SparkSession, batch: StagedBatch, floor: Lsn | None = None) -> None:
    """Append the rejected values, unless their table has them.

    :param floor: the checkpoint; rows that committed before it are not appended.
    :raises PublishRefused: other slots kept writing at the same time.
    """
    manifest = batch.manifest
    if manifest.rejected_files:
        rows = read_files(spark, batch, manifest.rejected_files, REJECTED)
        for each in manifest.passed_over:
            if each.since_lsn is not None:
                since = int(Lsn.parse(each.since_lsn))
                is_passed = f"relation_oid = {each.relation_oid} AND {COMMIT_LSN} >= {since}"
                rows = rows.where(f"NOT coalesce({is_passed}, false)")
        comment = "Values that their column could not hold, as PostgreSQL's text"
        table = SideTable(_name(batch, REJECTED_TABLE), REJECTED, comment)
        _append(spark, batch, table, rows, floor)


def append_messages(spark: SparkSession, batch: StagedBatch, floor: Lsn | None = None) -> None:
    """Append the logical messages, unless the side table has them.

    :param floor: the checkpoint; messages that committed before it are not appended.
    :raises PublishRefused: other slots kept writing at the same time.
    """
    manifest = batch.manifest
    if manifest.message_files:
        rows = read_files(spark, batch, manifest.message_files, MESSAGES)
        comment = "Logical messages of PostgreSQL, pg_logical_emit_message"
        table = SideTable(_name(batch, MESSAGES_TABLE), MESSAGES, comment)
        _append(spark, batch, table, rows, floor)


def _name(batch: StagedBatch, table: str) -> TableName:
    return TableName(batch.job.catalog_name, batch.job.namespace, table)


def _append(
    spark: SparkSession, batch: StagedBatch, side: SideTable, rows: DataFrame, floor: Lsn | None
) -> None:
    manifest, name = batch.manifest, side.name
    rows = rows.withColumn(_SLOT_NAME, F.lit(manifest.slot_name))
    table = IcebergTable.load(spark, name) or create_table(
        spark,
        name,
        [(column, kind, False) for column, kind in (*side.columns, (_SLOT_NAME, "string"))],
        comment=side.comment,
        properties=OWN_PROPERTIES,
    )
    # An earlier version made the table of rejected values without ``slot_name``.
    evolve(spark, table, (), (), {}, {_SLOT_NAME: "string"})
    remove_dead_branches(spark, batch, name)
    for attempt in range(1, _ATTEMPTS + 1):
        table.refresh()
        marker = table.marker(manifest.slot_name)
        _refuse_other_system(name, marker, manifest)
        has = _has(name, marker, manifest)
        if has is not None and has >= manifest.end_lsn:
            return
        branch, base = f"{BRANCH_PREFIX}{manifest.batch_id[:16]}_{uuid.uuid4().hex[:8]}", table.head
        try:
            with named_failures():
                table.create_branch(branch, base)
                writer = rows.where(_unwritten(side, manifest, has, floor)).writeTo(
                    name.branch_sql(branch)
                )
                for key, text in marker_of(manifest).items():
                    writer = writer.option(f"snapshot-property.{key}", text)
                writer.append()
                reach("apply.after_side_append")
                table.refresh()
            head = table.branch_head(branch)
            table.publish(branch, base, head, manifest, tag_days=0)
        except (PublishRefused, CommitStateUnknown):
            discard(spark, name, branch)
            if attempt == _ATTEMPTS:
                raise
            log.info("%s moved; looking again.", name.target)
        else:
            reach("apply.after_side_publish")
            return


def _has(name: TableName, marker: Marker | None, manifest: Manifest) -> Lsn | None:
    """Up to which LSN the side table has the rows of the source's own history; None: it has none."""
    lost = lost_since(marker, manifest)
    if lost is None:
        return None if marker is None else marker.end_lsn
    log.warning(
        "%s has rows from before a promotion that the source lost, with an LSN of %s or greater. They stay.",
        name.target,
        lost,
    )
    return lost


def _unwritten(side: SideTable, manifest: Manifest, has: Lsn | None, floor: Lsn | None) -> Sql:
    """SQL condition of the rows that the side table lacks. It may have some, because batches can overlap.

    :param has: see ``_has``.
    """
    end = max(has or Lsn(0), floor or Lsn(0))
    if not end:
        return Sql("true")
    if side.columns is REJECTED:
        copies = [Lsn.parse(table.copy_lsn) for table in manifest.tables if table.copy_lsn]
        new = has is None or any(each > has for each in copies)
        outside = "true" if new else "false"
    else:
        # A message's LSN is where its record ends. If that is where the batch ends, the message belongs to
        # the batch.
        outside = f"{LSN} > {int(end)}"
    return Sql(f"CASE WHEN {COMMIT_LSN} IS NULL THEN {outside} ELSE {COMMIT_LSN} >= {int(end)} END")
