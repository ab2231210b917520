"""The tables that a run refuses before it reads a row of them, while the others go on.

``staging/passing.py`` has the tables that are refused while rows are read. Both end in the manifest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.answers import FAIL, SET_ASIDE

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.errors import PgoutputError


class RefusedTables:
    """Collects the refused tables of one run.

    :param answer: that of ``on_table_refused``.
    """

    def __init__(self, answer: str = FAIL) -> None:
        self.goes_on = answer == SET_ASIDE
        #: By OID: each table's name, and its error.
        self.errors: dict[int, tuple[str, PgoutputError]] = {}
        #: OIDs of the tables that are copied only because ``copy_tables`` names them. If such a copy is
        #: refused, the table's changes are staged all the same.
        self.followed: set[int] = set()

    def add(self, table: PublishedTable, error: PgoutputError) -> None:
        """Leave one table out of the run.

        :raises PgoutputError: ``error``, if the answer is ``fail``.
        """
        if not self.goes_on:
            raise error
        self.errors[table.relation_oid] = (table.name, error)

    def has(self, table: PublishedTable) -> bool:
        """Whether a table is left out."""
        return table.relation_oid in self.errors
