"""How the rows of a root are told apart, when its partitions are published under its name.

A row names the root, but the replica identity of its partition decides what its old tuple contains.
PostgreSQL does not pass USING INDEX, or a later ALTER TABLE ... REPLICA IDENTITY, from the root to its
partitions. So a key of the root can be followed only if the old tuples of every partition have it.
``keys.py`` knows the keys of a root, and ``pgoutput/partitions.py`` what a partition sends at a moment of the
stream.

Source: https://www.postgresql.org/docs/current/sql-altertable.html (REPLICA IDENTITY)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.table_version import FULL
from airflow_provider_pgoutput.capture.pgoutput.messages import PartitionIdentity
from airflow_provider_pgoutput.capture.source.errors import translated

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_provider_pgoutput.capture.source.session import Session

# One row for all partitions of a root with the same identity. There may be thousands of partitions.
# Not pg_partition_tree(): it waits for the locks of migrations.
_LEAF_QUERY = """
WITH RECURSIVE tree(root, oid) AS (
    SELECT r.oid, r.oid FROM pg_catalog.pg_class r
     WHERE r.oid = ANY (%s::pg_catalog.oid[]) AND r.relkind = 'p'
     UNION ALL
    SELECT t.root, i.inhrelid
      FROM tree t
      JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending)
SELECT t.root::pg_catalog.int8, c.relreplident::pg_catalog.text, k.columns,
       pg_catalog.count(*)::pg_catalog.int4,
       (pg_catalog.array_agg(pg_catalog.format('%%s.%%s', n.nspname, c.relname)
                             ORDER BY n.nspname, c.relname))[1:20]
  FROM tree t
  JOIN pg_catalog.pg_class c ON c.oid = t.oid AND c.oid <> t.root AND c.relkind = 'r'
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_index i
    ON i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
   AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
 CROSS JOIN LATERAL (
       SELECT ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute a
                     WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
                     ORDER BY 1) AS columns) k
 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


@dataclass(frozen=True, slots=True)
class Leaves:
    """The partitions of a root that have the same replica identity now."""

    #: None: they have none, so the source refuses updates and deletes of their rows.
    identity: PartitionIdentity | None
    count: int
    #: ``schema.table`` of the first ones.
    names: tuple[str, ...]

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.names) else ""
        return ", ".join(self.names) + more


@dataclass(frozen=True, slots=True)
class Candidate:
    """A key of a root."""

    columns: tuple[str, ...]
    #: Whether it is unique at every moment, and not only at a commit.
    is_immediate: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """The key by which the rows of a root are told apart; without columns: it has none."""

    key: Candidate
    #: Whether every partition sends whole old rows.
    is_full: bool


def read_leaves(session: Session, relation_oids: Sequence[int]) -> dict[int, tuple[Leaves, ...]]:
    """The partitions of roots by OID. A table that is no root has none."""
    with translated():
        rows = session.execute(_LEAF_QUERY, (list(relation_oids),)).fetchall()
    found: dict[int, tuple[Leaves, ...]] = {}
    for oid, replica_identity, columns, count, names in rows:
        is_full = replica_identity == FULL
        known = is_full or columns
        identity = PartitionIdentity(frozenset(columns), is_full, name=names[0]) if known else None
        found[oid] = (*found.get(oid, ()), Leaves(identity, count, tuple(names)))
    return found


def choose(
    candidates: Sequence[Candidate],
    announced: Collection[PartitionIdentity],
    now: Collection[PartitionIdentity],
) -> Choice:
    """Choose the first key that the old tuples of all partitions have.

    If the current partitions leave none, only those count that the stream announced, because no others sent
    rows. If these leave none either, it is the first key, because inserts need no old tuple.

    :param announced: what partitions sent up to here in the stream; empty: nothing was read.
    """
    for partitions in ({*announced, *now}, announced or now):
        is_full = bool(partitions) and all(each.is_full for each in partitions)
        for key in candidates:
            covered = all(each.covers(key.columns) for each in partitions)
            if is_full or (key.is_immediate and covered):
                return Choice(key, is_full)
        if is_full:
            return Choice(Candidate(()), is_full)
    first = next((each for each in candidates if each.is_immediate), Candidate(()))
    return Choice(first, is_full=False)
