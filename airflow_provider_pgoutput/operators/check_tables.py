"""The operator that fails while tables are set aside or lack a copy, so that Airflow's alerts fire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_pgoutput.errors import TableRefused
from airflow_provider_pgoutput.hooks import default_connections
from airflow_provider_pgoutput.tasks import arguments
from airflow_provider_pgoutput.tasks.lake import Lake
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome
from airflow_provider_pgoutput.tasks.received_batch import ReceivedBatch
from airflow_provider_pgoutput.tasks.set_aside import log_refused_copies, log_set_aside
from airflow_provider_pgoutput.tasks.task_run import few

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class PgoutputCheckTablesOperator(BaseOperator):
    """Fail if a table of the pipeline is set aside, or if a copy that the run was asked for was refused.

    Put it last, after ``PgoutputAdvanceSlotOperator``. The other tables have their rows by then, and the slot
    has moved. So the failure stops nothing; it only makes Airflow's alerts fire. It changes nothing.

    :param slot_name: the replication slot. (templated)
    :param namespace: namespace of the Iceberg tables. It also holds the checkpoint. (templated)
    :param batch: the batch of this run as ``PgoutputStageOperator`` returned it. It names the copies
        (``copy_tables``) that were refused. None: only tables that are set aside fail the task. (templated)
    :param iceberg_conn_id: the lake's catalog, a connection of type ``iceberg``. (templated)
    :param catalog_name: name of the catalog; None: the name of its connection. (templated)
    """

    template_fields_renderers = {"batch": "json"}  # noqa: RUF012
    ui_color = "#f5d0d0"

    batch: Any

    def __init__(
        self,
        *,
        slot_name: str,
        namespace: str,
        batch: Any = None,
        iceberg_conn_id: str = default_connections.ICEBERG,
        catalog_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        arguments.keep(self, locals(), PgoutputCheckTablesOperator.template_fields)

    template_fields: Sequence[str] = arguments.templated_of(__init__)

    def execute(self, context: Context) -> None:
        """Look at the checkpoint table and at the batch."""
        with airflow_outcome(context):
            slot_name = arguments.slot_name(self)
            batch = ReceivedBatch.optional(self.batch, slot_name)
            lake = Lake.of(self)
            checkpoint = lake.checkpoint(slot_name)
            if checkpoint is not None and checkpoint.set_aside:
                log_set_aside(checkpoint)
                raise TableRefused(
                    f"Set aside: {few(each.table_name for each in checkpoint.set_aside.values())}. All other"
                    " tables have all batches up to the lake's checkpoint.",
                    slot=slot_name,
                    advice="the warnings above say why, and what to do. Often a replay without from_lsn is"
                    " enough (PgoutputReplayOperator). A table that was rolled back or dropped, or that lacks"
                    " rows, is copied (copy_tables).",
                )
            if batch is not None and batch.refused_copies:
                log_refused_copies(batch.refused_copies)
                raise TableRefused(
                    f"Not copied: {few(batch.refused_copies)}. These tables are followed as before, and"
                    " nothing else is missing.",
                    slot=slot_name,
                    advice="the warnings above say why. Remove the cause, and name the tables in copy_tables"
                    " of another run.",
                )
            self.log.info("No table is set aside.")
