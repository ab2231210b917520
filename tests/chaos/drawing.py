"""What a statement is drawn from: the tables and columns that a session sees at this moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import sql

from tests.chaos.values import Values

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    import psycopg

_TABLES = """
SELECT c.oid::int, n.nspname, c.relname, c.relkind::text, c.relispartition
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE (n.nspname = 'public' OR n.nspname LIKE 'other%') AND c.relkind IN ('r', 'p')
 ORDER BY c.oid
"""
_COLUMNS = """
SELECT a.attnum::int, a.attname, a.atttypid::int, format_type(a.atttypid, a.atttypmod),
       a.attnotnull, a.attgenerated::text, a.attidentity::text,
       coalesce(a.attnum = ANY (i.indkey), false)
  FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
 WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


class Table(NamedTuple):
    """A table as a session sees it."""

    oid: int
    schema: str
    name: str
    kind: str
    is_leaf: bool

    @property
    def sql(self) -> str:
        """Its name in a statement."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"


class Column(NamedTuple):
    """A column as a session sees it."""

    number: int
    name: str
    type_oid: int
    type_name: str
    not_null: bool
    generated: str
    identity: str
    in_key: bool

    @property
    def sql(self) -> str:
        """Its name in a statement."""
        return quoted(self.name)


@dataclass
class Drawing:
    """One statement in the making."""

    session: psycopg.Connection[Any]
    chance: random.Random
    #: Major version of the server.
    version: int
    #: How often a value is one that the lake may not hold.
    odd: float
    publications: tuple[str, ...] = ("p",)
    #: Whether they list their tables.
    lists_tables: bool = True
    #: What the statement changes without an event in the stream: OID of the table, name of the column (``*``:
    #: any). The documentation says so for each of them.
    silent: list[tuple[int, str]] = field(default_factory=list)

    @property
    def values(self) -> Values:
        """Random values."""
        return Values(self.session, self.chance, self.odd)

    def tables(self) -> list[Table]:
        """All tables."""
        return [Table(*row) for row in self.session.execute(_TABLES).fetchall()]

    def table(self, wanted: Callable[[Table], bool] | None = None) -> Table | None:
        """One of the tables."""
        found = [each for each in self.tables() if wanted is None or wanted(each)]
        return self.chance.choice(found) if found else None

    def whole_table(self) -> Table | None:
        """A table that is not a part of another."""
        return self.table(lambda each: not each.is_leaf)

    def columns(self, table: Table) -> list[Column]:
        """The columns of a table."""
        return [Column(*row) for row in self.session.execute(_COLUMNS, (table.oid,)).fetchall()]

    def rows(self, query: str, *arguments: Any) -> Sequence[tuple[Any, ...]]:
        """What a query of the catalog finds."""
        return self.session.execute(query.encode(), arguments or None).fetchall()

    def happens(self, probability: float) -> bool:
        """Whether something happens this time."""
        return self.chance.random() < probability


def quoted(name: str) -> str:
    """A name as an identifier."""
    return sql.Identifier(name).as_string(None)
