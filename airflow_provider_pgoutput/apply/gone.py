"""If apply refuses a table that is gone at the source, the table is passed over, with a warning.

Nobody can copy such a table again, so its refusal must not stop the other tables. Capture finds changes that
cannot be followed at all (``capture/schema/gone.py``).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_pgoutput.batch.passed_over import PassedOver, first_lsn
from airflow_provider_pgoutput.errors import BatchRefused, RowMissing, TableRefused, ValueRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.batch.manifest import Table

logger = logging.getLogger(__name__)

#: Errors that are about one table and its rows, and that only a new copy would mend.
_ABOUT_A_TABLE = (BatchRefused, RowMissing, TableRefused, ValueRefused)
_Result = TypeVar("_Result")


class GoneTables:
    """The tables of one batch that are gone at the source and were refused."""

    def __init__(self) -> None:
        self.passed_over: dict[int, PassedOver] = {}

    def unless_refused(self, table: Table, do: Callable[[], _Result]) -> _Result | None:
        """Do something about one table. If that is refused and the table is gone, pass the table over.

        :return: what ``do`` returned; None: the table is passed over. Then nothing of it is published, so a
            repeated apply decides the same.
        """
        try:
            return do()
        except _ABOUT_A_TABLE as error:
            since = first_lsn(table.versions)
            if not table.is_gone or since is None:
                raise
            logger.warning(
                "%s: its changes from LSN %s on are passed over, %d in this batch. %s The table was"
                " dropped or is not published any more: the lake keeps it as it was before that.",
                table.name,
                since,
                table.counts.changes,
                error.message,
            )
            self.passed_over[table.relation_oid] = PassedOver(
                table.relation_oid, table.name, str(since), table.counts.changes, error.message
            )
            return None
