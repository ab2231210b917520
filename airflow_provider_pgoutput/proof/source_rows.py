"""The rows of the source at one LSN: their digests, computed by the server.

A temporary slot exports a snapshot of the database as it was at the slot's first position. Sessions that take
it over see exactly the transactions that committed before that LSN.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql
from psycopg.pq import TransactionStatus

from airflow_provider_pgoutput.capture.copy.plan import read_locations, read_storage
from airflow_provider_pgoutput.capture.copy.repair import check_keys
from airflow_provider_pgoutput.capture.filters.of_tables import (
    columns_of_source,
    typed_condition,
    with_filter,
)
from airflow_provider_pgoutput.capture.membership import seen_from_server
from airflow_provider_pgoutput.capture.schema.named_objects import shows_names
from airflow_provider_pgoutput.capture.slot.commit_wait import begin_in_snapshot
from airflow_provider_pgoutput.capture.slot.replication_slot import create_slot
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_published_tables, read_types
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.capture.source.keys import Keys
from airflow_provider_pgoutput.capture.source.publications import read_published_set
from airflow_provider_pgoutput.capture.source.type_definitions import read_type_definitions
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.filters import read_recorded
from airflow_provider_pgoutput.proof.changes.summaries import WalSummaries
from airflow_provider_pgoutput.proof.digest import RowHash, aggregates, digest_of
from airflow_provider_pgoutput.proof.forms.masked import tell_secret
from airflow_provider_pgoutput.proof.ranges import Ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from psycopg import Cursor

    from airflow_provider_pgoutput.batch.lsn import Lsn, LsnOffset
    from airflow_provider_pgoutput.batch.table_version import Column
    from airflow_provider_pgoutput.capture.copy.plan import TableLocation, TableStorage
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable, Server
    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.capture.staging.repairs import KeysOfTable
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from airflow_provider_pgoutput.proof.digest import Digest
    from airflow_provider_pgoutput.proof.key_ranges import KeyRanges, Part
    from airflow_provider_pgoutput.proof.ranges import HashCounts

_MODULUS = 2**64
#: The expression of a generated column that is not stored makes other values when it is altered.
_COLUMNS_QUERY = """
SELECT a.attrelid::pg_catalog.int8, a.attnum, a.attname::pg_catalog.text, a.atttypid::pg_catalog.int8,
       a.atttypmod, a.attgenerated::pg_catalog.text,
       CASE WHEN a.attgenerated <> '' THEN pg_catalog.pg_get_expr(d.adbin, d.adrelid) END
  FROM pg_catalog.pg_attribute a
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attrelid = ANY (%s::pg_catalog.oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY 1, 2
"""
#: A copy of a database (CREATE DATABASE ... TEMPLATE) has tables with the same OIDs and file nodes.
_DATABASE_QUERY = """
SELECT d.oid::pg_catalog.int8 FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
"""
#: The version of PostgreSQL that got ``timestamptz_hash_extended``.
_HASHES_TIMESTAMPTZ = 180000
#: The alias of the table in each query.
_ALIAS = "t"


@dataclass(frozen=True)
class SourceRows:
    """The published tables as they were at one LSN, while its session is open."""

    lsn: Lsn
    tables: tuple[PublishedTable, ...]
    types: Mapping[int, TypeInfo]
    #: It sees the snapshot.
    _session: Session
    #: It sees what was committed after the snapshot, too.
    _now: Session
    #: By OID: the files and partitions that each table had at the LSN.
    _locations: Mapping[int, TableLocation]
    _publication_names: Sequence[str] = ()
    #: Whether digests are made by md5, and not by the server's hash functions.
    is_md5: bool = False
    #: No transaction that was open at ``lsn`` wrote WAL before it; None: it was not asked for.
    since: Lsn | None = None
    #: Whether ``_session`` has a snapshot. If not, only definitions are read.
    _has_snapshot: bool = True

    @property
    def recodes(self) -> bool:
        """Whether the server keeps text in another encoding than the lake's. SQL_ASCII keeps any bytes."""
        encoding = self._session.info.parameter_status("server_encoding")
        return encoding not in {"UTF8", "SQL_ASCII"}

    @property
    def cuts_as_lake(self) -> bool:
        """Whether the server counts the characters of a text as the lake's masks do."""
        return self._session.info.parameter_status("server_encoding") == "UTF8"

    @property
    def is_open(self) -> bool:
        """Whether the session is there, and still has its snapshot."""
        wanted = TransactionStatus.INTRANS if self._has_snapshot else TransactionStatus.IDLE
        return self._session.info.transaction_status == wanted

    def sees(self, server: Server, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint as this source sees it, see ``seen_from_server``.

        Example: the lake was filled from another server before, and a new table of this one has the OID that
        another table had there. The lake does not have the new table.
        """
        return seen_from_server(self._session, server, checkpoint)

    def row_hash(self, columns: Sequence[Column], salt: int) -> RowHash:
        """The hash of rows with these columns."""
        return RowHash.of(
            columns,
            self.types,
            salt,
            recodes=self.recodes,
            is_md5=self.is_md5,
            hashes_timestamptz=self._session.info.server_version >= _HASHES_TIMESTAMPTZ,
        )

    def filtered(self, table: PublishedTable, row_filter: str) -> PublishedTable:
        """The table with the rows that pass the filter of the lake's rows.

        :param row_filter: as the lake has it.
        :raises ConfigurationError: the columns of the filter have other names or types by now.
        """
        condition, columns = read_recorded(row_filter)
        if columns_of_source(table, condition) != columns:
            raise ConfigurationError(
                "The columns of its filter have other names or types than when the lake's rows passed it.",
                table=table.name,
                advice=f"copy the table again (copy_tables=[{table.name!r}]).",
            )
        return with_filter(table, typed_condition(self._session, table, condition, self.types))

    def digest(self, table: PublishedTable, row_hash: RowHash, part: Part | None = None) -> Digest:
        """The digest of all rows, or of those of a part.

        :raises SourceError: the server cannot make the values of the lake's types of the columns.
        """
        selected = aggregates(row_hash.expression(_ALIAS))
        (row,) = self._rows(table, sql.SQL("SELECT {}").format(selected), conditions=_of(part))
        return digest_of(*row)

    def key_bounds(self, table: PublishedTable, column: str) -> tuple[int, int] | None:
        """The least and the greatest value of a column; None: there are no rows, or all have NULL."""
        query = sql.SQL("SELECT pg_catalog.min({0}), pg_catalog.max({0})").format(
            sql.Identifier(_ALIAS, column)
        )
        ((least, greatest),) = self._rows(table, query)
        return None if least is None else (least, greatest)

    def digests_by_key(self, table: PublishedTable, row_hash: RowHash, ranges: KeyRanges) -> Ranges:
        """The digests of rows by ranges of a column of the key.

        :raises SourceError: the server cannot make the values of the lake's types of the columns.
        """
        part = None if ranges.is_unbounded else ranges.whole
        return self._by_range(table, row_hash, ranges.number(_ALIAS), ranges.count, part)

    def storage(self, table: PublishedTable) -> TableStorage:
        """How large the table is now. It has at least the blocks in which there are rows of the snapshot."""
        oid = table.relation_oid
        with translated(table=table.name), self._session.transaction(force_rollback=True):
            return read_storage(self._session, [oid])[oid]

    def wal_summaries(self, server: Server, wait_seconds: float) -> WalSummaries:
        """What the server knows of changed blocks, up to the LSN; see ``WalSummaries``."""
        return WalSummaries(self._now, server.timeline, self.lsn, wait_seconds, server.lsn_offset)

    def file_nodes(self, table: PublishedTable) -> list[int]:
        """The file nodes of the table, or of its leaves."""
        files = self._locations[table.relation_oid].files
        return [int(each.partition(" ")[2]) for each in files]

    def definition(self, table: PublishedTable) -> tuple[Any, ...]:
        """All on which the table's digest depends, except for its rows. It is only good for comparing."""
        location = self._locations[table.relation_oid]
        oids = [table.relation_oid, *(int(each.partition(" ")[0]) for each in location.files)]
        types = read_type_definitions(self._session, oids)
        with translated(table=table.name):
            columns = self._session.execute(_COLUMNS_QUERY, (oids,)).fetchall()
            database = self._session.execute(_DATABASE_QUERY).fetchall()
        of_types = {oid: each for relation in oids for oid, each in types.of(relation).items()}
        return database, location, columns, sorted(of_types.items(), key=lambda each: each[0])

    def shows_names(self, table: PublishedTable) -> bool:
        """Whether values change with no change of a block: their text is the name of another object."""
        types = read_type_definitions(self._session, [table.relation_oid]).of(table.relation_oid)
        return any(shows_names(each.type_oid, types) for each in table.columns)

    def digests_by_block(
        self, table: PublishedTable, row_hash: RowHash, blocks: int, numbers: Sequence[int]
    ) -> dict[int, Digest]:
        """The digests of rows by ranges of the table's blocks, or of the blocks of each leaf.

        :param blocks: how many blocks a range has.
        :param numbers: of the ranges that are read.
        """
        first, end = (
            sql.SQL(
                "pg_catalog.concat('(', LEAST((r.n OPERATOR(pg_catalog.+) {})"
                " OPERATOR(pg_catalog.*) {}, 4294967295), ',0)')::pg_catalog.tid"
            ).format(sql.Literal(more), sql.Literal(blocks))
            for more in (0, 1)
        )
        inside = sql.SQL("{0}.ctid >= {1} AND {0}.ctid < {2}").format(
            sql.Identifier(_ALIAS), first, end
        )
        selected = sql.SQL("SELECT {}").format(aggregates(row_hash.expression(_ALIAS)))
        of_range = _statement(table, selected, conditions=[inside])
        query = sql.SQL(
            "SELECT r.n, d.* FROM pg_catalog.unnest({}::pg_catalog.int8[]) AS r(n)"
            " CROSS JOIN LATERAL ({}) AS d"
        ).format(sql.Literal(list(numbers)), of_range)
        with self._executed(table, query) as answer:
            return {number: digest_of(*of_number) for number, *of_number in answer}

    def was_rewritten(self, table: PublishedTable) -> bool:
        """Whether the table has other files, or other partitions, than at the LSN.

        TRUNCATE and some forms of ALTER TABLE make new files, which have no rows for an older snapshot. A
        partition that was dropped or detached is gone for it, too. The server gives no error.

        Source: https://www.postgresql.org/docs/current/mvcc-caveats.html
        """
        now = read_locations(self._now, [table])
        return now[table.relation_oid] != self._locations[table.relation_oid]

    def left_out(self, table: PublishedTable) -> frozenset[str]:
        """The operations that none of the table's publications sends.

        They are letters of ``iudt``: insert, update, delete, truncate.
        """
        (found,) = read_published_set(self._session, self._publication_names, [table]).tables
        return found.never_sent

    def ranges(
        self,
        table: PublishedTable,
        key_hash: RowHash,
        row_hash: RowHash,
        count: int,
        part: Part | None = None,
    ) -> Ranges:
        """The digests of rows by ranges of their keys' hashes."""
        return self._by_range(table, row_hash, _range_of(key_hash, count), count, part)

    def _by_range(
        self,
        table: PublishedTable,
        row_hash: RowHash,
        number: sql.Composable,
        count: int,
        part: Part | None,
    ) -> Ranges:
        # OFFSET keeps the planner from putting both queries together. It would then expect as many ranges as
        # rows, and several of its processes could not work at the same time.
        of_rows = _statement(
            table,
            sql.SQL("SELECT {} AS n, {} AS h").format(number, row_hash.expression(_ALIAS)),
            sql.SQL("OFFSET '0'::pg_catalog.int8"),
            conditions=_of(part),
        )
        query = sql.SQL("SELECT r.n, {} FROM ({}) AS r GROUP BY 1").format(
            aggregates(sql.SQL("r.h")), of_rows
        )
        found = Ranges.empty(count)
        with self._executed(table, query) as answer:
            for range_number, rows, total in answer:
                found.rows[range_number], found.totals[range_number] = rows, int(total) % _MODULUS
        return found

    def hashes(
        self,
        table: PublishedTable,
        key_hash: RowHash,
        row_hash: RowHash,
        count: int,
        numbers: Sequence[int],
        part: Part | None = None,
    ) -> HashCounts:
        """How many rows have each pair of hashes, of key and row, in some of ``count`` ranges."""
        query = sql.SQL("SELECT {}, {}, pg_catalog.count(*)").format(
            key_hash.expression(_ALIAS), row_hash.expression(_ALIAS)
        )
        some = sql.SQL("{} = ANY ({}::pg_catalog.int8[])").format(
            _range_of(key_hash, count), sql.Literal(list(numbers))
        )
        rows = self._rows(table, query, sql.SQL("GROUP BY 1, 2"), conditions=[some, *_of(part)])
        return Counter({(key % _MODULUS, row % _MODULUS): count for key, row, count in rows})

    def keys(
        self,
        table: PublishedTable,
        key_hash: RowHash,
        hashes: Sequence[int],
        part: Part | None = None,
    ) -> dict[int, str]:
        """The keys of rows as JSON, by the hashes of the keys."""
        values = sql.SQL(", ").join(
            sql.SQL("{}::pg_catalog.text, {}").format(
                sql.Literal(name), sql.Identifier(_ALIAS, name)
            )
            for name in key_hash.names
        )
        query = sql.SQL("SELECT {}, pg_catalog.json_build_object({})::pg_catalog.text").format(
            key_hash.expression(_ALIAS), values
        )
        some = [_has_hash(key_hash, hashes), *_of(part)]
        return {key % _MODULUS: text for key, text in self._rows(table, query, conditions=some)}

    def key_texts(
        self,
        table: PublishedTable,
        key_hash: RowHash,
        hashes: Sequence[int],
        part: Part | None = None,
    ) -> list[tuple[bytes | None, ...]]:
        """The keys of rows, by the hashes of the keys, as the server prints the values."""
        names = sql.SQL(", ").join(sql.Identifier(_ALIAS, name) for name in key_hash.names)
        query = sql.SQL("SELECT {}").format(names)
        some = [_has_hash(key_hash, hashes), *_of(part)]
        with self._answer(table, query, conditions=some) as answer:
            result = answer.pgresult
            assert result is not None, "a SELECT has a result"
            return [
                tuple(result.get_value(row, column) for column in range(result.nfields))
                for row in range(result.ntuples)
            ]

    def check_keys(self, table: PublishedTable, keys: KeysOfTable) -> None:
        """Check that the source can look for rows with these keys.

        :raises SourceError: a text is no value of its key column.
        """
        check_keys(self._session, table, keys)

    def _rows(
        self,
        table: PublishedTable,
        query: sql.Composable,
        end: sql.Composable | None = None,
        *,
        conditions: Sequence[sql.Composable] = (),
    ) -> list[tuple[Any, ...]]:
        with self._answer(table, query, end, conditions=conditions) as answer:
            return answer.fetchall()

    @contextlib.contextmanager
    def _answer(
        self,
        table: PublishedTable,
        query: sql.Composable,
        end: sql.Composable | None = None,
        *,
        conditions: Sequence[sql.Composable] = (),
    ) -> Iterator[Cursor[tuple[Any, ...]]]:
        with self._executed(table, _statement(table, query, end, conditions=conditions)) as answer:
            yield answer

    @contextlib.contextmanager
    def _executed(
        self, table: PublishedTable, statement: sql.Composed
    ) -> Iterator[Cursor[tuple[Any, ...]]]:
        # A statement that fails would end the transaction, and with it the snapshot. So each statement runs
        # in a savepoint. To roll back to it also releases the table's lock, for which a migration may wait.
        with translated(table=table.name), self._session.transaction(force_rollback=True):
            yield self._session.execute(statement)


def _statement(
    table: PublishedTable,
    query: sql.Composable,
    end: sql.Composable | None = None,
    *,
    conditions: Sequence[sql.Composable] = (),
) -> sql.Composed:
    """The SQL of a query of the rows of a table that are published."""
    only = sql.SQL("" if table.kind == "p" else "ONLY ")
    statement = sql.SQL("{} FROM {}{} AS {}").format(
        query,
        only,
        sql.Identifier(table.schema_name, table.table_name),
        sql.Identifier(_ALIAS),
    )
    if table.row_filters:
        # The server itself printed these conditions from its catalog.
        filters = [sql.SQL("({})").format(sql.SQL(each)) for each in table.row_filters]
        conditions = [*conditions, sql.SQL("({})").format(sql.SQL(" OR ").join(filters))]
    if conditions:
        statement = sql.SQL("{} WHERE {}").format(statement, sql.SQL(" AND ").join(conditions))
    return statement if end is None else sql.SQL("{} {}").format(statement, end)


def _of(part: Part | None) -> list[sql.Composable]:
    return [] if part is None else [part.condition(_ALIAS)]


def _has_hash(key_hash: RowHash, hashes: Sequence[int]) -> sql.Composable:
    """The SQL of whether a row's key has one of these hashes."""
    signed = [each - _MODULUS if each >= _MODULUS // 2 else each for each in hashes]
    return sql.SQL("{} = ANY ({}::pg_catalog.int8[])").format(
        key_hash.expression(_ALIAS), sql.Literal(signed)
    )


def _range_of(key_hash: RowHash, count: int) -> sql.Composable:
    """The SQL of the number of a row's range; ``count`` is a power of two."""
    return sql.SQL("({} & {})").format(key_hash.expression(_ALIAS), sql.Literal(count - 1))


def _restart_lsn(session: Session, slot_name: str, offset: LsnOffset) -> Lsn:
    """From which LSN on a slot needs WAL: what was open at its first position wrote nothing before it.

    Source: https://www.postgresql.org/docs/current/view-pg-replication-slots.html
    """
    with translated(slot=slot_name):
        row = session.execute(
            "SELECT restart_lsn::pg_catalog.text FROM pg_catalog.pg_replication_slots"
            " WHERE slot_name = %s",
            (slot_name,),
        ).fetchone()
    assert row is not None, "the session that made the slot is open"
    return offset.of_lake(row[0])


@contextlib.contextmanager
def source_now(
    conninfo: str | Mapping[str, Any],
    server: Server,
    publication_names: Sequence[str],
    lsn: Lsn,
    *,
    is_md5: bool,
) -> Iterator[SourceRows]:
    """The published tables as they are now, for what their definitions say. Do not read their rows.

    No transaction stays open: to hash large tables of the lake may take hours, and a transaction would keep
    the server from removing old row versions.

    :param lsn: of an earlier snapshot. Totals of it are compared with the lake.
    """
    with sessions.connect(conninfo) as session, sessions.connect(conninfo) as now:
        with translated():
            session.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        tables = read_published_tables(session, server, publication_names, Keys())
        types = read_types(session, attributes=True)
        locations = read_locations(session, tables)
        with translated():
            session.execute("COMMIT")
        yield SourceRows(
            lsn,
            tables,
            types,
            session,
            now,
            locations,
            publication_names,
            is_md5,
            _has_snapshot=False,
        )


@contextlib.contextmanager
def source_rows(
    conninfo: str | Mapping[str, Any],
    direct_conninfo: str | Mapping[str, Any],
    server: Server,
    publication_names: Sequence[str],
    mask_secret: bytes | None = None,
    *,
    is_md5: bool = False,
    is_blockwise: bool = False,
) -> Iterator[SourceRows]:
    """The published tables at a new LSN, for as long as the context is open.

    The server keeps old row versions meanwhile, as for any long query. It keeps no WAL: the slot goes when
    the session has taken its snapshot over.

    :param direct_conninfo: leads to the server past a pooler.
    :param mask_secret: of hashed columns.
    :param is_md5: see ``SourceRows``.
    :param is_blockwise: whether ``since`` is read.
    :raises SnapshotLost: the snapshot is gone.
    """
    name = f"pgoutput_proof_{uuid.uuid4().hex[:16]}"
    with (
        create_slot(direct_conninfo, name, server, temporary=True) as snapshot,
        sessions.connect(conninfo) as session,
        sessions.connect(conninfo) as now,
    ):
        begin_in_snapshot(session, snapshot.name)
        reach("verify.before_slot_dropped")
        since = _restart_lsn(now, name, server.lsn_offset) if is_blockwise else None
        snapshot.close()
        sessions.limit_lock_waits(session)
        if mask_secret is not None:
            tell_secret(session, mask_secret)
        tables = read_published_tables(session, server, publication_names, Keys())
        types = read_types(session, attributes=True)
        locations = read_locations(session, tables)
        point = snapshot.consistent_point
        yield SourceRows(
            point, tables, types, session, now, locations, publication_names, is_md5, since
        )
