"""The operator that lets a lake go on from another server with the same data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.answers import DIFFERENCE
from airflow_provider_pgoutput.operators.stage import PgoutputStageOperator
from airflow_provider_pgoutput.tasks import arguments

if TYPE_CHECKING:
    from collections.abc import Sequence


class PgoutputAdoptSourceOperator(PgoutputStageOperator):
    """Compare the lake with a new server, and stage the rows that differ: it becomes the lake's source.

    Use it once, in place of the stage operator, after the source became another PostgreSQL system: by
    pg_upgrade, by a blue/green switch, or by a migration to another server. It makes the slot anew, compares
    every table of the lake with the new server, and stages only the rows that differ. Tables that cannot be
    compared are copied. When the batch is applied, the new system is the source, and batches of the earlier
    one are refused. See ``docs/how-to/another_system.md``. All arguments are templated.

    :param new_system_identifier: the new server's system identifier:
        ``SELECT system_identifier FROM pg_control_system()``. The person who starts the run types it, for
        instance as ``"{{ params.new_system_identifier }}"``. If the connection leads to another system,
        nothing is made or staged. The other arguments are those of the pipeline's own stage task, without
        ``start_lsn``. ``on_slot_lost`` is always ``difference``, and ``on_recreated_table`` always ``copy``.
    """

    ui_color = "#f0e0b0"
    new_system_identifier: str

    def __init__(self, *, new_system_identifier: str, **kwargs: Any) -> None:
        super().__init__(**kwargs | {"on_slot_lost": DIFFERENCE})
        arguments.keep(self, locals(), PgoutputAdoptSourceOperator._ADOPTION_ARGUMENTS)

    _ADOPTION_ARGUMENTS = arguments.names_of(__init__)
    template_fields: Sequence[str] = (*PgoutputStageOperator.template_fields, *_ADOPTION_ARGUMENTS)

    def _adoption(self) -> dict[str, Any]:
        identifier = arguments.required_text(self.new_system_identifier, "new_system_identifier")
        # The lake may name the system with a timeline, and the log shows that name.
        return {"adopted_system": identifier.partition("@")[0]}
