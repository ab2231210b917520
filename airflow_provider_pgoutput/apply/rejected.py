"""Appends the batch's rejected values to their side table, exactly once.

Values that their column could not hold are NULL in the table and kept here as text. The side table
is shared by the slots of a namespace; each commit carries its batch's marker, as on every table.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.evolve import create_table
from airflow_provider_pgoutput.apply.iceberg import BRANCH_PREFIX, IcebergTable, marker_of
from airflow_provider_pgoutput.apply.names import TableName
from airflow_provider_pgoutput.apply.publish import remove_dead_branches
from airflow_provider_pgoutput.apply.staged import read_files
from airflow_provider_pgoutput.batch.changes import REJECTED
from airflow_provider_pgoutput.batch.checkpoint import REJECTED_TABLE
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.errors import CommitStateUnknown, PublishRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.iceberg import Marker
    from airflow_provider_pgoutput.apply.staged import StagedBatch
    from airflow_provider_pgoutput.batch.manifest import Manifest

logger = logging.getLogger(__name__)

#: Other slots may publish to the same table at the same time.
_ATTEMPTS = 10


def append(spark: SparkSession, batch: StagedBatch) -> None:
    """Append the rejected values, unless the side table has them.

    :raises PublishRefused: other slots kept writing at the same time.
    """
    manifest, plan = batch.manifest, batch.plan
    if not manifest.rejected_files:
        return
    name = TableName(plan.catalog, plan.namespace, REJECTED_TABLE)
    table = IcebergTable.load(spark, name) or create_table(
        spark,
        name,
        [(column, kind, False) for column, kind in REJECTED],
        comment="Values that their column could not hold, as PostgreSQL's text",
        properties={"format-version": "2"},
    )
    rows = read_files(spark, batch, manifest.rejected_files, REJECTED)
    remove_dead_branches(spark, batch, name)
    for attempt in range(1, _ATTEMPTS + 1):
        table.java.refresh()
        marker = table.marker(manifest.slot_name)
        if marker and marker.end_lsn >= manifest.end_lsn:
            return
        branch, base = f"{BRANCH_PREFIX}{manifest.batch_id[:16]}_{uuid.uuid4().hex[:8]}", table.head
        table.create_branch(branch, base)
        writer = rows.where(_unwritten(manifest, marker)).writeTo(name.branch_sql(branch))
        for key, text in marker_of(manifest).items():
            writer = writer.option(f"snapshot-property.{key}", text)
        writer.append()
        table.java.refresh()
        try:
            head = table.branch_head(branch)
            table.publish(branch, base, head, manifest, tag_days=0)
        except (PublishRefused, CommitStateUnknown):
            if attempt == _ATTEMPTS:
                raise
            logger.info("The side table moved; looking again.")


def _unwritten(manifest: Manifest, marker: Marker | None) -> str:
    """SQL of the rows that the side table lacks: batches may overlap."""
    if marker is None:
        return "true"
    copies = [Lsn.parse(table.copy_lsn) for table in manifest.tables if table.copy_lsn]
    copied = "true" if any(each > marker.end_lsn for each in copies) else "false"
    return (
        f"CASE WHEN commit_lsn IS NULL THEN {copied} ELSE commit_lsn >= {int(marker.end_lsn)} END"
    )
