"""Copy published tables into a batch, each as it is in an exported snapshot, and seal each on its own.

Tables that an earlier attempt sealed for this batch are taken over. The others are read in one snapshot.
A table that cannot be read whole in it is read again in a new snapshot, at a new point. So each table may
have a point of its own, and ``capture/stage.py`` reads the changes past each. ``copy/read.py`` reads rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import uuid
from datetime import UTC
from typing import TYPE_CHECKING, TypeAlias

from airflow_provider_pgoutput.batch.type_definition import alterations
from airflow_provider_pgoutput.capture.copy.on_spark import (
    PartElsewhere,
    TableElsewhere,
    check,
    copied_elsewhere,
    is_elsewhere,
    ranges,
)
from airflow_provider_pgoutput.capture.copy.plan import (
    read_locations,
    read_numbers,
    read_plan,
    read_states,
    read_unlocked,
)
from airflow_provider_pgoutput.capture.copy.read import (
    ABOUT_A_TABLE,
    SEALED_TOGETHER,
    CopiedRows,
    RefusedCopy,
    TableCopy,
    copy_tables,
)
from airflow_provider_pgoutput.capture.slot.replication_slot import ExportedSnapshot, create_slot
from airflow_provider_pgoutput.capture.source.catalog import read_names
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.capture.source.locks import with_holders
from airflow_provider_pgoutput.capture.source.progress_log import CopyProgress
from airflow_provider_pgoutput.capture.source.threads import interleaved
from airflow_provider_pgoutput.capture.source.type_definitions import read_type_definitions
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import SnapshotLost, SourceLocked

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.table_version import TableVersion
    from airflow_provider_pgoutput.batch.type_definition import TypeDefinition
    from airflow_provider_pgoutput.capture.copy.on_spark import FromElsewhere
    from airflow_provider_pgoutput.capture.copy.plan import CopyPlan, TableState
    from airflow_provider_pgoutput.capture.copy.read import CopiedParts
    from airflow_provider_pgoutput.capture.server import PostgresSource
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress
    from airflow_provider_pgoutput.capture.staging.tables import StagedTable
    from airflow_provider_pgoutput.capture.start import Start
    from airflow_provider_pgoutput.errors import PgoutputError

log = logging.getLogger(__name__)

#: Snapshots that one attempt tries.
_MOST_SNAPSHOTS = 5
#: Bytes on the server's disk of a table that is sealed together with others.
_SMALL_BYTES = 64 << 10
#: How long to wait for the locks of tables that earlier batches set aside. Each run waits again.
_SECONDS_FOR_KNOWN = 1


def copy_published(
    source: PostgresSource,
    batch: BatchInProgress,
    start: Start,
    tables: Sequence[PublishedTable],
    snapshot: ExportedSnapshot | None = None,
) -> Lsn:
    """Stage tables. Each is read as it was at one LSN, its point, and the points may differ.

    A table that cannot be copied may be set aside. Then the others are copied.

    :param snapshot: the snapshot to read first; None: one is made when a table has to be read.
    :returns: the greatest point, or the position from which the slot is read if that is greater.
    :raises SnapshotLost: tables were disturbed in each of several snapshots, and are not set aside.
    """
    waiting = _adopt(source, batch, start, tables)
    for _ in range(_MOST_SNAPSHOTS):
        if snapshot is None and waiting and batch.passing.sets_aside:
            waiting = _unlocked(source, batch, start, waiting)
        if not waiting:
            return max(batch.copied_at.values(), default=start.reads_from)
        with snapshot or _new_snapshot(source, waiting) as taken:
            waiting = _Round(source, batch, start, taken).copy(_as_of_now(source, waiting))
        snapshot = None
    for table in waiting:
        error = SnapshotLost(
            f"{len(waiting)} table(s) could not be copied in any of {_MOST_SNAPSHOTS} snapshots: each was"
            " lost, or the table was rewritten or truncated before it was read.",
            slot=source.request.slot_name,
            table=table.name,
            advice="keep VACUUM FULL, CLUSTER, TRUNCATE and ALTER TABLE away from it while it is copied; the"
            " tables that are copied already stay so.",
        )
        batch.passing.leave_out(table.relation_oid, table.name, start.lsn, error)
    return max(batch.copied_at.values(), default=start.reads_from)


def _unlocked(
    source: PostgresSource,
    batch: BatchInProgress,
    start: Start,
    tables: Sequence[PublishedTable],
) -> list[PublishedTable]:
    """The tables that are not locked; the others are refused.

    To make a snapshot the server waits for the transactions that hold the locks. So no snapshot is made only
    for tables that are locked.
    """
    is_known = all(each.relation_oid in batch.passing.known_aside for each in tables)
    seconds = _SECONDS_FOR_KNOWN if is_known else None
    oids = [each.relation_oid for each in tables]
    _, locked = read_unlocked(source.session, oids, seconds)
    for each in tables:
        if each.relation_oid in locked:
            _refuse(source, batch, start, each, locked[each.relation_oid])
    return [each for each in tables if each.relation_oid not in locked]


def _refuse(
    source: PostgresSource,
    batch: BatchInProgress,
    start: Start,
    table: PublishedTable,
    error: PgoutputError,
) -> None:
    """Set a table aside.

    :raises PgoutputError: the error, if no table is set aside.
    """
    if isinstance(error, SourceLocked):
        error = with_holders(source.session, slot=source.request.slot_name, table=table.name)
    batch.passing.leave_out(table.relation_oid, table.name, start.lsn, error)


def _new_snapshot(source: PostgresSource, tables: Sequence[PublishedTable]) -> ExportedSnapshot:
    """Make a snapshot by making a temporary slot.

    PostgreSQL waits for all open transactions before the slot is ready. So no transaction that wrote to a
    table before the table was published is still open.
    """
    name = f"pgoutput_copy_{uuid.uuid4().hex[:16]}"
    snapshot = create_slot(source.request.direct, name, source.server, temporary=True)
    names = ", ".join(table.name for table in tables[:20])
    more = ", ..." if len(tables) > 20 else ""
    log.info("Copying %s%s at %s.", names, more, snapshot.consistent_point)
    return snapshot


def _as_of_now(source: PostgresSource, tables: Sequence[PublishedTable]) -> list[PublishedTable]:
    """The tables with their columns and keys, read after the snapshot was made.

    The copy must have each column that was added before the snapshot, since the stream does not send the
    values that such a column has in older rows. Tables that are not published any more are left out.
    """
    source.keys.forget()
    source.describer.forget_types()
    published = {each.relation_oid: each for each in source.read_tables()}
    return [published[each.relation_oid] for each in tables if each.relation_oid in published]


def _adopt(
    source: PostgresSource,
    batch: BatchInProgress,
    start: Start,
    tables: Sequence[PublishedTable],
) -> list[PublishedTable]:
    """Take over copies of earlier attempts that are still right; return the tables that are left."""
    seals = {
        each.relation_oid: each
        for each in sorted(batch.sealed_copies(), key=lambda each: each.copy_lsn)
        # An older copy would lack changes that the lake has already.
        if start.held_until <= each.copy_lsn <= source.server.flush_lsn
    }
    if not seals:
        return list(tables)
    states = read_states(
        source.session,
        source.publication_names,
        [each for each in tables if each.relation_oid in seals],
    )
    remaining = []
    for table in tables:
        sealed, state = seals.get(table.relation_oid), states.get(table.relation_oid)
        if sealed is None or state is None:
            remaining.append(table)
            continue
        version = source.describer.published(table)
        if sealed.fingerprint == _fingerprint(source, table, version, state):
            batch.adopt_copy(version, sealed, state.types)
        else:
            remaining.append(table)
    log.info(
        "%d of %d tables were copied by an earlier attempt and are not copied again.",
        len(tables) - len(remaining),
        len(tables),
    )
    return remaining


def _fingerprint(
    source: PostgresSource, table: PublishedTable, version: TableVersion, state: TableState
) -> str:
    """A digest of everything that the copy of a table depends on, except its rows.

    The stream has every change of the rows since the copy's point. Two things are not in the stream: changes
    while no publication had the table, and rewrites of the table (``VACUUM FULL``, ``ALTER TABLE``). Both
    change ``state``.
    """
    server = source.server
    body = {
        "system": [server.system_identifier, server.timeline, server.database],
        "table": [table.relation_oid, table.kind, table.row_filters],
        "state": dataclasses.asdict(state),
        "version": dataclasses.asdict(version),
        "policy": sorted(source.request.value_policy.items()),
    }
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _numbers(table: PublishedTable) -> dict[str, int]:
    return {each.name: each.attribute_number for each in table.columns}


def _is_altered(
    table: PublishedTable, state: TableState, now: Mapping[int, TypeDefinition]
) -> bool:
    """Whether ALTER TYPE changed the text of values since the snapshot."""
    then = {each.oid: each for each in state.types}
    return any(alterations(each.type_oid, then, now) for each in table.columns)


def _until_an_error(
    tables: Generator[FromElsewhere, None, None], errors: list[Exception]
) -> Generator[FromElsewhere, None, None]:
    """What the other engine copied. Its error waits until the tables that this process reads are sealed."""
    try:
        yield from tables
    except Exception as error:  # ``_read`` raises it at the end.
        errors.append(error)


def _time(session: Session) -> str:
    """The server's time now, ISO 8601 in UTC."""
    with translated():
        row = session.execute("SELECT pg_catalog.clock_timestamp()").fetchone()
    assert row is not None, "a query without a table has a row"
    return str(row[0].astimezone(UTC).isoformat())


_Copied: TypeAlias = "CopiedRows | CopiedParts | FromElsewhere"


class _Round:
    """Tables that are read in one snapshot."""

    def __init__(
        self,
        source: PostgresSource,
        batch: BatchInProgress,
        start: Start,
        snapshot: ExportedSnapshot,
    ) -> None:
        self._source = source
        self._batch = batch
        self._start = start
        self._snapshot = snapshot
        self._time = _time(source.session)
        self._unsealed: dict[int, PublishedTable] = {}
        self._table_copies: list[TableCopy] = []
        #: Parts of each table that were not read yet.
        self._missing: dict[int, int] = {}

    def copy(self, tables: Sequence[PublishedTable]) -> list[PublishedTable]:
        """Copy and seal tables; return those that have to be read in another snapshot."""
        self._unsealed = {each.relation_oid: each for each in tables}
        try:
            plan = read_plan(
                self._source.request.direct,
                self._snapshot.name,
                self._source.publication_names,
                tables,
                goes_on=self._batch.passing.sets_aside,
            )
            for oid, error in plan.locked.items():
                self._refuse(self._unsealed[oid], error)
            self._read(plan)
        except SnapshotLost as lost:
            log.warning(
                "%s %d of %d tables are copied at a new point.",
                lost,
                len(self._unsealed),
                len(tables),
            )
        for table_copy in self._table_copies:
            if table_copy.table.relation_oid in self._unsealed:
                self._batch.drop_copy(table_copy.staged)
        return list(self._unsealed.values())

    def _read(self, plan: CopyPlan) -> None:
        source = self._source
        # The largest first: the last table should be small, so that all connections end together.
        tables = sorted(
            (each for each in self._unsealed.values() if self._is_of_the_point(each, plan)),
            key=lambda each: -plan.storage[each.relation_oid].size_bytes,
        )
        request, storage = source.request, plan.storage
        for each in tables:
            self._begin(each, plan)
        self._missing = {each.table.relation_oid: len(each.ranges) for each in self._table_copies}
        empty: list[TableCopy] = []
        here: list[TableCopy] = []
        there: list[TableCopy] = []
        for table_copy in self._table_copies:
            found = storage[table_copy.table.relation_oid]
            if found.is_empty:
                empty.append(table_copy)
            else:
                (there if is_elsewhere(request, found) else here).append(table_copy)
        progress = CopyProgress(
            {each.name: storage[each.relation_oid].size_bytes for each in tables}, request.tell
        )
        for first in range(0, len(empty), SEALED_TOGETHER):
            sealed = empty[first : first + SEALED_TOGETHER]
            self._seal(sealed, plan)
            for table_copy in sealed:
                progress.part(table_copy.table.name, 1)
        with contextlib.ExitStack() as copying:
            sources: list[Generator[_Copied, None, None]] = []
            errors: list[Exception] = []
            if there:
                elsewhere = copied_elsewhere(source, self._snapshot.name, there, storage)
                sources.append(_until_an_error(copying.enter_context(elsewhere), errors))
            if here:
                sources.append(self._read_here(here))
            for copied in interleaved(sources) if sources else ():
                self._take(copied, plan, progress)
            if errors:
                raise errors[0]
        progress.done()

    def _begin(self, table: PublishedTable, plan: CopyPlan) -> None:
        """Begin to copy a table, unless it is refused."""
        oid, storage = table.relation_oid, plan.storage[table.relation_oid]
        try:
            version = self._source.describer.published(table)
            point = self._snapshot.consistent_point
            types = plan.states[oid].types
            staged = self._batch.add_copy(oid, version, point, types, self._time)
        except ABOUT_A_TABLE as error:
            self._refuse(table, error)
            return
        is_small = storage.size_bytes < _SMALL_BYTES
        parts = ranges(self._source.request, storage)
        self._table_copies.append(TableCopy(table, staged, parts, is_small=is_small))

    def _refuse(self, table: PublishedTable, error: PgoutputError) -> None:
        """Set a table aside; rows of it that come after this are left out.

        :raises PgoutputError: the error, if no table is set aside.
        """
        _refuse(self._source, self._batch, self._start, table, error)
        self._unsealed.pop(table.relation_oid, None)

    def _read_here(
        self, table_copies: Sequence[TableCopy]
    ) -> Generator[CopiedRows | CopiedParts | RefusedCopy, None, None]:
        """Copy tables by connections of this process."""
        request = self._source.request
        return copy_tables(
            request.direct,
            self._snapshot.name,
            table_copies,
            request.copy_connections,
            goes_on=self._batch.passing.sets_aside,
        )

    def _take(self, copied: _Copied, plan: CopyPlan, progress: CopyProgress) -> None:
        """Stage rows that were copied. Seal tables after their last rows."""
        if isinstance(copied, RefusedCopy):
            table_copy = copied.table_copy
            if isinstance(copied.error, SnapshotLost):
                # One part of it is missing for good, so it is not sealed in this snapshot.
                log.warning("%s The table is copied at a new point.", copied.error)
            elif table_copy.table.relation_oid in self._unsealed:
                self._refuse(table_copy.table, copied.error)
                self._batch.drop_copy(table_copy.staged)
        elif isinstance(copied, CopiedRows):
            if copied.table_copy.table.relation_oid not in self._unsealed:
                return
            self._batch.copy_rows(copied.table_copy.staged, copied.rows, copied.rejected)
            reach("stage.during_copy")
            progress.rows(copied.rows.num_rows, copied.rows.nbytes)
        elif isinstance(copied, PartElsewhere):
            so_far = copied.so_far
            progress.so_far(
                copied.table_copy.table.name, so_far.share, so_far.rows, so_far.read_bytes
            )
        elif isinstance(copied, TableElsewhere):
            check(self._source, copied.table_copy, copied.copied)
            self._batch.take_copy(copied.table_copy.staged, copied.copied)
            read = copied.copied
            progress.so_far(copied.table_copy.table.name, 1, read.counts.copied, read.read_bytes)
            self._seal([copied.table_copy], plan)
        else:
            for table_copy in copied.table_copies:
                self._missing[table_copy.table.relation_oid] -= 1
                progress.part(table_copy.table.name, 1 / len(table_copy.ranges))
            self._seal(
                [
                    each
                    for each in copied.table_copies
                    if not self._missing[each.table.relation_oid]
                ],
                plan,
            )

    def _is_of_the_point(self, table: PublishedTable, plan: CopyPlan) -> bool:
        """Whether the table's columns are the same now as at the snapshot's point.

        If a column was added since, the stream sends changes from before that without the column. They would
        be applied after a copy that has it.
        """
        state = plan.states.get(table.relation_oid)
        if state is not None and state.numbers == _numbers(table):
            return True
        log.warning(
            "Table %s changed right after %s: it is copied at a new point.",
            table.name,
            self._snapshot.consistent_point,
        )
        return False

    def _seal(self, table_copies: Sequence[TableCopy], plan: CopyPlan) -> None:
        """Seal tables that were read completely. A table that changed while it was read is read again."""
        if not table_copies:
            return
        source, tables = self._source, [each.table for each in table_copies]
        oids = [each.relation_oid for each in tables]
        locations = read_locations(source.session, tables)
        # COPY names the table and its columns. The server resolves the names when it begins to read.
        numbers, names = read_numbers(source.session, tables), read_names(source.session, oids)
        types = read_type_definitions(source.session, oids)
        whole: list[StagedTable] = []
        fingerprints: list[str] = []
        for table_copy, table, oid in zip(table_copies, tables, oids, strict=True):
            state = plan.states[oid]
            if (
                locations[oid] != state.location
                or numbers[oid] != _numbers(table)
                # Rows that were read after ALTER TYPE have the new text.
                or _is_altered(table, state, types.of(oid))
                or names.get(oid) != (table.schema_name, table.table_name)
            ):
                log.warning(
                    "Table %s was rewritten, truncated, renamed, given other partitions or columns, or a"
                    " type of its columns was altered since %s: it is copied again at a new point.",
                    table.name,
                    self._snapshot.consistent_point,
                )
                continue
            version = table_copy.staged.versions[-1].version
            whole.append(table_copy.staged)
            fingerprints.append(_fingerprint(source, table, version, state))
        self._batch.seal_copies(whole, fingerprints)
        for staged in whole:
            del self._unsealed[staged.relation_oid]
