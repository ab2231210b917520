"""The initial copy: reads all rows of published tables as they were in one exported snapshot.

Several connections read in threads. Large tables are read in ranges of blocks, so that one table keeps all
connections busy. Each part is a stream of Arrow batches, so memory is bounded. Only published columns are
selected, and only rows that the publications' filters let through. Values go through the same casters as
those of the stream. ``plan.py`` splits the tables, and ``source/copy_form.py`` knows the form in which a
column is fetched.

Source: https://www.postgresql.org/docs/current/logical-replication-row-filter.html (initial data)
"""

from __future__ import annotations

import functools
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from psycopg import sql

from airflow_provider_pgoutput.batch.changes import COPIED, new
from airflow_provider_pgoutput.capture.copy_job import BlockRange
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.copy_form import expression, is_binary, is_sent
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.capture.source.threads import BoundedQueue
from airflow_provider_pgoutput.capture.staging.rejected import NEW_TUPLE, Rejection, rejected_rows
from airflow_provider_pgoutput.capture.types.arrow_bytes import in_parts
from airflow_provider_pgoutput.capture.types.copied_moments import moment_caster
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    MissingPrivilege,
    SnapshotLost,
    SourceError,
    SourceLocked,
    TableRefused,
    ValueRefused,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from adbc_driver_manager.dbapi import Connection as AdbcConnection

    from airflow_provider_pgoutput.batch.table_version import Column
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.staging.tables import StagedTable, StagedVersion
    from airflow_provider_pgoutput.capture.types.cast import ColumnCaster
    from airflow_provider_pgoutput.errors import PgoutputError

_BATCH_BYTES = 4 << 20
_QUEUED_BATCHES = 4
_STOP_SECONDS = 10.0
#: These errors concern the table that is read. The server reads the others.
ABOUT_A_TABLE = (
    ConfigurationError,
    MissingPrivilege,
    SourceError,
    SourceLocked,
    TableRefused,
    ValueRefused,
)
#: At most so many tables are sealed together. It asks the server as often as sealing one.
SEALED_TOGETHER = 50


@dataclass(frozen=True, slots=True)
class TableCopy:
    """One table to copy: its publications' columns and filters, its ranges, and where its rows go."""

    table: PublishedTable
    staged: StagedTable
    ranges: Sequence[BlockRange] = (BlockRange(0, None),)
    #: Whether it is so small that it is sealed together with others.
    is_small: bool = False


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """Some rows of a table, cast."""

    table_copy: TableCopy
    rows: pa.RecordBatch
    rejected: list[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class CopiedParts:
    """Says that all rows of some ranges were handed over: one of a large table, or those of small tables."""

    table_copies: tuple[TableCopy, ...]


@dataclass(frozen=True, slots=True)
class RefusedCopy:
    """Says that a table cannot be copied in this snapshot, or not at all.

    Rows of it may have come before, and may still come.
    """

    table_copy: TableCopy
    error: PgoutputError


class _Part(NamedTuple):
    table_copy: TableCopy
    blocks: BlockRange


def copy_tables(
    conninfo: str | Mapping[str, Any],
    snapshot_name: str,
    table_copies: Sequence[TableCopy],
    connections: int,
    *,
    goes_on: bool = False,
) -> Generator[CopiedRows | CopiedParts | RefusedCopy, None, None]:
    """Read all tables, in this order. Batches of several tables and ranges come mixed.

    :param snapshot_name: an exported snapshot. Its session stays open until the last row.
    :param goes_on: a table that cannot be copied comes as ``RefusedCopy``, and the others go on. So does one
        that stays locked. Otherwise its lock is waited for as long as it takes.
    :raises SnapshotLost: the snapshot does not exist any more, or a column has another type now.
    :raises MissingPrivilege: the role may not SELECT a table.
    """
    groups = _groups(table_copies, connections)
    waiting: queue.SimpleQueue[Sequence[_Part]] = queue.SimpleQueue()
    for group in groups:
        waiting.put(group)
    threads_wanted = max(1, min(connections, len(groups)))
    ready: BoundedQueue[CopiedRows | CopiedParts | RefusedCopy] = BoundedQueue(
        _QUEUED_BATCHES, producers=threads_wanted
    )

    locked: set[int] = set()

    def work() -> None:
        ready.feed(_copy_waiting(conninfo, snapshot_name, waiting, locked, goes_on=goes_on))

    threads = [
        threading.Thread(target=work, name=f"copy-{number}", daemon=True)
        for number in range(threads_wanted)
    ]
    for thread in threads:
        thread.start()
    try:
        yield from ready
    finally:
        ready.stop()
        # On a silent network the threads end with this process.
        for thread in threads:
            thread.join(_STOP_SECONDS)


def _groups(table_copies: Sequence[TableCopy], connections: int) -> list[list[_Part]]:
    """Each range of a large table alone, then small tables together: some for each connection."""
    parts = [_Part(each, blocks) for each in table_copies for blocks in each.ranges]
    groups = [[part] for part in parts if not part.table_copy.is_small]
    small = [part for part in parts if part.table_copy.is_small]
    together = max(1, min(SEALED_TOGETHER, -(-len(small) // connections)))
    return groups + [small[i : i + together] for i in range(0, len(small), together)]


def _copy_waiting(
    conninfo: str | Mapping[str, Any],
    snapshot_name: str,
    waiting: queue.SimpleQueue[Sequence[_Part]],
    locked: set[int],
    *,
    goes_on: bool,
) -> Generator[CopiedRows | CopiedParts | RefusedCopy, None, None]:
    """Copy one waiting group after the other over one connection, until none waits.

    :param locked: OIDs of tables that stayed locked. No connection waits for another part of them.
    """
    connection = sessions.connect_adbc(conninfo)
    try:
        while True:
            try:
                group = waiting.get_nowait()
            except queue.Empty:
                return
            copied: list[TableCopy] = []
            try:
                for part in group:
                    if part.table_copy.table.relation_oid in locked:
                        continue
                    _enter_snapshot(connection, snapshot_name, limits_locks=goes_on)
                    try:
                        yield from _copy_part(connection, part)
                    except (*ABOUT_A_TABLE, SnapshotLost) as error:
                        if not goes_on:
                            raise
                        if isinstance(error, SourceLocked):
                            locked.add(part.table_copy.table.relation_oid)
                        yield RefusedCopy(part.table_copy, error)
                        # Its transaction failed, and may have an answer that nobody has read.
                        connection.close()
                        connection = sessions.connect_adbc(conninfo)
                        continue
                    # Whoever wants to alter or truncate this table need not wait until all others are copied.
                    with translated():
                        connection.adbc_connection.set_autocommit(True)
                    copied.append(part.table_copy)
            except Exception:
                # These tables are sealed all the same, so that nobody has to read them again.
                if copied:
                    yield CopiedParts(tuple(copied))
                raise
            if copied:
                yield CopiedParts(tuple(copied))
    finally:
        connection.close()


def select_statement(
    table: PublishedTable, columns: Sequence[Column], blocks: BlockRange | None = None
) -> sql.Composable:
    """The query that reads a table, or a range of its blocks, as the stream would have sent it.

    A parent of inheritance is read alone, because its children are tables of their own. A partitioned table
    that is published via its root is read with all partitions. A range then holds for each of them.
    """
    key = set(table.key_columns)
    chosen = [expression(each, is_key=each.name in key) for each in columns]
    listed = sql.SQL(", ").join(chosen)
    source = sql.Identifier(table.schema_name, table.table_name)
    only = sql.SQL("" if table.kind == "p" else "ONLY ")
    statement = sql.SQL("SELECT {} FROM {}{}").format(listed, only, source)
    conditions = _block_conditions(blocks)
    if table.row_filters:
        # The server itself printed these conditions from its catalog, with qualified names.
        filters = [sql.SQL("({})").format(sql.SQL(each)) for each in table.row_filters]
        conditions.append(sql.SQL("({})").format(sql.SQL(" OR ").join(filters)))
    if not conditions:
        return statement
    return sql.SQL("{} WHERE {}").format(statement, sql.SQL(" AND ").join(conditions))


def _block_conditions(blocks: BlockRange | None) -> list[sql.Composable]:
    """Conditions that become a TID range scan. Rows in a block are numbered from 1."""
    bounds = [] if blocks is None else [(">=", blocks.first), ("<", blocks.end)]
    return [
        sql.SQL("ctid {} {}::pg_catalog.tid").format(sql.SQL(sign), sql.Literal(f"({block},0)"))
        for sign, block in bounds
        if block
    ]


def _enter_snapshot(connection: AdbcConnection, snapshot_name: str, *, limits_locks: bool) -> None:
    """Begin a transaction that sees the database as the exported snapshot does.

    :param limits_locks: the transaction fails with ``SourceLocked`` if it waits too long for a lock.
    :raises SnapshotLost: the session that exported it is gone.
    """
    with translated(), connection.cursor() as cursor:
        connection.adbc_connection.set_autocommit(False)
        cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        snapshot = sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot_name))
        cursor.execute(snapshot.as_string())
        if limits_locks:
            limit = sql.Literal(f"{sessions.LOCK_TIMEOUT_SECONDS}s")
            cursor.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(limit).as_string())


def _copy_part(connection: AdbcConnection, part: _Part) -> Iterator[CopiedRows]:
    table_copy, version = part.table_copy, part.table_copy.staged.versions[-1]
    statement = select_statement(table_copy.table, version.version.columns, part.blocks).as_string()
    with connection.cursor() as cursor:
        cursor.adbc_statement.set_options(
            **{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)}
        )
        for fetched in sessions.record_batches(cursor, statement, table=table_copy.table.name):
            if fetched.num_rows:
                yield from in_parts(functools.partial(_cast, table_copy, version), fetched)


def _cast(table_copy: TableCopy, version: StagedVersion, fetched: pa.RecordBatch) -> CopiedRows:
    """Turn fetched columns into staged ones, by the casters of the stream if they came as text."""
    key = set(table_copy.table.key_columns)
    columns, rejected = [], []
    for position, text_caster in enumerate(version.casters):
        column, values, caster = text_caster.column, fetched.column(position), text_caster
        if not is_binary(column, is_key=column.name in key):
            # Either its text, or what its send function makes.
            values = values.view(pa.binary())
        elif pa.types.is_temporal(text_caster.arrow_type):
            if values.type != text_caster.arrow_type:
                raise _other_type(table_copy, column)
            caster = moment_caster(text_caster)
        else:
            columns.append(_exact(values, text_caster.arrow_type, table_copy, column))
            continue
        result = caster.cast(values)
        columns.append(result.values)
        if len(result.rejected):
            chosen = pa.array(result.rejected)
            raw = caster.texts(values.take(chosen))
            rejected.append(_rejected(table_copy, version, fetched, position, chosen, raw))
    names = [new(position) for position in range(len(columns))]
    if not columns:
        rows = pa.RecordBatch.from_struct_array(pa.array([{}] * fetched.num_rows, pa.struct([])))
    else:
        rows = pa.RecordBatch.from_arrays(columns, names=names)
    return CopiedRows(table_copy, rows, rejected)


def _exact(
    values: pa.Array, wanted: pa.DataType, table_copy: TableCopy, column: Column
) -> pa.Array:
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if values.type == wanted:
        return values
    try:
        return values.cast(wanted)
    except pa.ArrowException:
        # Without a cause: its text quotes the value.
        raise _other_type(table_copy, column) from None


def _other_type(table_copy: TableCopy, column: Column) -> SnapshotLost:
    """The error for a type that ALTER TABLE changed since the table was described, without a new file."""
    return SnapshotLost(
        "The column has another type than when the copy began.",
        table=table_copy.table.name,
        column=column.name,
        advice="nothing; the table is copied again as it is now.",
    )


def _rejected(
    table_copy: TableCopy,
    version: StagedVersion,
    fetched: pa.RecordBatch,
    position: int,
    chosen: pa.Array,
    raw: pa.Array,
) -> pa.RecordBatch:
    key = {
        caster.column.name: _printed(caster, fetched.column(number).take(chosen))
        for number, caster in enumerate(version.casters)
        if caster.column.name in table_copy.table.key_columns
    }
    rejection = Rejection(
        column=version.version.columns[position],
        tuple_kind=NEW_TUPLE,
        raw=raw,
        key=key,
        op=pa.repeat(pa.scalar(COPIED), len(chosen)),
        commit_lsn=None,
        seq=None,
    )
    return rejected_rows(version.version, version.relation_oid, rejection)


def _printed(caster: ColumnCaster, values: pa.Array) -> pa.Array:
    """Fetched values of a key column, as PostgreSQL prints them."""
    if is_sent(caster.column) or caster.column.mask is not None:
        return caster.texts(values.view(pa.binary()))
    return values.cast(pa.string()).cast(pa.binary())
