"""The operator that fails while tables are set aside, so that Airflow's alerts fire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_pgoutput.errors import TableRefused
from airflow_provider_pgoutput.tasks import arguments
from airflow_provider_pgoutput.tasks.lake import Lake
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome
from airflow_provider_pgoutput.tasks.set_aside import log_set_aside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

_MOST_NAMES = 10


class PgoutputCheckTablesOperator(BaseOperator):
    """Fail if a table of the pipeline is set aside.

    Put it last, after ``PgoutputAdvanceSlotOperator``. The other tables have their rows by then, and the slot
    has moved. So the failure stops nothing; it only makes Airflow's alerts fire. It changes nothing.

    :param slot_name: the replication slot. (templated)
    :param namespace: namespace of the Iceberg tables. It also holds the checkpoint. (templated)
    :param iceberg_conn_id: the lake's catalog, a connection of type ``iceberg``. (templated)
    :param catalog_name: name of the catalog; None: the name of its connection. (templated)
    """

    template_fields: Sequence[str] = ("slot_name", "namespace", "iceberg_conn_id", "catalog_name")
    ui_color = "#f5d0d0"

    def __init__(
        self,
        *,
        slot_name: str,
        namespace: str,
        iceberg_conn_id: str = "iceberg_default",
        catalog_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.slot_name = slot_name
        self.namespace = namespace
        self.iceberg_conn_id = iceberg_conn_id
        self.catalog_name = catalog_name

    def execute(self, context: Context) -> None:
        """Look at the checkpoint table."""
        with airflow_outcome(context):
            slot_name = arguments.required_text(self.slot_name, "slot_name")
            lake = Lake.open(self.iceberg_conn_id, self.catalog_name, self.namespace)
            checkpoint = lake.checkpoint(slot_name)
            if checkpoint is None or not checkpoint.set_aside:
                self.log.info("No table is set aside.")
                return
            log_set_aside(checkpoint)
            names = sorted(each.table_name for each in checkpoint.set_aside.values())
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            raise TableRefused(
                f"Set aside: {', '.join(names[:_MOST_NAMES])}{more}. All other tables have all batches up to"
                " the lake's checkpoint.",
                slot=slot_name,
                advice="the warnings above say why, and what to do. Often a replay without from_lsn is enough"
                " (PgoutputReplayOperator). A table that was rolled back or dropped, or that lacks rows, is"
                " copied (copy_tables).",
            )
