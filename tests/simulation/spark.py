"""A Spark session in memory: Java's classes by name, and the rows that the product's Spark code would write.

The rows are the one thing of apply that is a double: ``Rows`` folds staged changes into a table's rows in
Python. Which changes, onto which branch, and when, is the product's.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.publication import MAIN
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import RowWork
from airflow_provider_pgoutput.apply.rows.branch import Preparation
from airflow_provider_pgoutput.apply.rows.branch_writer import BranchWriter
from airflow_provider_pgoutput.apply.schema.evolve import Evolved
from airflow_provider_pgoutput.apply.table.checkpoint_rows import Newest
from airflow_provider_pgoutput.apply.table.target import properties
from airflow_provider_pgoutput.batch.answers import QUARANTINE
from airflow_provider_pgoutput.errors import RowMissing
from tests.simulation.java import CLEANABLE, jvm
from tests.simulation.quarantine import RowNotes
from tests.simulation.store import hadoop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_provider_pgoutput.apply.iceberg.sql import TableName
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.simulation.world import World


#: Operation of the entry before the rows of a copy in a change log; for the judge alone.
BEGINS = "copy"
#: Operation of an update that adds to a value. It leaves the rest of the row out, as PostgreSQL does with a
#: large value that did not change.
PART = "P"
#: With this property a table lacks a row that the next changes need.
LACKS_A_ROW = "simulation.lacks-a-row"


class _Settings:
    def get(self, _key: str, default: str | None = None) -> str | None:
        return default

    def set(self, _key: str, _value: str) -> None:
        """Nothing here asks for it."""

    def unset(self, _key: str) -> None:
        """Nothing here was set."""


#: Java's writer of JSON.
_MAPPER = SimpleNamespace(writeValueAsString=json.dumps)


class Context:
    """What sessions share."""

    defaultParallelism = 1  # noqa: N815 - Spark's name

    def __init__(self, world: World) -> None:
        self.world = world
        self._jsc = SimpleNamespace(hadoopConfiguration=lambda: None)
        active = SimpleNamespace(setActiveSession=lambda _: None)
        self.jvm = jvm(
            {
                **hadoop(world.area),
                "org.apache.iceberg.spark.Spark3Util.loadIcebergTable": world.catalog.load,
                "org.apache.iceberg.expressions.Expressions.alwaysTrue": lambda: None,
                "org.apache.iceberg.exceptions.CleanableFailure._java_lang_class": CLEANABLE,
                "org.apache.iceberg.util.JsonUtil.mapper": lambda: _MAPPER,
                "org.apache.spark.sql.classic.SparkSession": active,
            }
        )


class Session:
    """What the deciding part of apply uses of a ``SparkSession``."""

    def __init__(self, context: Context, _java: Any) -> None:
        self.sparkContext = context  # - Spark's name
        self._jsparkSession = SimpleNamespace(cloneSession=lambda: None)
        self._jvm = context.jvm
        self.conf = _Settings()

    def sql(self, statement: str) -> Any:
        """The lake here has no views, and every namespace."""
        assert statement.startswith(("SHOW VIEWS IN ", "DESCRIBE NAMESPACE "))
        return SimpleNamespace(collect=list)


def _world_of(session: Any) -> World:
    """The world of a ``Session``, which stands for a ``SparkSession``."""
    world: World = session.sparkContext.world
    return world


class Writer(BranchWriter):
    """A branch's writer whose rows are Python's; following the branch is the product's."""

    def change(self, change: Callable[[Any], Any], marker: Mapping[str, str] | None = None) -> None:
        """Commit rows, made from those that the branch holds."""
        catalog = _world_of(self._spark).catalog
        catalog.commit_rows(self.table.name.sql, self.branch, change, marker or {})
        self._follow(marked=bool(marker))


class Rows(Preparation):
    """The preparation of one table: deletes first, then what is new, as the product's does."""

    def writer(self) -> Writer:
        """See ``Preparation``."""
        writer = super().writer()
        assert isinstance(writer, Writer)
        return writer

    def write(self) -> None:
        """See ``Preparation``."""
        world, oid = _world_of(self.spark), self.target.source.relation_oid
        keeps = self.batch.job.on_row_refused == QUARANTINE and not self.target.is_log
        self.notes = notes = RowNotes(world, oid, self.start.floor, keeps=keeps)
        if self.start.copies:
            writer = self.writer()
            if not self.target.is_log:
                writer.delete_all()
                notes.anew()
            copied, point = self._staged("copy"), int(self.start.floor)
            is_log = self.target.is_log
            writer.change(lambda rows: _with_copy(rows, copied, point, is_log=is_log))
        changes = [each for each in self._staged("changes") if each[0] >= self.start.floor]
        if not changes:
            return
        if self.table is not None and self.table.properties.get(LACKS_A_ROW):
            raise _row_missing(self.target.name.target)
        if self.target.is_log:
            self.writer().change(lambda rows: (rows or ()) + _entries(changes), self.marker)
            return
        key, name = self.target.source.versions[-1].key_columns, self.target.name.target
        before: list[Any] = []

        def delete(rows: Any) -> Any:
            before.append(rows)
            gone = {each[3] for each in changes}
            return {k: v for k, v in (rows or {}).items() if k not in gone} if key else rows

        self.writer().change(delete)
        if key:
            after: Any = _folded_by_key(before[0], changes, name, notes)
        else:
            after = _folded_without_key(before[0], changes, name)
        self.writer().change(lambda _: after, self.marker)

    def create(self) -> IcebergTable:
        """See ``Preparation``."""
        name = self.target.name
        ours = properties(self.target, self.batch.manifest)
        _world_of(self.spark).catalog.create(name.sql, ours)
        created = IcebergTable.load(self.spark, name)
        assert created is not None
        return created

    def evolve(self, table: IcebergTable) -> Evolved:
        """See ``Preparation``: columns do not change here."""
        return Evolved()

    def open_branch(self, table: IcebergTable) -> BranchWriter:
        """See ``Preparation``."""
        return Writer(self.spark, table, self.branch, ())

    def _staged(self, kind: str) -> list[Any]:
        area = _world_of(self.spark).area
        files = [file for each in self.target.source.versions for file in each.files]
        found = []
        for file in files:
            if file.kind == kind:
                found += json.loads(area.content(self.batch.path(file)))
        return [tuple(each) for each in found]


def _row_missing(name: str) -> RowMissing:
    return RowMissing("A row is not in the target.", table=name, advice="copy the table again.")


def _entries(changes: Sequence[Any]) -> tuple[Any, ...]:
    return tuple((lsn, seq, op, key, value) for lsn, seq, op, key, value in changes)


def _with_copy(rows: Any, copied: Sequence[Any], point: int, *, is_log: bool) -> Any:
    if is_log:
        # That there was a copy, of an empty table perhaps; a real log does not tell.
        begin = ((point, -len(copied) - 1, BEGINS, None, None),)
        return (
            (rows or ())
            + begin
            + tuple((point, -1 - i, "C", k, v) for i, (k, v) in enumerate(copied))
        )
    if copied and copied[0][0] is None:
        return tuple(sorted(value for _, value in copied))
    return dict(copied)


def _folded_by_key(rows: Any, changes: Sequence[Any], name: str, notes: RowNotes) -> Any:
    found = dict(rows or {})
    for lsn, seq, op, key, value in changes:
        if op == "T":
            found.clear()
            notes.anew()
        elif op == PART and key not in found:
            if not notes.keeps:
                raise _row_missing(name)
            notes.note(key, lsn, seq)
        elif op == PART:
            found[key] += value
            notes.is_whole(key)
        else:
            notes.is_whole(key)
            found.pop(key, None)
            if op != "D":
                found[key] = value
    return found


def _folded_without_key(rows: Any, changes: Sequence[Any], name: str) -> Any:
    found = list(rows or ())
    for _, _, op, _, value in changes:
        if op == "T":
            found.clear()
        elif op == "I":
            found.append(value)
        elif value in found:
            found.remove(value)
        else:
            raise _row_missing(name)
    return tuple(sorted(found))


class CheckpointTable:
    """The checkpoint table's rows, see ``CheckpointRows``."""

    def newest(self, spark: Any, table: IcebergTable, manifest: Manifest) -> list[Newest]:
        """See ``CheckpointRows``."""
        newest: dict[Any, Newest] = {}
        for row in spark.sparkContext.world.recorded(table.name.sql):
            if row["slot_name"] != manifest.slot_name:
                continue
            found = Newest(*(row.get(name) for name in Newest._fields))
            refused_at = (found.start_lsn, found.end_lsn) if found.set_aside else None
            group = (
                found.system_identifier,
                found.target,
                found.relation_oid,
                found.set_aside,
                refused_at,
            )
            before = newest.get(group, found)
            newest[group] = max(before, found, key=lambda each: (each.end_lsn, each.start_lsn))
        return sorted(newest.values(), key=lambda each: each.end_lsn)

    def ensure(self, spark: Any, name: TableName) -> None:
        """See ``CheckpointRows``."""
        if IcebergTable.load(spark, name) is None:
            spark.sparkContext.world.catalog.create(name.sql, {})

    def append(
        self,
        spark: Any,
        name: TableName,
        rows: Sequence[Mapping[str, object]],
        marker: Mapping[str, str],
    ) -> None:
        """See ``CheckpointRows``."""
        catalog = spark.sparkContext.world.catalog
        catalog.commit_rows(
            name.sql, MAIN, lambda found: (*(found or ()), *rows), marker, "record in"
        )


WORK = RowWork(Rows, CheckpointTable())
