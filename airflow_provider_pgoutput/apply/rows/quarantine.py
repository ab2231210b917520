"""Rows that cannot be written, with ``on_row_refused="quarantine"``: they are noted, and the table goes on.

There are two kinds. A row may lack values that neither its batch nor the target has (``RowMissing``). Or the
lake's type does not hold a value of its key (``ValueRefused``).

The lake never has a part of such a row: whatever it has under the row's key is deleted, and nothing is
written there. So each row of the lake equals the source's, and each row that the lake lacks has an entry in
``pgoutput_quarantine``. Later changes of the key find no row in the target. A change with all values brings
the row back. A change without them is noted, too. If the row moves to another key, the same holds there.

A row is keyless here if its type in the lake cannot hold its key, so the key is NULL in the batch. An update
of ``id`` from 1 to NaN, for example, is a delete of 1. An update from NaN to 1 is an insert of 1.

Entries are written before the table is published, and only from what the batch and the target say. So an
apply that is run again after a kill writes the same ones in their place. It replaces only those of changes
that the table does not have yet: of earlier changes nobody would write them again. An entry ends when a batch
has the whole row of its key or deletes the row, when the table is truncated, or when it is copied. That holds
with ``on_row_refused="fail"``, too.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.sql import Sql, TableName, literal, quote
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.rows.key_events import leaves_some_out
from airflow_provider_pgoutput.apply.schema.evolve import create_table
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch.answers import QUARANTINE as QUARANTINE_ROW
from airflow_provider_pgoutput.batch.checkpoint import OWN_PROPERTIES, QUARANTINE, QUARANTINE_TABLE
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import LakeDenied, ValueRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_pgoutput.apply.rows.segments import Segment
    from airflow_provider_pgoutput.apply.rows.staged_files import StagedBatch
    from airflow_provider_pgoutput.apply.table.target import Target
    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.table_version import Column

log = logging.getLogger(__name__)

_KEY, _CHANGE, _ERROR = Sql("key"), Sql("change"), Sql("error")
#: A view in the session of one table.
_SETTLED = Sql("pgoutput_settled_keys")
_DELETE, _UPDATE = (
    Sql(f"{staged.OP} = '{staged.DELETE}'"),
    Sql(f"{staged.OP} = '{staged.UPDATE}'"),
)
_WITHOUT_KEY = Sql("without_key")
_WAS_WITHOUT_KEY = Sql("was_without_key")


@dataclass(slots=True)
class Notes:
    """What the preparation of one table says about its quarantine."""

    #: Changes with a commit LSN from here on are not in the table yet. All entries of them are noted again.
    floor: Lsn
    #: Whether a row that cannot be written is noted. If not, it refuses the table, and entries only end.
    keeps: bool
    #: Entries: key, change, position and operation.
    rows: list[DataFrame] = field(default_factory=list)
    #: Keys of entries that end.
    settled: list[DataFrame] = field(default_factory=list)
    #: Whether all earlier entries of the table end.
    begins_anew: bool = False
    #: Whether the table has earlier entries that end.
    ends_some: bool = False

    @property
    def has_changes(self) -> bool:
        """Whether entries come or end. Then the table gets the batch's marker even if no row changes."""
        return bool(self.rows or self.settled or self.ends_some)

    def begin_anew(self, *, ends_some: bool) -> None:
        """Forget what was noted so far, and end all earlier entries: the table has other rows now.

        :param ends_some: whether there are any earlier entries.
        """
        self.rows, self.settled = [], []
        self.begins_anew, self.ends_some = True, ends_some

    def add(
        self, rows: DataFrame, columns: Sequence[Column], key: Sequence[int], error: str
    ) -> int:
        """Note rows; return how many they are.

        :param rows: with the columns ``n<i>``, the commit LSN, the sequence and the operation.
        :param key: positions of the key columns.
        :param error: name of the error's class.
        """
        noted = rows.selectExpr(
            f"{_json(columns, key)} AS {_KEY}",
            f"{_json(columns, range(len(columns)))} AS {_CHANGE}",
            staged.COMMIT_LSN,
            staged.SEQ,
            staged.OP,
            f"{literal(error)} AS {_ERROR}",
        ).localCheckpoint()
        count = noted.count()
        if count:
            self.rows.append(noted)
        return count

    def settle(
        self, folded: DataFrame, lost: DataFrame | None, segment: Segment, held: DataFrame | None
    ) -> None:
        """End the entries of keys whose whole rows the batch has, or deletes.

        :param lost: the folded rows that cannot be written. Earlier entries of their keys stay.
        :param held: the keys of the table's entries of earlier batches; None: there are none.
        """
        if held is None and not self.rows:
            return
        text = f"{_json(segment.columns, segment.key)} AS {_KEY}"
        known = folded.selectExpr(text)
        if lost is not None:
            known = known.join(lost.selectExpr(text), _KEY, "left_anti")
        # An earlier segment of this batch may have noted the row.
        self.rows = [each.join(known, _KEY, "left_anti").localCheckpoint() for each in self.rows]
        if held is not None:
            ended = held.join(known, _KEY, "left_semi").localCheckpoint()
            if not ended.isEmpty():
                self.settled.append(ended)

    def record(self, spark: SparkSession, batch: StagedBatch, target: Target) -> None:
        """Write the entries of a table that is about to be published, and remove those that end."""
        name, source = _name(batch), target.source
        of_table = _of(batch, source.relation_oid)
        if has_entries(spark, batch, target):
            ends = Sql(f"{of_table} AND {_not_in_table(self.floor)}")
            if self.begins_anew and target.slice is None:
                # A table that was dropped and made again has another OID. It replaces the rows of the old
                # one.
                same_target = Sql(f"{_of(batch)} AND target = {literal(target.name.target)}")
                ends = Sql(f"({of_table}) OR ({same_target})")
            _refreshed(spark, batch)
            spark.sql(f"DELETE FROM {name.sql} WHERE {ends}")  # noqa: S608 - quoted
        for keys in self.settled:
            _refreshed(keys.sparkSession, batch)
            keys.createOrReplaceTempView(_SETTLED)
            known = Sql(f"{_KEY} IN (SELECT {_KEY} FROM {_SETTLED})")  # noqa: S608 - constants
            keys.sparkSession.sql(
                f"DELETE FROM {name.sql} WHERE {of_table} AND {known}"  # noqa: S608 - quoted
            )
            keys.sparkSession.catalog.dropTempView(_SETTLED)
        reach("quarantine.after_delete")
        if not self.rows:
            return
        columns = [(column, kind, False) for column, kind in QUARANTINE]
        comment = "Rows that could not be written, see on_row_refused"
        create_table(spark, name, columns, comment=comment, properties=OWN_PROPERTIES)
        batch.quarantined.add(source.relation_oid, target.name.target)
        added = {
            "slot_name": F.lit(batch.manifest.slot_name),
            "system_identifier": F.lit(batch.manifest.system_identifier),
            "relation_oid": F.lit(source.relation_oid).cast("long"),
            "table_name": F.lit(source.name),
            "target": F.lit(target.name.target),
            "batch_id": F.lit(batch.manifest.batch_id),
            "quarantined_at": F.current_timestamp(),
        }
        rows = reduce(lambda left, right: left.unionByName(right), self.rows).withColumns(added)
        rows.select(*(column for column, _ in QUARANTINE)).writeTo(name.sql).append()
        reach("quarantine.after_append")


def _json(columns: Sequence[Column], positions: Sequence[int] | range) -> Sql:
    """SQL of the values of some columns as JSON, by their names."""
    values = ", ".join(f"{staged.new(i)} AS {quote(columns[i].name)}" for i in positions)
    return Sql(f"to_json(struct({values}), map('ignoreNullFields', 'false'))")


def _with_keyless(changes: DataFrame, segment: Segment) -> DataFrame:
    """The changes, and whether each makes its row keyless, and whether the row was keyless before."""
    new, old = [], []
    for i in segment.key:
        # A column is not staged if it is NULL in every old tuple.
        name, before = staged.new(i), staged.old(i) if i in segment.old else "NULL"
        if i in segment.unchanged:
            name = Sql(f"CASE WHEN {staged.unchanged(i)} THEN {before} ELSE {name} END")
        new.append(f"({name}) IS NULL")
        old.append(f"{before} IS NULL")
    is_new, is_old = " OR ".join(new), " OR ".join(old)
    return changes.withColumns(
        {
            _WITHOUT_KEY: F.expr(f"NOT ({_DELETE}) AND ({is_new})"),
            _WAS_WITHOUT_KEY: F.expr(
                f"CASE WHEN {_DELETE} THEN {is_old} WHEN {staged.OP} = '{staged.INSERT}' THEN false"
                f" WHEN {staged.OLD_KIND} IS NULL THEN {is_new} ELSE {is_old} END"
            ),
        }
    )


def leaves_no_key(changes: DataFrame, segment: Segment) -> bool:
    """Whether an update gives a key to a keyless row. The folded rows alone do not show that."""
    return not _with_keyless(changes, segment).where(f"{_UPDATE} AND {_WAS_WITHOUT_KEY}").isEmpty()


def without_keyless(notes: Notes, changes: DataFrame, segment: Segment) -> DataFrame:
    """The changes without rows whose key the lake does not hold. These are noted.

    A row that moves to such a key leaves its own. A row that leaves such a key is inserted under the new one.

    :param changes: as ``segments.read_changes`` returns them, without truncates.
    :raises ValueRefused: a row leaves such a key without all of its values. Several rows may have had the key
        NULL in the lake's type, so nobody knows which of them it is.
    """
    rows = _with_keyless(changes, segment)
    kept_away = rows.where(f"{_WITHOUT_KEY} OR {_WAS_WITHOUT_KEY} AND {_DELETE}")
    values = {
        staged.new(i): F.expr(f"CASE WHEN {_DELETE} THEN {staged.old(i)} ELSE {staged.new(i)} END")
        for i in segment.old
    }
    notes.add(kept_away.withColumns(values), segment.columns, segment.key, ValueRefused.__name__)
    comes = f"{_UPDATE} AND {_WAS_WITHOUT_KEY} AND NOT {_WITHOUT_KEY}"
    if not segment.full and not rows.where(f"{comes} AND ({leaves_some_out(segment)})").isEmpty():
        raise ValueRefused(
            "An update changes a key that its type in the lake cannot hold, and does not send all columns.",
            table=segment.table,
            advice=f"copy the table again (copy_tables=[{segment.table!r}]). REPLICA IDENTITY FULL sends all"
            " values from then on.",
        )
    goes = f"{_UPDATE} AND {_WITHOUT_KEY} AND NOT {_WAS_WITHOUT_KEY}"
    rows = rows.where(
        f"NOT ({_WITHOUT_KEY} OR {_WAS_WITHOUT_KEY}) OR {_UPDATE} AND {_WITHOUT_KEY} != {_WAS_WITHOUT_KEY}"
    )
    return rows.withColumns(
        {
            staged.OP: F.expr(
                f"CASE WHEN {goes} THEN '{staged.DELETE}' WHEN {comes} THEN '{staged.INSERT}'"
                f" ELSE {staged.OP} END"
            ),
            staged.OLD_KIND: F.expr(f"CASE WHEN NOT ({comes}) THEN {staged.OLD_KIND} END"),
        }
    ).drop(_WITHOUT_KEY, _WAS_WITHOUT_KEY)


def copied_with_key(
    notes: Notes, rows: DataFrame, columns: Sequence[Column], key: Sequence[int], copy_lsn: int
) -> DataFrame:
    """The copied rows whose key the lake holds. The others are noted."""
    is_null = " OR ".join(f"{staged.new(i)} IS NULL" for i in key)
    kept_away = rows.where(is_null).withColumns(
        {
            staged.COMMIT_LSN: F.lit(copy_lsn).cast("long"),
            staged.SEQ: F.lit(None).cast("long"),
            staged.OP: F.lit(staged.COPIED),
        }
    )
    notes.add(kept_away, columns, key, ValueRefused.__name__)
    return rows.where(f"NOT ({is_null})")


def entries(spark: SparkSession, batch: StagedBatch, relation_oid: int) -> DataFrame | None:
    """The keys of a table's entries; None: it has none."""
    if all(oid != relation_oid for oid, _ in _tables(spark, batch)):
        return None
    found = _refreshed(spark, batch).where(_of(batch, relation_oid))
    return found.select(_KEY).distinct().localCheckpoint()


def has_entries(spark: SparkSession, batch: StagedBatch, target: Target) -> bool:
    """Whether there are entries of the table, or of an earlier table of the source with the same target."""
    ours = target.source.relation_oid, target.name.target
    return any(
        oid == ours[0] or (name == ours[1] and target.slice is None)
        for oid, name in _tables(spark, batch)
    )


def _tables(spark: SparkSession, batch: StagedBatch) -> frozenset[tuple[int, str]]:
    """OID and target of the tables that have entries. The catalog is asked once for each batch."""
    return batch.quarantined.read_once(lambda: _read_tables(spark, batch))


def _read_tables(spark: SparkSession, batch: StagedBatch) -> frozenset[tuple[int, str]]:
    try:
        table = IcebergTable.load(spark, _name(batch))
    except LakeDenied as denied:
        if batch.job.on_row_refused == QUARANTINE_ROW:
            raise
        # The login may have rights to single tables only. This one need not exist.
        log.warning("%s If it has entries of this pipeline, they do not end.", denied)
        return frozenset()
    if table is None:
        return frozenset()
    rows = _refreshed(spark, batch).where(_of(batch)).select("relation_oid", "target").distinct()
    return frozenset((row[0], row[1]) for row in rows.collect())


def _refreshed(spark: SparkSession, batch: StagedBatch) -> DataFrame:
    """All entries as they are now. Each session caches the table, and several write to it."""
    name = _name(batch).sql
    spark.catalog.refreshTable(name)
    return spark.table(name)


def _name(batch: StagedBatch) -> TableName:
    return TableName(batch.job.catalog_name, batch.job.namespace, QUARANTINE_TABLE)


def _of(batch: StagedBatch, relation_oid: int | None = None) -> Sql:
    """SQL: whether an entry is of the pipeline, and of the table."""
    manifest = batch.manifest
    earlier = (each.system_identifier for each in manifest.adopted_from)
    systems = ", ".join(literal(each) for each in (manifest.system_identifier, *earlier))
    found = f"slot_name = {literal(manifest.slot_name)} AND system_identifier IN ({systems})"
    return Sql(found if relation_oid is None else f"{found} AND relation_oid = {relation_oid}")


def _not_in_table(floor: Lsn) -> Sql:
    """SQL: whether an entry is of a change that the table does not have yet.

    An earlier try at this batch wrote it, or at a batch that this one replaces. A copy has all that committed
    before its LSN. So the entries of a copy at the floor itself stay.
    """
    lsn, seq = staged.COMMIT_LSN, staged.SEQ
    return Sql(f"({lsn} > {int(floor)}L OR {lsn} = {int(floor)}L AND {seq} IS NOT NULL)")
