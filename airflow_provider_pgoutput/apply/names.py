"""Identifiers and literals in Spark SQL: quoted here and nowhere else.

What is not here: names of staged columns (``batch/changes.py``) and of files (``batch/layout.py``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PLAIN_IN_A_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*")


def quote(identifier: str) -> str:
    """Quote one part of an identifier: in backticks, each backtick of its own doubled.

    Source: https://spark.apache.org/docs/latest/sql-ref-identifier.html
    """
    return "`" + identifier.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Write ``text`` as a string literal of Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True, slots=True)
class TableName:
    """An Iceberg table in a Spark catalog."""

    catalog: str
    #: Parts joined by dots.
    namespace: str
    name: str

    @property
    def sql(self) -> str:
        """The quoted identifier."""
        return f"{self.namespace_sql}.{quote(self.name)}"

    @property
    def namespace_sql(self) -> str:
        """The quoted identifier of the namespace."""
        return ".".join(quote(part) for part in (self.catalog, *self.namespace.split(".")))

    def branch_sql(self, branch: str) -> str:
        """The quoted identifier of a branch of the table."""
        return f"{self.sql}.{quote('branch_' + branch)}"

    @property
    def target(self) -> str:
        """``namespace.table``, for the checkpoint table and for people; never to be parsed."""
        return f"{self.namespace}.{self.name}"

    @property
    def fits_a_path(self) -> bool:
        """Whether the name may be part of a path as it is: some file systems break on the rest."""
        return bool(_PLAIN_IN_A_PATH.fullmatch(self.name))
