"""The operator of the last step. Afterwards PostgreSQL may recycle the WAL that the lake no longer needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_pgoutput.hooks import default_connections
from airflow_provider_pgoutput.links.pipeline import PageLink
from airflow_provider_pgoutput.tasks import arguments
from airflow_provider_pgoutput.tasks.lake import Lake
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome
from airflow_provider_pgoutput.tasks.received_batch import ReceivedBatch, confirmable
from airflow_provider_pgoutput.tasks.task_run import refuse_backfill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class PgoutputAdvanceSlotOperator(BaseOperator):
    """Move the slot's ``confirmed_flush_lsn`` to the lake's checkpoint, never past it.

    The checkpoint alone decides. The batch that arrives by XCom is only compared with it. If the batch ends
    past the checkpoint, it was not applied, and the task fails. An older batch, or none, does no harm.

    :param slot_name: the replication slot to move. (templated)
    :param namespace: namespace of the Iceberg tables. It also holds the checkpoint. (templated)
    :param batch: the batch as ``PgoutputStageOperator`` returned it. (templated)
    :param postgres_conn_id: the source, a connection of type ``postgres``. (templated)
    :param iceberg_conn_id: the lake's catalog, a connection of type ``iceberg``. (templated)
    :param catalog_name: name of the catalog; None: the name of its connection. (templated)
    """

    template_fields_renderers = {"batch": "json"}  # noqa: RUF012
    ui_color = "#f5ead0"
    operator_extra_links = (PageLink(),)

    batch: Any
    postgres_conn_id: str

    def __init__(
        self,
        *,
        slot_name: str,
        namespace: str,
        batch: Any = None,
        postgres_conn_id: str = default_connections.POSTGRES,
        iceberg_conn_id: str = default_connections.ICEBERG,
        catalog_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        arguments.keep(self, locals(), PgoutputAdvanceSlotOperator.template_fields)

    template_fields: Sequence[str] = arguments.templated_of(__init__)

    def execute(self, context: Context) -> dict[str, str]:
        """Move the slot."""
        with airflow_outcome(context):
            refuse_backfill(context)
            from airflow_provider_pgoutput.capture.advance import advance_slot
            from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook

            slot_name = arguments.slot_name(self)
            lake = Lake.of(self)
            found = lake.checkpoint(slot_name)
            batch = ReceivedBatch.optional(self.batch, slot_name)
            checkpoint = confirmable(slot_name, found, batch)
            confirmed = advance_slot(
                PgoutputHook(self.postgres_conn_id).direct().conninfo(),
                slot_name,
                checkpoint.end_lsn,
                system_identifier=checkpoint.system_identifier,
                timeline=checkpoint.timeline,
                offset=checkpoint.systems.lsn_offset,
            )
        self.log.info("Slot %s is confirmed up to %s.", slot_name, confirmed)
        return {"slot_name": slot_name, "confirmed_flush_lsn": str(confirmed)}
