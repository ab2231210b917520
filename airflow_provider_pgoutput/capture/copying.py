"""Copy published tables into a batch, as they are in an exported snapshot.

What is not here: the reading itself (``source/copy.py``), and the changes that follow (``reading.py``).
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.crash_points import reach
from airflow_provider_pgoutput.capture.progress import Progress
from airflow_provider_pgoutput.capture.source.copy import CopyOrder, copy_tables
from airflow_provider_pgoutput.capture.source.slot import ExportedSnapshot, create_slot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.context import CaptureContext
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress

log = logging.getLogger(__name__)


def copy_published(
    context: CaptureContext,
    batch: BatchInProgress,
    snapshot: ExportedSnapshot,
    tables: Sequence[PublishedTable],
) -> None:
    """Stage tables as they are in the snapshot."""
    point = snapshot.consistent_point
    orders = [
        CopyOrder(
            table, batch.add_copy(table.relation_oid, context.describer.published(table), point)
        )
        for table in tables
    ]
    progress = Progress(point, point)
    for copied in copy_tables(
        context.request.conninfo, snapshot.name, orders, context.request.copy_connections
    ):
        batch.copy_rows(copied.staged, copied.rows, copied.rejected)
        reach("stage.during_copy")
        progress.report(batch.rows, copied.rows.nbytes, point)


def copy_apart(
    context: CaptureContext, batch: BatchInProgress, tables: Sequence[PublishedTable]
) -> Lsn:
    """Copy tables in the middle of a batch, while the changes of all others flow.

    :returns: the point at which they were read. Making the slot waits for the transactions that are
        open, so none of them can have written to a table before it was published.
    """
    name = f"pgoutput_copy_{uuid.uuid4().hex[:16]}"
    with create_slot(context.request.conninfo, name, temporary=True) as snapshot:
        names = ", ".join(table.name for table in tables)
        log.info("Copying %s at %s.", names, snapshot.consistent_point)
        copy_published(context, batch, snapshot, tables)
        return snapshot.consistent_point
