"""The tables that a run refuses before it reads a row of them, while the others go on.

``staging/passing.py`` has the tables that are refused while rows are read. Both end in the manifest.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.errors import PgoutputError


@dataclass(frozen=True, slots=True)
class RefusedTables:
    """The refused tables of one run. A step that refuses a table returns a new value with it."""

    #: Whether a refused table is set aside. If not, its error ends the run.
    goes_on: bool = False
    #: By OID: each table's name, and its error.
    errors: Mapping[int, tuple[str, PgoutputError]] = field(default_factory=dict)
    #: OIDs of the tables that are copied only because ``copy_tables`` names them. If such a copy is refused,
    #: the table's changes are staged all the same.
    followed: frozenset[int] = frozenset()

    def adding(self, table: PublishedTable, error: PgoutputError) -> RefusedTables:
        """These tables and one more.

        :raises PgoutputError: ``error``, if a refused table ends the run.
        """
        if not self.goes_on:
            raise error
        errors = {**self.errors, table.relation_oid: (table.name, error)}
        return dataclasses.replace(self, errors=errors)

    def has(self, table: PublishedTable) -> bool:
        """Whether a table is left out."""
        return table.relation_oid in self.errors

    def following(self, relation_oids: Iterable[int]) -> RefusedTables:
        """The same, where these tables are copied only because ``copy_tables`` names them."""
        return dataclasses.replace(self, followed=frozenset(relation_oids))
