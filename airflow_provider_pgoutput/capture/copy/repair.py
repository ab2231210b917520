"""Reads the rows of some keys again, and makes changes of them that repair the lake.

A request (``staging/repairs.py``) has the keys. A temporary slot gives a point and a snapshot of exactly this
point. The batch ends at the point, and the rows become its last changes: a key that the source has in the
snapshot is an update with all values, and one that it lacks is a delete. So they win over all earlier changes
of these keys, and every later change wins over them. After the batch the lake has the source's rows under
these keys. It does not matter what it had before. A repair that is done twice does no harm.

The position of these changes is one byte before the point. No transaction commits there: the record of a
commit is longer than a byte.
"""

from __future__ import annotations

import logging
import math
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from psycopg import sql

from airflow_provider_pgoutput.batch import changes
from airflow_provider_pgoutput.capture.copy.plan import read_locations
from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock
from airflow_provider_pgoutput.capture.pgoutput.messages import Relation, RelationColumn
from airflow_provider_pgoutput.capture.slot.commit_wait import begin_in_snapshot
from airflow_provider_pgoutput.capture.slot.replication_slot import create_slot
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_published_tables
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.capture.source.keys import Keys
from airflow_provider_pgoutput.capture.source.publications import read_published_set
from airflow_provider_pgoutput.capture.staging.marks import next_mark
from airflow_provider_pgoutput.capture.staging.repairs import (
    KeysOfTable,
    Repairs,
    settle,
    waiting_requests,
)
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import PgoutputError, RetryableError, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.server import PostgresSource
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.capture.staging.repairs import RepairRequest
    from airflow_provider_pgoutput.capture.start import Start

log = logging.getLogger(__name__)

#: Keys of one query. A query whose rows have more bytes is followed by one of fewer keys.
_KEYS_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 8 << 20
#: Bytes of all rows that one batch reads again.
_MOST_BYTES: Final = 256 << 20
#: The longest wait for transactions of others, before the slot and after it.
_MOST_SECONDS: Final = 60.0
_NO_TUPLE: Final = 0
_UPDATE, _DELETE, _KEY = ord(changes.UPDATE), ord(changes.DELETE), ord(changes.OLD_KEY)


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows of a table with some keys, as the server prints their values."""

    #: By column: arrays of values. All rows of a query are in one array.
    values: tuple[list[pa.Array], ...]
    #: Keys under which there is no row of the same text.
    absent: list[tuple[str, ...]]
    size_bytes: int
    #: Keys that were not looked up, because the rows of the others are many enough.
    remaining: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """What all changes of one repair have in common."""

    point: Lsn
    xid: int
    time_us: int


def read_repairs(source: PostgresSource, start: Start) -> Repairs | None:
    """Read the rows that requests name; None: there are none, or the next batch has to do it.

    A request must not stop the pipeline. If its rows cannot be read, a warning says why, and the batch goes
    without them. So it does if transactions of others hold the repair up for too long.
    """
    area, slot_name = source.area, source.request.slot_name
    requests = waiting_requests(area, slot_name)
    if not requests:
        return None
    try:
        return _read(source, start, requests)
    except RetryableError as error:
        log.warning(
            "Rows for a repair could not be read, so the next batch tries it again. %s", error
        )
        return None
    except PgoutputError as error:
        log.warning("Rows for a repair could not be read, so they are left out. %s", error)
        settle(requests, {})
        return None


def _read(
    source: PostgresSource, start: Start, requests: tuple[RepairRequest, ...]
) -> Repairs | None:
    request = source.request
    name = f"pgoutput_repair_{uuid.uuid4().hex[:16]}"
    with (
        create_slot(
            request.direct, name, source.server, temporary=True, most_seconds=_MOST_SECONDS
        ) as snapshot,
        sessions.connect(request.conninfo, slot=request.slot_name) as session,
    ):
        point = snapshot.consistent_point
        mark = next_mark(source.area, request.slot_name, start.lsn, point)
        if point <= start.lsn or mark is not None:
            log.info("This batch ends before %s, so a later one repairs the rows.", point)
            return None
        begin_in_snapshot(session, snapshot.name, _MOST_SECONDS)
        snapshot.close()
        sessions.limit_lock_waits(session)
        reach("stage.after_repair_snapshot")
        reader = _Reader(source, session, moment_of(session, point))
        blocks = reader.blocks(requests)
    reach("stage.after_repair_read")
    rows = sum(map(len, blocks))
    log.info("The batch repairs %d rows of %d tables, and ends at %s.", rows, len(blocks), point)
    return Repairs(point, blocks, requests, reader.remaining)


def moment_of(session: Session, point: Lsn) -> Moment:
    """What all changes of the repair get: the time, and the next transaction ID of the snapshot's moment."""
    with translated():
        row = session.execute(
            "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::pg_catalog.text,"
            " (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::pg_catalog.int8"
        ).fetchone()
    assert row is not None, "a query without a table has a row"
    return Moment(point, int(row[0]) % (1 << 32), int(row[1]))


class _Reader:
    """Reads in the snapshot of one point."""

    def __init__(self, source: PostgresSource, session: Session, moment: Moment) -> None:
        self._source, self._session, self._moment = source, session, moment
        self._bytes_left = _MOST_BYTES
        self._seq = 0
        #: Keys that a later batch repairs, by OID of their table.
        self.remaining: dict[int, frozenset[tuple[str, ...]]] = {}

    def blocks(self, requests: Sequence[RepairRequest]) -> tuple[ChangeBlock, ...]:
        """The changes of all tables that can be repaired."""
        source = self._source
        keys = Keys(source.keys.configured)
        then = source.filters.filtered(
            read_published_tables(self._session, source.server, source.publication_names, keys)
        )
        published = {each.relation_oid: each for each in then}
        locations = read_locations(self._session, then)
        found: dict[int, ChangeBlock] = {}
        asked = _by_table(requests, source.server.system_identifier)
        for oid, wanted in asked.items():
            why = self._refusal(wanted, published.get(oid))
            if why is None:
                try:
                    found[oid] = self._block(published[oid], wanted)
                    continue
                except SourceUnavailable:
                    raise
                except RetryableError as error:
                    log.warning("A later batch repairs %s. %s", wanted.table, error)
                    self.remaining[oid] = frozenset(wanted.keys)
                    continue
                except PgoutputError as error:
                    why = str(error)
            log.warning("%s is not repaired: %s", wanted.table, why)
        # An older snapshot sees no row of a table with new files, and the server gives no error.
        source.keys.forget()
        source.describer.forget_types()
        now = {each.relation_oid: each for each in source.read_whole_tables()}
        places = read_locations(source.session, list(now.values()))
        for oid in list(found):
            if now.get(oid) != published[oid] or places[oid] != locations[oid]:
                log.warning(
                    "%s is not repaired: it was altered, or its rows were moved, while they were read."
                    " A later batch tries it again.",
                    published[oid].name,
                )
                del found[oid]
                self.remaining[oid] = frozenset(asked[oid].keys)
        return tuple(each for each in found.values() if len(each))

    def _refusal(self, wanted: KeysOfTable, table: PublishedTable | None) -> str | None:
        """Why the table is not repaired; None: it is."""
        checkpoint = self._source.request.checkpoint
        known = {} if checkpoint is None or checkpoint.tables is None else checkpoint.tables
        if table is None or wanted.relation_oid not in known:
            return "it is not published, or the lake does not have it."
        if checkpoint is not None and wanted.relation_oid in checkpoint.passed_over:
            return "its changes are passed over."
        if not wanted.key_columns or set(table.key_columns) != set(wanted.key_columns):
            return "its key has other columns than the request says."
        masked = {each.name for each in self._source.masks.masked_in_key(table)}
        if masked:
            return "its key is masked, so its rows cannot be looked for by what the lake has."
        return None

    def _block(self, table: PublishedTable, wanted: KeysOfTable) -> ChangeBlock:
        found = find_rows(self._session, table, wanted, self._bytes_left)
        self._bytes_left -= found.size_bytes
        if found.remaining:
            log.warning(
                "A later batch repairs %d keys of %s: one batch reads about %d MiB of rows again at most.",
                len(found.remaining),
                table.name,
                _MOST_BYTES >> 20,
            )
            self.remaining[table.relation_oid] = frozenset(found.remaining)
        if found.absent and self._keeps_what_is_gone(table):
            # Deleted since the verification. The lake keeps such rows.
            found = replace(found, absent=[])
        block = row_changes(table, wanted.key_columns, found, self._moment, self._seq)
        self._seq += len(block)
        return block

    def _keeps_what_is_gone(self, table: PublishedTable) -> bool:
        """Whether no publication sends the deletes, or the truncates, of a table."""
        names = self._source.request.publication_names
        (found,) = read_published_set(self._session, names, [table]).tables
        return bool(found.never_sent & {"d", "t"})


def _by_table(requests: Iterable[RepairRequest], system_identifier: str) -> dict[int, KeysOfTable]:
    """The keys of all requests for this system, each once."""
    found: dict[int, KeysOfTable] = {}
    for request in requests:
        if request.system_identifier != system_identifier:
            log.warning("A request for a repair is of another system, so it is left out.")
            continue
        for each in request.tables:
            known = found.get(each.relation_oid)
            keys = each.keys
            if known is not None and known.key_columns == each.key_columns:
                keys = (*known.keys, *keys)
            found[each.relation_oid] = KeysOfTable(
                each.relation_oid, each.table, each.key_columns, tuple(dict.fromkeys(keys))
            )
    return found


def find_rows(
    session: Session, table: PublishedTable, wanted: KeysOfTable, most_bytes: float = math.inf
) -> FoundRows:
    """The published rows of a table with these keys, in the session's snapshot.

    :param most_bytes: when the rows have so many bytes, no more keys are looked up.
    :raises SourceError: a text is no value of its key column.
    """
    names = [each.name for each in table.columns]
    places = [names.index(name) for name in wanted.key_columns]
    selected = sql.SQL(", ").join(map(sql.Identifier, names))
    values: tuple[list[pa.Array], ...] = tuple([] for _ in names)
    absent: list[tuple[str, ...]] = []
    # Nobody knows yet how long the rows are.
    first, at_once, size_bytes = 0, 1, 0
    # A statement that fails would end the transaction, and with it the snapshot. And what is rolled back
    # gives the table's lock free, for which a migration may wait.
    with translated(table=table.name), session.transaction(force_rollback=True):
        types = _key_types(session, table, wanted.key_columns)
        while first < len(wanted.keys) and size_bytes < most_bytes:
            keys = wanted.keys[first : first + at_once]
            statement = _statement(table, wanted.key_columns, types, keys, selected)
            result = session.execute(statement).pgresult
            assert result is not None, "a SELECT has a result"
            rows = range(result.ntuples)
            columns = [
                [result.get_value(row, place) for row in rows] for place in range(len(names))
            ]
            seen = set(zip(*(columns[place] for place in places), strict=True))
            absent += [key for key in keys if tuple(each.encode() for each in key) not in seen]
            for of_column, of_query in zip(values, columns, strict=True):
                of_column.append(pa.array(of_query, pa.binary()))
            of_rows = sum(of_column[-1].nbytes for of_column in values)
            size_bytes += of_rows
            first += len(keys)
            at_once = max(at_once // 2, 1) if of_rows > _BYTES_AT_ONCE else 2 * at_once
            at_once = min(at_once, _KEYS_AT_ONCE)
    return FoundRows(values, absent, size_bytes, wanted.keys[first:])


def check_keys(session: Session, table: PublishedTable, wanted: KeysOfTable) -> None:
    """Check that rows can be looked for by these keys. It fetches no row, so the rows may be of any size.

    :raises SourceError: a text is no value of its key column.
    """
    count = sql.SQL("pg_catalog.count(*)")
    with translated(table=table.name), session.transaction(force_rollback=True):
        types = _key_types(session, table, wanted.key_columns)
        for first in range(0, len(wanted.keys), _KEYS_AT_ONCE):
            keys = wanted.keys[first : first + _KEYS_AT_ONCE]
            session.execute(_statement(table, wanted.key_columns, types, keys, count))


def _key_types(session: Session, table: PublishedTable, key: Sequence[str]) -> list[str]:
    """The SQL of the types of key columns, without lengths: a text that is too long must not be cut."""
    rows = session.execute(
        "SELECT attname::pg_catalog.text, pg_catalog.format_type(atttypid, -1)"
        " FROM pg_catalog.pg_attribute WHERE attrelid = %s::pg_catalog.oid AND attnum > 0",
        (table.relation_oid,),
    ).fetchall()
    types: dict[str, str] = dict(rows)
    return [types[name] for name in key]


def _statement(
    table: PublishedTable,
    key: Sequence[str],
    types: Sequence[str],
    keys: Sequence[tuple[str, ...]],
    selected: sql.Composable,
) -> sql.Composed:
    """The query for the rows with some keys. Each row comes once."""
    texts = sql.SQL(", ").join(
        sql.SQL("{}::pg_catalog.text[]").format(sql.Literal(list(column)))
        for column in zip(*keys, strict=True)
    )
    names = [sql.Identifier(str(place)) for place in range(len(types))]
    # The server itself printed the types.
    cast = sql.SQL(", ").join(
        sql.SQL("k.{}::{}").format(name, sql.SQL(kind))
        for name, kind in zip(names, types, strict=True)
    )
    # Only the bare name ``unnest`` takes several arrays.
    statement = sql.SQL(
        "SELECT {selected} FROM {only}{table} AS t WHERE ({key}) IN"
        " (SELECT {cast} FROM unnest({texts}) AS k({listed}))"
    ).format(
        selected=selected,
        only=sql.SQL("" if table.kind == "p" else "ONLY "),
        table=sql.Identifier(table.schema_name, table.table_name),
        key=sql.SQL(", ").join(sql.Identifier("t", name) for name in key),
        cast=cast,
        texts=texts,
        listed=sql.SQL(", ").join(names),
    )
    if not table.row_filters:
        return statement
    # The server itself printed these conditions from its catalog.
    filters = [sql.SQL("({})").format(sql.SQL(each)) for each in table.row_filters]
    return sql.SQL("{} AND ({})").format(statement, sql.SQL(" OR ").join(filters))


def relation_of(table: PublishedTable) -> Relation:
    """A table as the stream would announce it."""
    return Relation(
        table.relation_oid,
        table.schema_name,
        table.table_name,
        table.replica_identity,
        tuple(
            RelationColumn(each.name, each.type_oid, each.type_modifier, each.is_identity)
            for each in table.columns
        ),
    )


def row_changes(
    table: PublishedTable, key: Sequence[str], found: FoundRows, moment: Moment, seq: int
) -> ChangeBlock:
    """Deletes of the keys that the source lacks, then updates with the rows that it has.

    Two texts may stand for one key: the update wins then.
    """
    removed, put = len(found.absent), sum(map(len, found.values[0]))
    count = removed + put
    names = [each.name for each in table.columns]
    old: list[pa.Array | None] = [None] * len(names)
    for place, name in enumerate(key):
        texts: list[bytes | None] = [each[place].encode() for each in found.absent]
        if removed:
            old[names.index(name)] = pa.array(texts + [None] * put, pa.binary())
    blank = pa.nulls(removed, pa.binary())
    return ChangeBlock(
        relation=relation_of(table),
        commit_lsn=np.full(count, int(moment.point) - 1, np.int64),
        seq=np.arange(seq, seq + count, dtype=np.int64),
        op=np.array([_DELETE] * removed + [_UPDATE] * put, np.uint8),
        xid=np.full(count, moment.xid, np.int64),
        commit_ts_us=np.full(count, moment.time_us, np.int64),
        old_kind=np.array([_KEY] * removed + [_NO_TUPLE] * put, np.uint8),
        new=tuple(pa.concat_arrays([blank, *values]) for values in found.values),
        old=tuple(old),
        new_binary=(False,) * len(names),
        old_binary=(False,) * len(names),
        unchanged=(None,) * len(names),
    )
