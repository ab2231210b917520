"""What becomes of a table that is gone at the source when it is refused: it stays as it is, and is named.

Nobody can copy it again, and the other tables shall not wait for it. What is not here: changes that capture
found to be impossible to follow (``capture/schema/gone.py``).
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

#: What is about one table and its rows, and has no way on but a copy.
_ABOUT_A_TABLE = (BatchRefused, RowMissing, TableRefused, ValueRefused)
_Result = TypeVar("_Result")


class GoneTables:
    """The tables of one batch that are gone and were refused."""

    def __init__(self) -> None:
        self.passed_over: dict[int, PassedOver] = {}

    def unless_refused(self, table: Table, do: Callable[[], _Result]) -> _Result | None:
        """Do something about one table; None: it is gone and was refused, and is passed over.

        Nothing of the table is published then, so that an apply that is run again finds the same.
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
