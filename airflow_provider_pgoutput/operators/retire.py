"""Airflow's door to the end of a pipeline: drop its slot, once somebody typed the slot's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_pgoutput.tasks import arguments
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class PgoutputDropSlotOperator(BaseOperator):
    """Drop the slot of a pipeline that ends, or that fills the source's disk, so that its WAL can go.

    Staged batches and the lake stay. What was not staged yet never reaches the lake: to go on later, a stage
    run with ``on_slot_lost="copy"`` copies all tables again. A slot that is gone already is no error; one
    that somebody reads is left alone, and Airflow tries again.

    :param slot_name: the replication slot to drop. (templated)
    :param confirmation: the slot's name once more, typed by whoever starts the run, such as
        ``"{{ params.confirmation }}"``; with anything else nothing is dropped. (templated)
    :param postgres_conn_id: the source, a connection of type ``postgres``. (templated)
    """

    template_fields: Sequence[str] = ("slot_name", "confirmation", "postgres_conn_id")
    ui_color = "#f0c8c0"

    def __init__(
        self,
        *,
        slot_name: str,
        confirmation: str | None = None,
        postgres_conn_id: str = "postgres_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.slot_name = slot_name
        self.confirmation = confirmation
        self.postgres_conn_id = postgres_conn_id

    def execute(self, context: Context) -> dict[str, str | None]:
        """Drop the slot; return its name and where it was confirmed up to, null if there was none."""
        with airflow_outcome():
            from airflow_provider_pgoutput.capture.retire import retire_slot
            from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook

            slot_name = arguments.required_text(self.slot_name, "slot_name")
            confirmed = retire_slot(
                PgoutputHook(self.postgres_conn_id).conninfo(),
                slot_name,
                arguments.optional_text(self.confirmation),
            )
        return {
            "slot_name": slot_name,
            "confirmed_flush_lsn": None if confirmed is None else str(confirmed),
        }
