"""What a copy has to know of its tables first: their storage, how they are split, what publishes them.

Asked inside the snapshot, so as of its point; asked again later, the difference tells what happened since.
A rewritten table (TRUNCATE, VACUUM FULL, some forms of ALTER TABLE) has other files. What was read of it
before and after does not go together, and an older snapshot sees no row of it without any error.
What is not here: reading rows (``copy.py``).

Sources: https://www.postgresql.org/docs/current/mvcc-caveats.html,
https://www.postgresql.org/docs/current/ddl-system-columns.html (ctid)
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql

from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.errors import translated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.capture.source.catalog import Session

#: A table is read in parts of about this size on the server's disk.
PART_BYTES = 64 << 20

# A partitioned table is stored in its leaves, a parent of inheritance in itself alone. Only a heap has blocks
# that ctid ranges can be cut from.
_STORAGE_QUERY = """
WITH RECURSIVE tree AS (
    SELECT c.oid AS root, c.oid, c.relkind, c.relfilenode, c.relam, c.relnamespace
      FROM pg_catalog.pg_class c WHERE c.oid = ANY (%(oids)s::pg_catalog.oid[])
     UNION ALL
    SELECT t.root, c.oid, c.relkind, c.relfilenode, c.relam, c.relnamespace
      FROM tree t
      JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid
      JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
     WHERE t.relkind = 'p')
SELECT t.root::pg_catalog.int8,
       pg_catalog.array_agg(t.oid::pg_catalog.text || ' ' || t.relfilenode::pg_catalog.text),
       pg_catalog.array_agg(COALESCE(pg_catalog.pg_relation_size(t.oid), 0)
                            / pg_catalog.current_setting('block_size')::pg_catalog.int8),
       COALESCE(pg_catalog.sum(pg_catalog.pg_table_size(t.oid)), 0)::pg_catalog.int8,
       pg_catalog.bool_and(COALESCE(a.amname = 'heap', false))
  FROM tree t LEFT JOIN pg_catalog.pg_am a ON a.oid = t.relam
 WHERE t.relkind <> 'p' GROUP BY t.root
"""

# Rows of the catalog name the transaction that wrote them, so a table that left a publication and came back
# differs, although its name and OID do not.
_MEMBERSHIP_QUERY = """
WITH RECURSIVE ancestry AS (
    SELECT c.oid AS leaf, c.oid, c.relnamespace, c.relispartition
      FROM pg_catalog.pg_class c WHERE c.oid = ANY (%(oids)s::pg_catalog.oid[])
     UNION ALL
    SELECT a.leaf, c.oid, c.relnamespace, c.relispartition
      FROM ancestry a
      JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.oid
      JOIN pg_catalog.pg_class c ON c.oid = i.inhparent
     WHERE a.relispartition),
member AS (
    SELECT a.leaf, 'publication' AS kind, p.oid, p.xmin
      FROM ancestry a CROSS JOIN pg_catalog.pg_publication p WHERE p.pubname = ANY (%(names)s)
     UNION
    SELECT a.leaf, 'table', r.oid, r.xmin
      FROM ancestry a
      JOIN pg_catalog.pg_publication_rel r ON r.prrelid = a.oid
      JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid AND p.pubname = ANY (%(names)s)
     UNION
    SELECT a.leaf, 'schema', n.oid, n.xmin
      FROM ancestry a
      JOIN pg_catalog.pg_publication_namespace n ON n.pnnspid = a.relnamespace
      JOIN pg_catalog.pg_publication p ON p.oid = n.pnpubid AND p.pubname = ANY (%(names)s))
SELECT leaf::pg_catalog.int8,
       pg_catalog.string_agg(pg_catalog.concat_ws(' ', kind, oid, xmin), ', ' ORDER BY kind, oid)
  FROM member GROUP BY leaf
"""


@dataclass(frozen=True, slots=True)
class TableStorage:
    """Where the rows of a table lie."""

    #: OID and file node of the table, or of its leaves.
    files: frozenset[str]
    #: Blocks of each of them.
    blocks: tuple[int, ...]
    #: Bytes with TOAST on the server's disk.
    size_bytes: int
    #: Whether ranges of blocks can be read.
    has_blocks: bool


#: What a table has that does not exist (any more).
NO_STORAGE = TableStorage(frozenset(), (), 0, has_blocks=False)


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The tables as of one point."""

    storage: Mapping[int, TableStorage]
    #: What publishes each, in a form that is good for comparing only.
    membership: Mapping[int, str]


def read_plan(
    conninfo: str | Mapping[str, Any],
    snapshot_name: str,
    publication_names: Sequence[str],
    relation_oids: Sequence[int],
) -> CopyPlan:
    """Look at the tables as of an exported snapshot.

    :raises SnapshotLost: when the snapshot does not exist any more.
    """
    with sessions.connect(conninfo) as session, translated():
        session.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        statement = sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot_name))
        session.execute(statement)
        return CopyPlan(
            read_storage(session, relation_oids),
            read_membership(session, publication_names, relation_oids),
        )


def read_storage(session: Session, relation_oids: Sequence[int]) -> dict[int, TableStorage]:
    """Where tables are stored as the session's snapshot sees it, by OID; sizes are those of now."""
    with translated():
        rows = session.execute(_STORAGE_QUERY, {"oids": list(relation_oids)}).fetchall()
    found = {
        oid: TableStorage(frozenset(files), tuple(blocks), size, has_blocks=has_blocks)
        for oid, files, blocks, size, has_blocks in rows
    }
    return {oid: found.get(oid, NO_STORAGE) for oid in relation_oids}


def read_membership(
    session: Session, publication_names: Sequence[str], relation_oids: Sequence[int]
) -> dict[int, str]:
    """What publishes tables as the session's snapshot sees it, by OID."""
    arguments = {"oids": list(relation_oids), "names": list(publication_names)}
    with translated():
        return dict(session.execute(_MEMBERSHIP_QUERY, arguments).fetchall())


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Blocks of a table, or of each of its leaves; the last range of a table has no end."""

    first: int
    end: int | None


def block_ranges(storage: TableStorage, part_bytes: int | None = None) -> list[BlockRange]:
    """Cut a table in ranges of about the same number of blocks; together they are the whole table.

    The same range holds for every leaf, so that a partitioned table can be read through its root.

    :param part_bytes: None: ``PART_BYTES``.
    """
    parts = min(storage.size_bytes // (part_bytes or PART_BYTES), sum(storage.blocks))
    if parts < 2 or not storage.has_blocks:
        return [BlockRange(0, None)]
    wanted = [sum(storage.blocks) * number // parts for number in range(1, parts)]

    def before(block: int) -> int:
        return sum(min(each, block) for each in storage.blocks)

    blocks = range(max(storage.blocks) + 1)
    bounds = sorted({bisect.bisect_left(blocks, each, key=before) for each in wanted} - {0})
    starts: list[int] = [0, *bounds]
    ends: list[int | None] = [*bounds, None]
    return [BlockRange(first, end) for first, end in zip(starts, ends, strict=True)]
