"""Reads the catalogs of the source: the system, the published tables with columns and keys, and types.

It reads over a pinned session, and never a row of a user's table. ``publications.py`` has what the server
says of publications, ``capture/slot/facts.py`` what it says of the slot.

Source: https://www.postgresql.org/docs/current/catalogs.html and
https://www.postgresql.org/docs/current/protocol-replication.html (IDENTIFY_SYSTEM)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

from airflow_provider_pgoutput.batch.earlier_systems import is_of
from airflow_provider_pgoutput.batch.lsn import NO_OFFSET, Lsn, LsnOffset
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.capture.source.keys import RowIdentity
from airflow_provider_pgoutput.capture.types.type_info import (
    ATTRIBUTE_QUERY,
    CATALOG_QUERY,
    TypeInfo,
    type_catalog,
    with_attributes,
)
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from airflow_provider_pgoutput.capture.source.keys import Keys
    from airflow_provider_pgoutput.capture.source.partition_identity import Leaves
    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.errors import PgoutputError


# The server computes the columns in this order. The time comes before the flush LSN, so that the WAL before
# the latter has all that had committed by then. On a standby it is when the primary last said how far its own
# WAL is, if all of that is replayed. An idle primary says so every half minute. A role that is no member of
# ``pg_read_all_stats`` does not see it. Then it is the time of the last commit that was replayed.
_SERVER_QUERY = """
SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4,
       (SELECT system_identifier FROM pg_catalog.pg_control_system())::pg_catalog.text,
       CASE WHEN NOT pg_catalog.pg_is_in_recovery()
            THEN ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(
                    pg_catalog.pg_current_wal_lsn()), 1, 8))::pg_catalog.bit(32)::pg_catalog.int4
       END,
       pg_catalog.current_database()::pg_catalog.text,
       CASE WHEN pg_catalog.pg_is_in_recovery()
            THEN greatest(pg_catalog.pg_last_xact_replay_timestamp(), (
                    SELECT r.last_msg_send_time
                      FROM pg_catalog.pg_stat_wal_receiver r
                     WHERE r.latest_end_lsn <= pg_catalog.pg_last_wal_replay_lsn()))
            ELSE pg_catalog.clock_timestamp()
       END,
       CASE WHEN pg_catalog.pg_is_in_recovery()
            THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_flush_lsn()
       END::pg_catalog.text,
       pg_catalog.current_setting('wal_level'),
       EXISTS (SELECT FROM pg_catalog.pg_replication_origin),
       pg_catalog.pg_is_in_recovery()
"""


# From version 18 on generated columns can be published, and ``attnames`` says so. Before, the view names them
# although the stream never carries them. A partition may be published as itself by one publication, and via
# its root by another. The view names it then, but the stream has it under the root only.
_TABLE_QUERY = """
WITH published AS MATERIALIZED (
    SELECT c.oid, c.relkind, c.relreplident, c.relispartition, p.*, v.pubviaroot
      FROM pg_catalog.pg_publication_tables p
      JOIN pg_catalog.pg_publication v ON v.pubname = p.pubname
      JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
      JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
     WHERE p.pubname = ANY (%s))
SELECT p.oid::pg_catalog.int8, p.schemaname::pg_catalog.text, p.tablename::pg_catalog.text,
       p.relkind::pg_catalog.text, p.relreplident::pg_catalog.text, p.pubname::pg_catalog.text,
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = p.oid AND a.attname = ANY (p.attnames) AND a.attnum > 0
                AND (a.attgenerated = '' OR %s) ORDER BY a.attnum),
       p.rowfilter
  FROM published p
 WHERE NOT (p.relispartition AND EXISTS (
           SELECT FROM pg_catalog.pg_partition_ancestors(p.oid) a
             JOIN published r ON r.oid = a.relid AND r.oid <> p.oid AND r.pubviaroot))
 ORDER BY 2, 3, 6
"""


# The same without the view, which opens each table and so waits for its lock. A publication of all tables has
# the tables that are stored, or via their roots those that are no partitions. Others also have the partitions
# of what they name, of any kind. Lists of columns and filters count only where a table is named, and its
# schema is not.
_UNLOCKED_TABLE_QUERY = """
WITH RECURSIVE publication AS (
    SELECT p.oid, p.pubname, p.puballtables, p.pubviaroot,
           COALESCE(pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's', false) AS generated
      FROM pg_catalog.pg_publication p WHERE p.pubname = ANY (%s)),
class AS (
    SELECT c.* FROM pg_catalog.pg_class c
     WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384),
named(publication, oid) AS (
    SELECT p.oid, r.prrelid
      FROM publication p JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
     UNION
    SELECT p.oid, c.oid
      FROM publication p
      JOIN pg_catalog.pg_publication_namespace n ON n.pnpubid = p.oid
      JOIN class c ON c.relnamespace = n.pnnspid
     UNION
    SELECT p.oid, c.oid
      FROM publication p JOIN class c ON p.puballtables),
tree(publication, oid) AS (
    SELECT n.publication, n.oid FROM named n JOIN publication p ON p.oid = n.publication
     WHERE NOT p.puballtables
     UNION
    SELECT t.publication, i.inhrelid
      FROM tree t
      JOIN pg_catalog.pg_class k ON k.oid = t.oid AND k.relkind = 'p'
      JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending),
member(publication, oid) AS (
    SELECT t.publication, t.oid
      FROM tree t
      JOIN publication p ON p.oid = t.publication AND NOT p.pubviaroot
      JOIN pg_catalog.pg_class c ON c.oid = t.oid AND c.relkind <> 'p'
     UNION
    SELECT n.publication, n.oid
      FROM named n
      JOIN publication p ON p.oid = n.publication AND p.puballtables AND NOT p.pubviaroot
      JOIN pg_catalog.pg_class c ON c.oid = n.oid AND c.relkind = 'r'
     UNION
    SELECT n.publication, n.oid
      FROM named n
      JOIN publication p ON p.oid = n.publication AND p.pubviaroot
      JOIN pg_catalog.pg_class c ON c.oid = n.oid AND NOT (p.puballtables AND c.relispartition)),
published AS MATERIALIZED (
    SELECT c.oid, c.relkind, c.relreplident, c.relispartition, n.nspname AS schemaname,
           c.relname AS tablename, p.pubname, p.pubviaroot, p.generated, r.prattrs,
           pg_catalog.pg_get_expr(r.prqual, r.prrelid) AS rowfilter
      FROM member m
      JOIN publication p ON p.oid = m.publication
      JOIN pg_catalog.pg_class c ON c.oid = m.oid
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_catalog.pg_publication_rel r
        ON r.prrelid = m.oid AND r.prpubid = p.oid AND NOT p.puballtables
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s
                        WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace))
SELECT p.oid::pg_catalog.int8, p.schemaname::pg_catalog.text, p.tablename::pg_catalog.text,
       p.relkind::pg_catalog.text, p.relreplident::pg_catalog.text, p.pubname::pg_catalog.text,
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = p.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND (p.prattrs IS NULL OR a.attnum = ANY (p.prattrs))
                AND (a.attgenerated = ''
                     OR %s AND (p.prattrs IS NOT NULL OR p.generated AND a.attgenerated = 's'))
              ORDER BY a.attnum),
       p.rowfilter
  FROM published p
 WHERE NOT (p.relispartition AND EXISTS (
           SELECT FROM pg_catalog.pg_partition_ancestors(p.oid) a
             JOIN published r ON r.oid = a.relid AND r.oid <> p.oid AND r.pubviaroot))
 ORDER BY 2, 3, 6
"""


#: The newest version whose catalogs of publications are known here.
NEWEST_KNOWN_CATALOGS: Final = 18


_COLUMN_QUERY = """
SELECT a.attrelid::pg_catalog.int8, a.attname::pg_catalog.text, a.atttypid::pg_catalog.int8,
       a.atttypmod, pg_catalog.array_to_string(a.attmissingval, ''),
       a.attnum::pg_catalog.int4
  FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = ANY (%s::pg_catalog.oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum
"""


_MISSING_QUERY = """
SELECT a.attrelid::pg_catalog.int8, a.attname::pg_catalog.text, a.atttypid::pg_catalog.int8,
       a.atttypmod, pg_catalog.array_to_string(a.attmissingval, '')
  FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = ANY (%s::pg_catalog.oid[]) AND a.attnum > 0 AND NOT a.attisdropped
   AND pg_catalog.array_to_string(a.attmissingval, '') IS NOT NULL
"""


_NAME_QUERY = """
SELECT c.oid::pg_catalog.int8, n.nspname::pg_catalog.text, c.relname::pg_catalog.text
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = ANY (%s::pg_catalog.oid[])
"""


@dataclass(frozen=True, slots=True)
class Server:
    """The source as it was when a run began."""

    #: ``server_version_num``, 180006 for 18.6.
    version: int
    #: Its name in the lake; see ``batch/earlier_systems.py``.
    system_identifier: str
    timeline: int
    database: str
    #: All WAL before it is on the server's disk; on a standby: is replayed.
    flush_lsn: Lsn
    wal_level: str
    #: Whether it knows other servers (replication origins) whose changes it may replicate.
    has_origins: bool = False
    #: Whether it replays the WAL of another server.
    is_standby: bool = False
    #: All transactions that had committed by then are before ``flush_lsn``, by the server's own clock; of a
    #: standby: by its primary's clock. None: it is not known.
    time: datetime | None = None
    #: What is added to its LSNs, in ``flush_lsn`` and in all that is read from it.
    lsn_offset: LsnOffset = NO_OFFSET

    def as_in_lake(self, name: str, offset: LsnOffset) -> Server:
        """The server with the name and the LSNs that a system has in the lake, if it is that system.

        :param name: see ``batch/earlier_systems.py``.
        :param offset: what the lake adds to the LSNs of that system.
        """
        if not is_of(name, self.system_identifier, self.timeline):
            return self
        assert self.lsn_offset == NO_OFFSET, "an offset is added once"
        flush_lsn = offset.added_to(self.flush_lsn)
        return dataclasses.replace(
            self, system_identifier=name, flush_lsn=flush_lsn, lsn_offset=offset
        )

    @property
    def major(self) -> int:
        """15, 16, 17, 18..."""
        return self.version // 10000


@dataclass(frozen=True, slots=True)
class PublishedColumn:
    """A published column as the catalog describes it now."""

    name: str
    type_oid: int
    type_modifier: int
    #: See ``Column.missing_value`` in ``batch/table_version.py``.
    missing_value: str | None
    is_identity: bool
    #: ``pg_attribute.attnum``.
    attribute_number: int


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as the publications together publish it."""

    relation_oid: int
    schema_name: str
    table_name: str
    #: ``r`` a table, ``p`` a partitioned one.
    kind: str
    replica_identity: str
    columns: tuple[PublishedColumn, ...]
    row_identity: RowIdentity
    #: SQL conditions as the server prints them. A row must pass one of them; empty: all rows pass.
    row_filters: tuple[str, ...]

    #: The partitions of a root that publishes them under its name.
    leaves: tuple[Leaves, ...] = ()

    @property
    def name(self) -> str:
        """``schema.table``, for messages and as the key of options."""
        return f"{self.schema_name}.{self.table_name}"

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the key; empty: the table has no key."""
        return self.row_identity.key


def read_server(session: Session, conninfo: str | Mapping[str, Any]) -> Server:
    """Describe the system, and read its flush LSN, as the server counts: the target of a run that starts now.

    :param conninfo: the session's connection parameters. On a standby only a walsender knows the timeline.
        The control file has the timeline of the last restart point, minutes behind a promotion perhaps.
    :raises SourceUnavailable: the source does not answer.
    """
    with translated():
        row = session.execute(_SERVER_QUERY).fetchone()
    assert row is not None, "a SELECT of scalars gives a row"
    version, system, timeline, database, time, flush_lsn, wal_level, has_origins, is_standby = row
    if timeline is None:
        with sessions.connect(conninfo, replication=True) as walsender, translated():
            identified = walsender.execute("IDENTIFY_SYSTEM").fetchone()
        assert identified is not None, "IDENTIFY_SYSTEM answers with a row"
        timeline = int(identified[1])
    target = Lsn.parse(flush_lsn)
    return Server(
        version, system, timeline, database, target, wal_level, has_origins, is_standby, time
    )


def read_published_tables(
    session: Session,
    server: Server,
    publication_names: Sequence[str],
    keys: Keys,
    refused: dict[int, PgoutputError] | None = None,
    *,
    waits: bool = True,
) -> tuple[PublishedTable, ...]:
    """The tables that the publications publish now, each once, by schema and name.

    If a table has row filters in several publications, a row has to pass one of them. A publication without a
    filter lets every row pass. The server's own initial synchronisation does the same.

    Source: https://www.postgresql.org/docs/current/logical-replication-row-filter.html

    :param refused: collects, by OID, the errors of tables that cannot have their configured key. Such a table
        is returned without a key. None: such an error is raised.
    :param waits: ask the server's own view, which waits for locks of the tables. Otherwise the catalogs are
        read, as they are up to ``NEWEST_KNOWN_CATALOGS``.
    :raises ConfigurationError: publications publish different columns of one table, or two tables have the
        same ``schema.table``.
    """
    with translated():
        query = _TABLE_QUERY if waits else _UNLOCKED_TABLE_QUERY
        rows = session.execute(query, (list(publication_names), server.major >= 18)).fetchall()
        oids = sorted({row[0] for row in rows})
        attributes: dict[int, list[tuple[Any, ...]]] = {oid: [] for oid in oids}
        for row in session.execute(_COLUMN_QUERY, (oids,)).fetchall():
            attributes[row[0]].append(row[1:])
    keys.load(session, oids)
    by_oid: dict[int, list[tuple[Any, ...]]] = {}
    for row in rows:
        by_oid.setdefault(row[0], []).append(row)
    tables = tuple(_table(group, attributes[oid], keys, refused) for oid, group in by_oid.items())
    _refuse_one_name_for_two(tables)
    return tables


def _refuse_one_name_for_two(tables: Sequence[PublishedTable]) -> None:
    """Refuse two tables with the same ``schema.table``: ``"a.b"."c"`` and ``"a"."b.c"``."""
    by_name: dict[str, PublishedTable] = {}
    for table in tables:
        other = by_name.setdefault(table.name, table)
        if other is not table:
            quoted = [
                sql.Identifier(each.schema_name, each.table_name).as_string()
                for each in (other, table)
            ]
            raise ConfigurationError(
                f"The published tables {quoted[0]} and {quoted[1]} have the same name as schema.table.",
                table=table.name,
                advice="leave one of them out of the publications, or rename it.",
            )


def _table(
    group: list[tuple[Any, ...]],
    attributes: list[tuple[Any, ...]],
    keys: Keys,
    refused: dict[int, PgoutputError] | None,
) -> PublishedTable:
    """Make one description of what several publications say about one table."""
    relation_oid, schema_name, table_name, kind, replica_identity, _, names, _ = group[0]
    name = f"{schema_name}.{table_name}"
    if any(row[6] != names for row in group):
        raise ConfigurationError(
            "The publications "
            + ", ".join(repr(row[5]) for row in group)
            + " publish different columns "
            "of this table, which the server refuses to decode.",
            table=name,
            advice="give all of them the same column list and, on PostgreSQL 18, the same "
            "publish_generated_columns.",
        )
    filters = [row[7] for row in group]
    identity = set(keys.identity(relation_oid, replica_identity))
    keys.publish(relation_oid, names)
    columns = tuple(
        PublishedColumn(
            column,
            type_oid,
            modifier,
            missing,
            replica_identity == "f" or column in identity,
            number,
        )
        for column, type_oid, modifier, missing, number in attributes
        if column in names
    )
    sent = [each.name for each in columns if each.is_identity]
    try:
        row_identity = keys.of(relation_oid, name, replica_identity, names, sent)
    except ConfigurationError as error:
        if refused is None:
            raise
        refused[relation_oid] = error
        row_identity = RowIdentity(replica_identity, (), frozenset(sent))
    return PublishedTable(
        relation_oid=relation_oid,
        schema_name=schema_name,
        table_name=table_name,
        kind=kind,
        replica_identity=replica_identity,
        columns=columns,
        row_identity=row_identity,
        row_filters=() if None in filters else tuple(dict.fromkeys(filters)),
        leaves=keys.leaves(relation_oid),
    )


def read_types(session: Session, *, attributes: bool = False) -> dict[int, TypeInfo]:
    """The types that users made, by OID.

    :param attributes: ask for the attributes of composite types too.
    """
    with translated():
        catalog = type_catalog(session.execute(CATALOG_QUERY).fetchall())
        if attributes:
            catalog = with_attributes(catalog, session.execute(ATTRIBUTE_QUERY).fetchall())
    return catalog


def read_names(session: Session, relation_oids: Iterable[int]) -> dict[int, tuple[str, str]]:
    """Schema and name of relations that exist now, by OID."""
    with translated():
        rows = session.execute(_NAME_QUERY, (sorted(relation_oids),)).fetchall()
    return {row[0]: (row[1], row[2]) for row in rows}


def read_missing_values(
    session: Session, relation_oids: Iterable[int]
) -> dict[tuple[int, str, int, int], str]:
    """What rows older than a column show in it, for the columns that have such a value.

    :returns: its text by the table's OID, the column's name, its type's OID and its type modifier: a column
        of that name that was there before had perhaps another type, which does not hold it.
    """
    with translated():
        rows = session.execute(_MISSING_QUERY, (sorted(relation_oids),)).fetchall()
    return {row[:4]: row[4] for row in rows}
