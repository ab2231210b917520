"""What a copy has to know of its tables: where they are stored, how they are split, what publishes them.

Asked inside the snapshot, so as of its point; asked again later, the difference tells what happened since.
A rewritten table (TRUNCATE, VACUUM FULL, some forms of ALTER TABLE) has other files. What was read of it
before and after does not go together, an older snapshot sees no row of it without any error, and values that
ALTER TABLE computed are no row events. What is not here: reading rows (``copy.py``).

Sources: https://www.postgresql.org/docs/current/mvcc-caveats.html,
https://www.postgresql.org/docs/current/ddl-system-columns.html (ctid)
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import sql

from airflow_provider_pgoutput.capture.copy_job import BlockRange
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.commit_wait import wait_for_commits
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.capture.source.publication_marks import read_marks, read_partitions
from airflow_provider_pgoutput.capture.source.type_definitions import read_type_definitions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.batch.membership import PublicationMark
    from airflow_provider_pgoutput.batch.type_definition import TypeDefinition
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.source.session import Session


#: A table is read in parts of about this size on the server's disk.
PART_BYTES = 64 << 20


# A partitioned table is stored in its leaves, a parent of inheritance in itself alone. Only a heap has blocks
# that ctid ranges can be cut from, and ctid is for a role that may read the whole table, not some columns.
# Asked while other sessions of a copy hold locks that a migration waits for, so it must not wait behind that.
_LEAF_QUERY = """
WITH RECURSIVE tree AS (
    SELECT c.oid AS root, c.oid, c.relkind, c.relfilenode, c.relam
      FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s::pg_catalog.oid[])
     UNION ALL
    SELECT t.root, c.oid, c.relkind, c.relfilenode, c.relam
      FROM tree t
      JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid
      JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
     WHERE t.relkind = 'p')
SELECT t.root::pg_catalog.int8, t.oid::pg_catalog.int8, t.relfilenode::pg_catalog.int8,
       COALESCE(a.amname = 'heap' AND pg_catalog.has_table_privilege(t.root, 'SELECT'), false)
  FROM tree t LEFT JOIN pg_catalog.pg_am a ON a.oid = t.relam
 WHERE t.relkind <> 'p' ORDER BY 1, 2
"""


_SIZE_QUERY = """
SELECT o.oid::pg_catalog.int8,
       COALESCE(pg_catalog.pg_relation_size(o.oid), 0)
       / pg_catalog.current_setting('block_size')::pg_catalog.int8,
       COALESCE(pg_catalog.pg_table_size(o.oid), 0)
  FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS o(oid)
"""


_NUMBER_QUERY = """
SELECT a.attrelid::pg_catalog.int8, a.attname::pg_catalog.text, a.attnum::pg_catalog.int4
  FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = ANY (%s::pg_catalog.oid[]) AND a.attnum > 0 AND NOT a.attisdropped
"""


@dataclass(frozen=True, slots=True)
class TableStorage:
    """How large a table is."""

    #: Blocks of the table, or of each of its leaves.
    blocks: tuple[int, ...]
    #: Bytes with TOAST on the server's disk.
    size_bytes: int
    #: Whether ranges of blocks can be read.
    has_blocks: bool


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Where the rows of a table lie, in a form that is good for comparing only.

    Rows that change it brings or takes are in no stream, and a snapshot from before misses them too.
    """

    #: OID and file node of the table, or of each of its leaves.
    files: tuple[str, ...]
    #: See ``TableMark``.
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableState:
    """All of a table but its rows that a copy depends on and the catalog knows, for comparing only."""

    place: TablePlace
    #: Every publication that is read: its operations may have been others for a while.
    publications: tuple[PublicationMark, ...]
    #: See ``TableMark``.
    memberships: tuple[str, ...]
    #: ``pg_attribute.attnum`` by name: a column that was dropped and made again is another one.
    numbers: Mapping[str, int]
    #: The users' types that its columns are made of: what ALTER TYPE makes of values is in no stream.
    types: tuple[TypeDefinition, ...]


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The tables as of one point, by OID."""

    storage: Mapping[int, TableStorage]
    states: Mapping[int, TableState]


def read_plan(
    conninfo: str | Mapping[str, Any],
    snapshot_name: str,
    publication_names: Sequence[str],
    tables: Sequence[PublishedTable],
) -> CopyPlan:
    """Look at the tables as of an exported snapshot, when all that it sees has ended.

    :raises SnapshotLost: when the snapshot does not exist any more.
    """
    with sessions.connect(conninfo) as session, translated():
        session.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        statement = sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot_name))
        session.execute(statement)
        wait_for_commits(session)
        return CopyPlan(
            read_storage(session, [each.relation_oid for each in tables]),
            read_states(session, publication_names, tables),
        )


def read_storage(session: Session, relation_oids: Sequence[int]) -> dict[int, TableStorage]:
    """How large tables are now, by OID; waits for their locks. A table that is gone has no blocks."""
    leaves = _leaves(session, relation_oids)
    oids = [leaf.oid for found in leaves.values() for leaf in found]
    with translated():
        rows = session.execute(_SIZE_QUERY, (oids,)).fetchall()
    blocks = {oid: count for oid, count, _ in rows}
    sizes = {oid: size for oid, _, size in rows}
    return {
        oid: TableStorage(
            tuple(blocks[leaf.oid] for leaf in found),
            sum(sizes[leaf.oid] for leaf in found),
            has_blocks=bool(found) and all(leaf.has_blocks for leaf in found),
        )
        for oid, found in leaves.items()
    }


def read_places(session: Session, tables: Sequence[PublishedTable]) -> dict[int, TablePlace]:
    """Where rows lie as the session's snapshot sees it, by OID; waits for no lock of a table."""
    leaves = _leaves(session, [each.relation_oid for each in tables])
    partitions = read_partitions(session, tables)
    return {
        oid: TablePlace(tuple(f"{leaf.oid} {leaf.file}" for leaf in found), partitions[oid])
        for oid, found in leaves.items()
    }


class _Leaf(NamedTuple):
    oid: int
    file: int
    #: Whether ranges of its blocks can be read.
    has_blocks: bool


def _leaves(session: Session, relation_oids: Sequence[int]) -> dict[int, list[_Leaf]]:
    """What holds the rows of each table, in the order of their OIDs."""
    found: dict[int, list[_Leaf]] = {oid: [] for oid in relation_oids}
    with translated():
        rows = session.execute(_LEAF_QUERY, (list(relation_oids),)).fetchall()
    for root, *leaf in rows:
        found[root].append(_Leaf(*leaf))
    return found


def read_states(
    session: Session, publication_names: Sequence[str], tables: Sequence[PublishedTable]
) -> dict[int, TableState]:
    """The state of tables as the session's snapshot sees it, by OID; waits for no lock of a table."""
    marks = read_marks(session, publication_names, tables)
    places = read_places(session, tables)
    numbers = read_numbers(session, tables)
    types = read_type_definitions(session, [each.relation_oid for each in tables])
    return {
        each.relation_oid: TableState(
            places[each.relation_oid],
            marks.publications,
            each.memberships,
            numbers[each.relation_oid],
            tuple(types.of(each.relation_oid).values()),
        )
        for each in marks.tables
    }


def read_numbers(session: Session, tables: Sequence[PublishedTable]) -> dict[int, dict[str, int]]:
    """The ``attnum`` of the columns that have the names of those published, by OID; waits for no lock."""
    published = {each.relation_oid: {column.name for column in each.columns} for each in tables}
    numbers: dict[int, dict[str, int]] = {oid: {} for oid in published}
    with translated():
        rows = session.execute(_NUMBER_QUERY, (list(published),)).fetchall()
    for oid, name, number in rows:
        if name in published[oid]:
            numbers[oid][name] = number
    return numbers


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
