"""Identifiers and literals of Spark SQL are quoted here and nowhere else. ``Sql`` is the type of SQL text.

A text becomes ``Sql`` by these functions, or by ``Sql(...)`` around constants, numbers and other ``Sql``. A
test reads the source code and refuses anything else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType

from airflow_provider_pgoutput.batch.checkpoint import renumbered
from airflow_provider_pgoutput.batch.jobs import is_partition_transform
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.batch.earlier_systems import EarlierTable
    from airflow_provider_pgoutput.slices import Slice

#: Spark SQL: a statement or a part of one, an expression, a quoted name.
Sql = NewType("Sql", str)

_PLAIN_IN_A_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*")


def quote(identifier: str) -> Sql:
    """Quote one part of an identifier in backticks. A backtick in it is doubled.

    Source: https://spark.apache.org/docs/latest/sql-ref-identifier.html
    """
    return Sql("`" + identifier.replace("`", "``") + "`")


def literal(text: str) -> Sql:
    """Write ``text`` as a string literal of Spark SQL."""
    return Sql("'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'")


def partition_transform(text: str) -> Sql:
    """Check a partition transform in Spark's notation, and take it as SQL unchanged.

    :raises ConfigurationError: it is anything else. Usually the plan's own check refuses it earlier.
    """
    if not is_partition_transform(text):
        raise ConfigurationError(f"No partition transform: {text!r}.")
    return Sql(text)


def _equals(alias: Sql, name: str, text: str) -> Sql:
    return Sql(f"{alias}{quote(name)} = {literal(text)}")


@dataclass(frozen=True, slots=True)
class TableName:
    """An Iceberg table in a Spark catalog."""

    catalog: str
    #: Parts joined by dots.
    namespace: str
    name: str
    #: Whose rows of a shared table are meant; None: the table is not shared, or all rows are meant.
    slice: Slice | None = None
    #: The source's table on the system before this one, and its OID on this one; None: it keeps its OID.
    earlier: tuple[EarlierTable, int] | None = None

    @property
    def key(self) -> str:
        """``target``, and for a slice also which one it is."""
        return self.target if self.slice is None else f"{self.target} {self.slice.constants}"

    def own(self, prefix: str = "") -> Sql | None:
        """SQL: whether a row of the table is of the slice; None: all rows are meant.

        :param prefix: the alias of the table and a dot.
        """
        if self.slice is None:
            return None
        alias = Sql(f"{quote(prefix)}.") if prefix else Sql("")
        parts = (_equals(alias, name, text) for name, text in self.slice.constants)
        return Sql(" AND ".join(parts))

    def seen(self, properties: Mapping[str, str]) -> dict[str, str]:
        """The table's properties, as its slice sees them if there is one, and with the OID of this system."""
        found = dict(properties) if self.slice is None else self.slice.seen(properties)
        return found if self.earlier is None else renumbered(found, *self.earlier)

    @property
    def sql(self) -> Sql:
        """The quoted identifier."""
        return Sql(f"{self.namespace_sql}.{quote(self.name)}")

    @property
    def namespace_sql(self) -> Sql:
        """The quoted identifier of the namespace."""
        return Sql(".".join(quote(part) for part in (self.catalog, *self.namespace.split("."))))

    def branch_sql(self, branch: str) -> Sql:
        """The quoted identifier of a branch of the table."""
        return Sql(f"{self.sql}.{quote('branch_' + branch)}")

    @property
    def target(self) -> str:
        """``namespace.table``, for the checkpoint table and for messages. It is never parsed."""
        return f"{self.namespace}.{self.name}"

    @property
    def fits_a_path(self) -> bool:
        """Whether the name may be part of a path unchanged. Some file systems fail with other characters."""
        return bool(_PLAIN_IN_A_PATH.fullmatch(self.name))
