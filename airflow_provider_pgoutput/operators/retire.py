"""The operator that ends a pipeline. It drops the slot, if somebody typed the slot's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_pgoutput.hooks import default_connections
from airflow_provider_pgoutput.tasks import arguments
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class PgoutputDropSlotOperator(BaseOperator):
    """Drop the slot of a pipeline, so that the source can delete the WAL that it keeps for the slot.

    Use it at the end of a pipeline, or when WAL fills the source's disk. Staged batches and the lake stay.
    Changes that were not staged yet never reach the lake. To go on later, run the stage task with
    ``on_slot_lost="copy"``, which copies all tables again. It is no error if there is no slot. A slot that
    somebody reads stays, and Airflow tries again.

    :param slot_name: the replication slot to drop. (templated)
    :param confirmation: the slot's name again. The person who starts the run types it, for instance as
        ``"{{ params.confirmation }}"``. Any other text drops nothing. (templated)
    :param postgres_conn_id: the source, a connection of type ``postgres``. (templated)
    """

    ui_color = "#f0c8c0"

    slot_name: str
    confirmation: str | None
    postgres_conn_id: str

    def __init__(
        self,
        *,
        slot_name: str,
        confirmation: str | None = None,
        postgres_conn_id: str = default_connections.POSTGRES,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        arguments.keep(self, locals(), PgoutputDropSlotOperator.template_fields)

    template_fields: Sequence[str] = arguments.templated_of(__init__)

    def execute(self, context: Context) -> dict[str, str | None]:
        """Drop the slot. Return its name and its last ``confirmed_flush_lsn``, null if there was no slot."""
        with airflow_outcome(context):
            from airflow_provider_pgoutput.capture.retire import retire_slot
            from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook

            slot_name = arguments.slot_name(self)
            confirmed = retire_slot(
                PgoutputHook(self.postgres_conn_id).direct().conninfo(),
                slot_name,
                arguments.optional_text(self.confirmation),
            )
        return {
            "slot_name": slot_name,
            "confirmed_flush_lsn": None if confirmed is None else str(confirmed),
        }
