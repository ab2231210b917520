"""After a lost slot: stages only the rows in which the lake differs from the source.

The new slot gives a snapshot of its first position. Each table of the lake is compared with the source in
this snapshot (``LakeComparison``). The rows of the keys that differ are read in it, and become changes of
the batch as in a repair (``copy/repair.py``): a key that the source has is an update with all values, and one
that it lacks is a delete. Their position is one byte before that of the slot, so each change that the slot
sends wins over them. Some tables cannot be compared, or were altered since the lake's last batch. They are
copied.

The new slot may be that of another system (``adopted_system``). A table may have another OID there, and its
columns other numbers. Then it is found by its name, and its columns by theirs.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Final

from airflow_provider_pgoutput.batch.earlier_systems import EarlierTable
from airflow_provider_pgoutput.batch.shape import Shape
from airflow_provider_pgoutput.capture.copy.plan import read_locations
from airflow_provider_pgoutput.capture.copy.repair import (
    find_rows,
    moment_of,
    relation_of,
    row_changes,
)
from airflow_provider_pgoutput.capture.lake_comparison import SourceSnapshot
from airflow_provider_pgoutput.capture.slot.commit_wait import begin_in_snapshot
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_published_tables
from airflow_provider_pgoutput.capture.source.keys import Keys
from airflow_provider_pgoutput.capture.staging.repairs import RepairRefused
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import PgoutputError, RetryableError
from airflow_provider_pgoutput.masks import DROP, NULL

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_provider_pgoutput.capture.copy.plan import TableLocation
    from airflow_provider_pgoutput.capture.copy.repair import Moment
    from airflow_provider_pgoutput.capture.lake_comparison import TableDifference
    from airflow_provider_pgoutput.capture.server import PostgresSource
    from airflow_provider_pgoutput.capture.slot.replication_slot import ExportedSnapshot
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

log = logging.getLogger(__name__)

#: The users' own types have OIDs from here on.
_FIRST_NORMAL_OID: Final = 16384
#: Bytes of rows that wait in memory.
_BYTES_AT_ONCE: Final = 16 << 20
_HAS_MASKS: Final = "it has masked columns, and another OID than on the earlier system."
_NOT_THERE: Final = "the lake does not have it."
_OTHER_NUMBERS: Final = (
    "its columns have other numbers than on the earlier system, and its OID is the same."
)
_RENAMED: Final = "it was renamed."
_MOVED: Final = "it was altered, or its rows were moved, while it was compared."


def stage_difference(
    source: PostgresSource,
    batch: BatchInProgress,
    tables: Sequence[PublishedTable],
    snapshot: ExportedSnapshot,
    whole: Collection[int],
) -> tuple[PublishedTable, ...]:
    """Stage the rows in which tables of the lake differ; return the tables that have to be copied.

    :param snapshot: that of the slot's position.
    :param whole: OIDs of tables that are copied in any case.
    :raises RepairRefused: some rows of a table were staged, and then it turned out that the table has to be
        copied. So the batch is of no use.
    """
    request, checkpoint = source.request, source.request.checkpoint
    comparison = request.lake_comparison
    assert checkpoint is not None, "a lost slot has a checkpoint"
    assert comparison is not None, "the request was checked"
    with sessions.connect(request.conninfo, slot=request.slot_name) as session:
        begin_in_snapshot(session, snapshot.name)
        sessions.limit_lock_waits(session)
        reader = _Reader(source, session, batch, moment_of(session, snapshot.consistent_point))
        compared = reader.comparable(tables, checkpoint, whole)
        given = SourceSnapshot(
            request.conninfo,
            snapshot.name,
            snapshot.consistent_point,
            compared,
            checkpoint,
            reader.earlier,
        )
        with comparison.started(given) as differences:
            for each in differences:
                reader.take(each)
        reader.refuse_moved()
    reach("stage.after_difference")
    log.info(
        "%d of %d tables were compared with the lake: %d rows of %d tables are staged. The other %d tables"
        " are copied.",
        len(tables) - len(reader.copied),
        len(tables),
        reader.rows,
        len(reader.staged),
        len(reader.copied),
    )
    return tuple(reader.copied)


class _Reader:
    """Reads rows in the snapshot of the slot's position, and stages them."""

    def __init__(
        self, source: PostgresSource, session: Session, batch: BatchInProgress, moment: Moment
    ) -> None:
        self._source, self._session, self._batch, self._moment = source, session, batch, moment
        #: The tables that have to be copied.
        self.copied: list[PublishedTable] = []
        #: The tables with staged rows.
        self.staged: list[PublishedTable] = []
        self.rows = 0
        #: The tables that were compared.
        self._named: list[PublishedTable] = []
        self._locations: dict[int, TableLocation] = {}
        #: By OID: the tables that had another one on the earlier system.
        self.earlier: dict[int, EarlierTable] = {}

    def comparable(
        self, tables: Sequence[PublishedTable], checkpoint: Checkpoint, whole: Collection[int]
    ) -> list[PublishedTable]:
        """The tables that are as the lake knows them. The others are copied.

        :param whole: OIDs of tables that are copied in any case.
        """
        source = self._source
        keys = Keys(source.keys.configured)
        then = source.masks.without_dropped(
            source.filters.filtered(
                read_published_tables(self._session, source.server, source.publication_names, keys)
            )
        )
        of_snapshot = {each.relation_oid: each for each in then}
        now = self._now()
        found = []
        for each in tables:
            oid = each.relation_oid
            if oid in whole:
                why: str | None = (
                    "somebody asked for it, or its rows cannot be staged by their keys."
                )
            elif self._moment.point <= checkpoint.end_lsn:
                why = "the new slot does not begin past the lake."
            elif oid not in now or now[oid] != of_snapshot.get(oid):
                why = _MOVED
            else:
                why = self._altered(now[oid], checkpoint)
            if why is None:
                found.append(now[oid])
            else:
                self._copy(each, why)
        self._locations = read_locations(self._session, found)
        return found

    def _now(self) -> dict[int, PublishedTable]:
        """The published tables as they are now, by OID."""
        self._source.keys.forget()
        self._source.describer.forget_types()
        return {each.relation_oid: each for each in self._source.read_tables()}

    def _altered(self, table: PublishedTable, checkpoint: Checkpoint) -> str | None:
        """What was altered in a table since the lake has it; None: nothing.

        An altered table may have values for which the lake has no column.
        """
        oid = checkpoint.oid_of(table.relation_oid, table.name)
        name = (checkpoint.tables or {}).get(oid)
        if name != table.name:
            if name is not None:
                return _RENAMED
            is_other = (checkpoint.tables or {}).get(-oid) == table.name
            return _OTHER_NUMBERS if is_other else _NOT_THERE
        if (known := checkpoint.shapes.get(oid)) is None:
            return "the lake does not know its columns."
        try:
            shape = Shape.of(self._source.describer.published(table))
        except RetryableError:
            raise
        except PgoutputError as error:
            return str(error)
        if oid == table.relation_oid:
            return _difference(known, shape)
        known, numbers = _renumbered(known, shape)
        self.earlier[table.relation_oid] = EarlierTable(-oid, numbers)
        is_masked = known.masks or shape.masks
        return _HAS_MASKS if is_masked else _difference(known, shape)

    def _copy(self, table: PublishedTable, why: str) -> None:
        log.warning("%s is copied: %s", table.name, why)
        self.copied.append(table)

    def take(self, found: TableDifference) -> None:
        """Stage the rows of a table that differ, or note that it has to be copied.

        :raises RepairRefused: see ``stage_difference``.
        """
        table, wanted = found.table, found.keys
        if found.why_unknown is not None:
            self._copy(table, found.why_unknown)
            return
        log.info("%s", found.words)
        self._batch.begin_difference(relation_of(table), self.earlier.get(table.relation_oid))
        self._named.append(table)
        if wanted is None or not wanted.keys:
            return
        self.staged.append(table)
        while wanted.keys:
            try:
                rows = find_rows(self._session, table, wanted, _BYTES_AT_ONCE)
            except RetryableError:
                raise
            except PgoutputError as error:
                raise RepairRefused(table.relation_oid, table.name, str(error)) from error
            block = row_changes(table, wanted.key_columns, rows, self._moment, self.rows)
            self._batch.repair(block, or_refuse=True)
            self.rows += len(block)
            wanted = dataclasses.replace(wanted, keys=rows.remaining)
            reach("stage.during_difference")

    def refuse_moved(self) -> None:
        """Refuse a table that was altered or rewritten since its rows were compared.

        An older snapshot sees no row of a table with new files, and the server gives no error.

        :raises RepairRefused: there is such a table.
        """
        now = self._now()
        places = read_locations(self._source.session, list(now.values()))
        for each in self._named:
            oid = each.relation_oid
            if now.get(oid) != each or places[oid] != self._locations[oid]:
                raise RepairRefused(oid, each.name, _MOVED)


def _columns(shape: Shape) -> list[tuple[int | None, str, str, int, str]]:
    """What may not differ. A composite keeps its name when it gets an attribute, and the lake type shows it.

    Digests are made of the fields that the lake has, so they show nothing of that attribute.
    """
    return [
        (each.number, each.name, each.type_name, each.type_oid, each.lake_type)
        for each in shape.columns
    ]


def _renumbered(known: Shape, shape: Shape) -> tuple[Shape, tuple[tuple[int, int], ...]]:
    """The lake's shape of a table with the numbers of another system, and both numbers of each column.

    A dropped column keeps its number, and a dump does not bring it. So columns may have other numbers there,
    and another order. The OIDs of the users' types are others, too.
    """
    then, columns, numbers = {each.name: each for each in known.columns}, [], []
    for each in shape.columns:
        found = then.pop(each.name, None)
        if found is None:
            continue
        numbers.append((found.number or 0, each.number or 0))
        is_own = min(found.type_oid, each.type_oid) >= _FIRST_NORMAL_OID
        type_oid = each.type_oid if is_own else found.type_oid
        columns.append(dataclasses.replace(found, number=each.number, type_oid=type_oid))
    return dataclasses.replace(known, columns=(*columns, *then.values())), tuple(numbers)


def _difference(known: Shape, shape: Shape) -> str | None:
    """Why rows of a table cannot be staged by their keys, by its shape in the lake and at the source."""
    if known.masks != shape.masks:
        return "its masks were changed."
    if known.row_filter != shape.row_filter:
        return "its filter was changed."
    if any(each.mask in {DROP, NULL} or each.name in shape.key for each in shape.masks):
        return "a column of its key is masked, or the lake has no values of a masked column."
    if not known.key or known.key != shape.key:
        return "it has no key, or another one than in the lake."
    return None if _columns(known) == _columns(shape) else "its columns were altered."
