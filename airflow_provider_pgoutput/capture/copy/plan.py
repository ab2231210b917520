"""What a copy has to know about its tables: where they are stored, how to split them, what publishes them.

It is read inside the snapshot, so it is true at the copy's point. Read again later, it shows what has changed
since. A rewritten table (TRUNCATE, VACUUM FULL, some forms of ALTER TABLE) has other files. Rows that were
read before and after the rewrite do not fit together. An older snapshot sees no row of the table, and gives
no error. The stream does not have values that ALTER TABLE computed. ``read.py`` reads the rows.

Sources: https://www.postgresql.org/docs/current/mvcc-caveats.html,
https://www.postgresql.org/docs/current/ddl-system-columns.html (ctid)
"""

from __future__ import annotations

import bisect
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_pgoutput.capture.copy_job import BlockRange
from airflow_provider_pgoutput.capture.slot.commit_wait import begin_in_snapshot
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.capture.source.publications import (
    read_partitions,
    read_published_set,
)
from airflow_provider_pgoutput.capture.source.type_definitions import read_type_definitions
from airflow_provider_pgoutput.errors import SourceLocked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.batch.membership import PublicationVersion
    from airflow_provider_pgoutput.batch.type_definition import TypeDefinition
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.source.session import Session


log = logging.getLogger(__name__)

#: A table is read in parts of about this size on the server's disk.
PART_BYTES = 64 << 20
#: How long to wait for the lock of one table, after a wait for the locks of all tables together.
_SECONDS_FOR_EACH = 0.1


# A partitioned table is stored in its leaves, a parent of inheritance only in itself. Only a heap can be read
# by ctid. A role needs the right to read the whole table for that; a right to some columns is not enough.
# Other sessions of the copy may hold locks that a migration waits for. So this query must not wait behind the
# migration.
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


# The last column has no use but to wait for the locks of indexes, as whoever reads the table does.
_SIZE_QUERY = """
SELECT o.oid::pg_catalog.int8,
       COALESCE(pg_catalog.pg_relation_size(o.oid), 0)
       / pg_catalog.current_setting('block_size')::pg_catalog.int8,
       COALESCE(pg_catalog.pg_table_size(o.oid), 0),
       COALESCE(c.relpages > 0, false),
       pg_catalog.pg_indexes_size(o.oid)
  FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS o(oid)
  LEFT JOIN pg_catalog.pg_class c ON c.oid = o.oid
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
    #: Bytes on the server's disk, with TOAST.
    size_bytes: int
    #: Whether it can be read in ranges of blocks.
    has_blocks: bool
    #: Whether the catalog says that the table, or one of its leaves, has blocks.
    had_blocks: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the exported snapshot sees no rows. It holds only while the table keeps its files.

        A heap without a block has no rows. It cannot have lost them since: VACUUM keeps those of the
        snapshot, and TRUNCATE makes new files. But the server also sees no block when the file is missing.
        """
        return self.has_blocks and not self.had_blocks and not any(self.blocks)


@dataclass(frozen=True, slots=True)
class TableLocation:
    """The files that hold a table's rows, in a form that is only good for comparing.

    If the files change, rows come or go. The stream does not have these rows, and neither does an older
    snapshot.
    """

    #: OID and file node of the table, or of each of its leaves.
    files: tuple[str, ...]
    #: See ``TableMembership``.
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableState:
    """Everything that the catalog knows and a table's copy depends on, except for the rows.

    Only for comparing.
    """

    location: TableLocation
    #: Every publication that is read. It may have published other operations for a while.
    publications: tuple[PublicationVersion, ...]
    #: See ``TableMembership``.
    memberships: tuple[str, ...]
    #: ``pg_attribute.attnum`` by name. A column that was dropped and made again has another one.
    numbers: Mapping[str, int]
    #: The users' types in its columns. No stream has what ALTER TYPE does to values.
    types: tuple[TypeDefinition, ...]


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The tables as of one point, by OID."""

    #: A table that stayed locked is not among them.
    storage: Mapping[int, TableStorage]
    states: Mapping[int, TableState]
    locked: Mapping[int, SourceLocked]


def read_plan(
    conninfo: str | Mapping[str, Any],
    snapshot_name: str,
    publication_names: Sequence[str],
    tables: Sequence[PublishedTable],
    *,
    goes_on: bool = False,
) -> CopyPlan:
    """Read the plan as of an exported snapshot, when every transaction that the snapshot sees has ended.

    :param goes_on: whether the copy goes on without tables that stay locked. If not, it waits for their
        locks.
    :raises SnapshotLost: the snapshot does not exist any more.
    """
    with sessions.connect(conninfo) as session, translated():
        begin_in_snapshot(session, snapshot_name)
        oids, locked = [each.relation_oid for each in tables], dict[int, SourceLocked]()
        if goes_on:
            storage, locked = read_unlocked(session, oids)
        else:
            storage = read_storage(session, oids)
        return CopyPlan(storage, read_states(session, publication_names, tables), locked)


def read_unlocked(
    session: Session, relation_oids: Sequence[int], seconds: float | None = None
) -> tuple[dict[int, TableStorage], dict[int, SourceLocked]]:
    """How large the tables are that are not locked, and the errors of the others, by OID.

    An index or a partition may be what is locked. So this waits for what a reader waits for. It does not look
    for locks in the catalog.

    :param seconds: how long it waits for locks; None: ``sessions.LOCK_TIMEOUT_SECONDS``.
    """
    sessions.limit_lock_waits(session, seconds)
    try:
        try:
            with translated(), session.transaction():
                return read_storage(session, relation_oids), {}
        except SourceLocked as error:
            log.info("Some of %d tables are locked. %s", len(relation_oids), error)
        # All had time enough together. Now each that is still locked is found.
        sessions.limit_lock_waits(session, _SECONDS_FOR_EACH)
        return _one_by_one(session, relation_oids)
    finally:
        # The session reads other things later, and those may wait as long as ever.
        if not session.closed:
            sessions.limit_lock_waits(session)


def _one_by_one(
    session: Session, relation_oids: Sequence[int]
) -> tuple[dict[int, TableStorage], dict[int, SourceLocked]]:
    storage: dict[int, TableStorage] = {}
    locked: dict[int, SourceLocked] = {}
    for oid in relation_oids:
        try:
            with translated(), session.transaction():
                storage |= read_storage(session, [oid])
        except SourceLocked as error:
            locked[oid] = error
    return storage, locked


def read_storage(session: Session, relation_oids: Sequence[int]) -> dict[int, TableStorage]:
    """How large tables are now, by OID. It waits for their locks. A table that is gone has no blocks."""
    leaves = _leaves(session, relation_oids)
    # A root has no blocks, but its lock stands in the way of its readers.
    oids = sorted({*relation_oids, *(leaf.oid for found in leaves.values() for leaf in found)})
    with translated():
        rows = session.execute(_SIZE_QUERY, (oids,)).fetchall()
    blocks = {oid: count for oid, count, *_ in rows}
    sizes = {oid: size for oid, _, size, *_ in rows}
    had_blocks = {oid for oid, _, _, had, _ in rows if had}
    return {
        oid: TableStorage(
            tuple(blocks[leaf.oid] for leaf in found),
            sum(sizes[leaf.oid] for leaf in found),
            has_blocks=bool(found) and all(leaf.has_blocks for leaf in found),
            had_blocks=any(leaf.oid in had_blocks for leaf in found),
        )
        for oid, found in leaves.items()
    }


def read_locations(session: Session, tables: Sequence[PublishedTable]) -> dict[int, TableLocation]:
    """Where rows are, as the session's snapshot sees it, by OID. It waits for no table's lock."""
    leaves = _leaves(session, [each.relation_oid for each in tables])
    partitions = read_partitions(session, tables)
    return {
        oid: TableLocation(tuple(f"{leaf.oid} {leaf.file}" for leaf in found), partitions[oid])
        for oid, found in leaves.items()
    }


class _Leaf(NamedTuple):
    oid: int
    file: int
    #: Whether it can be read in ranges of blocks.
    has_blocks: bool


def _leaves(session: Session, relation_oids: Sequence[int]) -> dict[int, list[_Leaf]]:
    """The tables or leaves that hold the rows of each table, in the order of their OIDs."""
    found: dict[int, list[_Leaf]] = {oid: [] for oid in relation_oids}
    with translated():
        rows = session.execute(_LEAF_QUERY, (list(relation_oids),)).fetchall()
    for root, *leaf in rows:
        found[root].append(_Leaf(*leaf))
    return found


def read_states(
    session: Session, publication_names: Sequence[str], tables: Sequence[PublishedTable]
) -> dict[int, TableState]:
    """The state of tables as the session's snapshot sees it, by OID. It waits for no table's lock."""
    published = read_published_set(session, publication_names, tables)
    locations = read_locations(session, tables)
    numbers = read_numbers(session, tables)
    types = read_type_definitions(session, [each.relation_oid for each in tables])
    return {
        each.relation_oid: TableState(
            locations[each.relation_oid],
            published.publications,
            each.memberships,
            numbers[each.relation_oid],
            tuple(types.of(each.relation_oid).values()),
        )
        for each in published.tables
    }


def read_numbers(session: Session, tables: Sequence[PublishedTable]) -> dict[int, dict[str, int]]:
    """By OID: ``attnum`` of columns that have the names of published ones. It waits for no table's lock."""
    published = {each.relation_oid: {column.name for column in each.columns} for each in tables}
    numbers: dict[int, dict[str, int]] = {oid: {} for oid in published}
    with translated():
        rows = session.execute(_NUMBER_QUERY, (list(published),)).fetchall()
    for oid, name, number in rows:
        if name in published[oid]:
            numbers[oid][name] = number
    return numbers


def block_ranges(storage: TableStorage, part_bytes: int | None = None) -> list[BlockRange]:
    """Cut a table into ranges with about the same number of blocks. Together they are the whole table.

    Each range holds for every leaf, so a partitioned table can be read through its root.

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
