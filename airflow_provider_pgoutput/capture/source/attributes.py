"""The columns of tables as ``pg_attribute`` has them now, also dropped ones, and their defaults.

``capture/schema/attribution.py`` finds out which of them a Relation message means.

Source: https://www.postgresql.org/docs/current/catalog-pg-attribute.html and catalog-pg-attrdef.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from airflow_provider_pgoutput.capture.source.errors import translated

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from airflow_provider_pgoutput.capture.source.session import Session

# The default that ADD COLUMN fills in is kept by each leaf of a partitioned table, under the leaf's own
# numbers, and not by the table itself. All leaves have the same one, except for leaves that were attached
# later.
_ATTRIBUTE_QUERY = """
WITH RECURSIVE tree AS (
    SELECT c.oid AS root, c.oid, c.relkind
      FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s::pg_catalog.oid[])
     UNION ALL
    SELECT t.root, c.oid, c.relkind
      FROM tree t
      JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid
      JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
     WHERE t.relkind = 'p'),
kept AS MATERIALIZED (
    SELECT t.root, a.attname, pg_catalog.count(DISTINCT v.shown) AS counted,
           pg_catalog.min(v.shown) AS shown
      FROM tree t
      JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.atthasmissing AND NOT a.attisdropped
     CROSS JOIN LATERAL (SELECT pg_catalog.array_to_string(a.attmissingval, '')) v(shown)
     GROUP BY t.root, a.attname),
bare AS MATERIALIZED (
    SELECT k.root, k.attname, pg_catalog.array_agg(a.attrelid::pg_catalog.int8) AS leaves
      FROM kept k
      JOIN tree t ON t.root = k.root AND t.relkind = 'r'
      JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attname = k.attname
     WHERE NOT a.atthasmissing AND NOT a.attisdropped
     GROUP BY k.root, k.attname)
SELECT a.attrelid::pg_catalog.int8, a.attnum::pg_catalog.int4, a.attname::pg_catalog.text,
       a.attisdropped, a.atttypid::pg_catalog.int8, a.atttypmod,
       CASE WHEN k.counted = 1 THEN k.shown END,
       a.attnotnull OR a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '',
       COALESCE(k.counted > 1, false), COALESCE(b.leaves, '{}'),
       CASE WHEN a.attgenerated <> '' THEN (
            SELECT pg_catalog.hashtextextended(d.adbin::pg_catalog.text, 0)
              FROM pg_catalog.pg_attrdef d WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum) END
  FROM pg_catalog.pg_attribute a
  LEFT JOIN kept k ON k.root = a.attrelid AND k.attname = a.attname
  LEFT JOIN bare b ON b.root = a.attrelid AND b.attname = a.attname
 WHERE a.attrelid = ANY (%s::pg_catalog.oid[]) AND a.attnum > 0
 ORDER BY a.attrelid, a.attnum
"""

_DEFAULT_QUERY = """
SELECT d.adbin::pg_catalog.text, pg_catalog.pg_get_expr(d.adbin, d.adrelid),
       pg_catalog.format_type(a.atttypid, a.atttypmod)
  FROM pg_catalog.pg_attrdef d
  JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
 WHERE d.adrelid = %s::pg_catalog.oid AND d.adnum = %s AND a.attgenerated = ''
"""

# The server's own functions that always return the same for the same arguments.
_FUNCTION_QUERY = """
SELECT pg_catalog.count(*) FROM pg_catalog.pg_proc
 WHERE oid = ANY (%s::pg_catalog.oid[]) AND provolatile = 'i' AND oid < 16384
"""

#: Parts of an expression that depend on nothing but the functions that they name.
_CONSTANT_NODES = frozenset({"CONST", "FUNCEXPR", "OPEXPR", "RELABELTYPE", "ARRAYEXPR"})
_NODE = re.compile(r"\{([A-Z_]+)")
_FUNCTION = re.compile(r":(?:op)?funcid (\d+)")


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column as it is now."""

    number: int
    name: str
    is_dropped: bool
    type_oid: int
    type_modifier: int
    #: See ``Column.missing_value`` in ``batch/table_version.py``.
    missing_value: str | None
    #: Whether its current definition may have filled rows that are older than the column.
    may_have_filled: bool
    #: Whether the table's partitions show different values in rows that are older than the column.
    has_several_values: bool = False
    #: OIDs of the partitions that keep no value while others do: they were made later, or show NULL.
    bare_leaves: Sequence[int] = ()
    #: A number that stands for the expression of a generated column, for comparing only; None: not generated.
    expression: int | None = None

    def seen_from(self, known_leaves: Collection[int]) -> Attribute:
        """The column, if it is known which partitions had rows before the column was added.

        A partition that was attached later may show another value than those.
        """
        if self.missing_value is None or not set(self.bare_leaves) & set(known_leaves):
            return self
        return replace(self, missing_value=None, has_several_values=True)


def read_attributes(
    session: Session, relation_oids: Iterable[int]
) -> dict[int, tuple[Attribute, ...]]:
    """By OID: all columns that tables have and had, in order. A table that is gone has none."""
    with translated():
        oids = sorted(relation_oids)
        rows = session.execute(_ATTRIBUTE_QUERY, (oids, oids)).fetchall()
    found: dict[int, list[Attribute]] = {}
    for relation_oid, *values in rows:
        found.setdefault(relation_oid, []).append(Attribute(*values))
    return {oid: tuple(each) for oid, each in found.items()}


def read_constant_default(session: Session, relation_oid: int, number: int) -> str | None:
    """The text of a column's default if it is a constant; None: it is not, or there is none.

    Only constants and immutable functions of the server itself are evaluated, so no sequence moves.
    """
    with translated():
        row = session.execute(_DEFAULT_QUERY, (relation_oid, number)).fetchone()
        if row is None:
            return None
        tree, expression, type_name = row
        functions = {int(each) for each in _FUNCTION.findall(tree)} - {0}
        if not set(_NODE.findall(tree)) <= _CONSTANT_NODES:
            return None
        counted = session.execute(_FUNCTION_QUERY, (sorted(functions),)).fetchone()
        if counted is None or counted[0] != len(functions):
            return None
        # The server itself spelled both, as it would in a dump.
        query = sql.SQL("SELECT (({})::{})::pg_catalog.text").format(
            sql.SQL(expression), sql.SQL(type_name)
        )
        try:
            value = session.execute(query).fetchone()
        except psycopg.DataError:
            return None  # The default itself is an error, so no row ever got it.
    return None if value is None or value[0] is None else str(value[0])
