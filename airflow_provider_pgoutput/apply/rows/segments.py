"""Brings the staged rows of all versions of a table to one set of columns, by name.

A version may not have a column yet. Its rows then get the value that PostgreSQL shows in them: the default's
constant, or NULL. A version may have a column no more: NULL. Types are widened as Iceberg widens them.

Rows that are identified differently go into another *segment*: the key has other columns or compares
differently, or other columns are not sent. Segments are applied in order.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.sql import Sql
from airflow_provider_pgoutput.apply.rows.staged_files import StagedBatch, read_files
from airflow_provider_pgoutput.apply.schema.defaults import missing_value
from airflow_provider_pgoutput.apply.schema.spark_types import widened
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch import shape
from airflow_provider_pgoutput.batch.lake_types import widens
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.table_version import FULL
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_pgoutput.batch.manifest import Table
    from airflow_provider_pgoutput.batch.table_version import Column, StagedFile, TableVersion

#: Column: the number of a change's version. Only in segments that are ``is_mixed``.
VERSION = Sql("version")


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive versions of a table in which rows are identified in the same way."""

    #: ``schema.table``.
    table: str
    versions: tuple[TableVersion, ...]
    #: All columns of the batch. Their positions name the columns of every data frame.
    columns: tuple[Column, ...]
    #: Positions of the key columns; empty when the table has no key.
    key: tuple[int, ...]
    #: REPLICA IDENTITY FULL: an old tuple is the whole row.
    full: bool
    #: Positions of columns that earlier versions have and the source does not send now. A row keeps its
    #: values there. Either a column list leaves the column out, or its type changed and its new values go
    #: into another column of the target.
    unsent: tuple[int, ...] = ()

    @property
    def key_names(self) -> tuple[Sql, ...]:
        """Staged names of the key columns."""
        return tuple(Sql(staged.new(position)) for position in self.key)

    @property
    def is_mixed(self) -> bool:
        """Whether the segment has whole old rows (REPLICA IDENTITY FULL) of several versions.

        Between two versions the table may have been rewritten, which changes rows without a row event.
        """
        return self.full and len(self.versions) > 1

    @property
    def image_columns(self) -> tuple[int, ...]:
        """Positions of the columns by which whole rows are compared: those of the segment's newest version.

        In a newer column, older rows have the value that PostgreSQL shows. Dropped columns do not count.
        """
        newest = {column.name for column in self.versions[-1].columns}
        return tuple(i for i, column in enumerate(self.columns) if column.name in newest)

    @property
    def unknown(self) -> tuple[int, ...]:
        """Positions of those ``image_columns`` in which the target may have NULL instead of the value."""
        return tuple(i for i in self.image_columns if self.columns[i].older_unknown)

    @property
    def lasting(self) -> tuple[int, ...]:
        """Positions of the columns that are the same in all versions."""
        alike = set.intersection(
            *(
                {(each.name, each.attribute_number, each.type_name) for each in version.columns}
                for version in self.versions
            )
        )
        names = {name for name, _, _ in alike}
        return tuple(i for i in self.image_columns if self.columns[i].name in names)

    @property
    def unchanged(self) -> tuple[int, ...]:
        """Positions of the columns with a value that was left out as unchanged TOAST."""
        return self._staged_as(staged.unchanged)

    @property
    def old(self) -> tuple[int, ...]:
        """Positions of the columns that old tuples have.

        A whole old row has all columns. A column that is NULL in every old row is not staged, and is read as
        NULL.
        """
        return tuple(range(len(self.columns))) if self.full else self._staged_as(staged.old)

    @property
    def has_origins(self) -> bool:
        """Whether some transaction was first committed on another server."""
        files = (file for version in self.versions for file in _files(version, "changes"))
        return any(staged.ORIGIN in file.columns for file in files)

    def _staged_as(self, name: object) -> tuple[int, ...]:
        assert callable(name)
        found: set[str] = set()
        for version in self.versions:
            present = {column for file in _files(version, "changes") for column in file.columns}
            found |= {column.name for i, column in enumerate(version.columns) if name(i) in present}
        return tuple(i for i, column in enumerate(self.columns) if column.name in found)


def merge_columns(
    table: Table, existing: Mapping[str, str], left_out: frozenset[str] = frozenset()
) -> tuple[Column, ...]:
    """All columns of a batch's table, the newest version's first, with types that hold all values.

    :param existing: lake types of the target's columns by name.
    :param left_out: names of columns that the target does not get.
    :raises TableRefused: a column changed to a type that does not hold its values.
    """
    newest_first: dict[str, Column] = {}
    for version in reversed(table.versions):
        for column in version.columns:
            if column.name not in left_out:
                newest_first.setdefault(column.name, column)
    merged = []
    for name, column in newest_first.items():
        types = [each.lake_type for v in table.versions for each in v.columns if each.name == name]
        if name in existing:
            types.insert(0, existing[name])
        merged.append(dataclasses.replace(column, lake_type=_one_type(table, name, types)))
    return tuple(merged)


def _one_type(table: Table, column: str, types: Sequence[str]) -> str:
    one = types[0]
    for each in types[1:]:
        if widens(one, each):
            one = each
        elif one != each and not widens(each, one):
            raise TableRefused(
                f"The column's type changed from {one} to {each}, which Iceberg cannot follow.",
                table=table.name,
                column=column,
                advice="rename or drop the column in the target, or name a new target table, and "
                f"copy the table again (copy_tables=[{table.name!r}]).",
            )
    return one


def segments(table: Table, columns: tuple[Column, ...]) -> list[Segment]:
    """Split the versions of a table into segments, see the top of this file."""
    position = {column.name: i for i, column in enumerate(columns)}
    changes = (each for each in table.schema_changes if each.kind == shape.UNPUBLISHED)
    unpublished = {each.attribute_number for each in changes} - {None}
    found: list[Segment] = []
    sent: set[str] = set()
    for version in table.versions:
        present = {column.name for column in version.columns}
        kept = unpublished | {column.attribute_number for column in version.columns} - {None}
        unsent = tuple(
            i
            for i, column in enumerate(columns)
            if column.name in sent - present and column.attribute_number in kept
        )
        sent |= present
        if not _files(version, "changes"):
            continue
        key = tuple(position[name] for name in version.key_columns)
        full = version.replica_identity == FULL
        alike = (key, full, unsent)
        if found and (found[-1].key, found[-1].full, found[-1].unsent) == alike:
            versions = (*found[-1].versions, version)
            found[-1] = dataclasses.replace(found[-1], versions=versions)
        else:
            found.append(Segment(table.name, (version,), columns, *alike))
    return found


def _gone(table_versions: Sequence[TableVersion], version: TableVersion) -> frozenset[str]:
    """Names of the columns that an earlier version has and this one has no more."""
    before = itertools.takewhile(lambda each: each.version != version.version, table_versions)
    names = {column.name for each in before for column in each.columns}
    return frozenset(names - {column.name for column in version.columns})


def read_changes(
    spark: SparkSession, batch: StagedBatch, table: Table, segment: Segment, floor: int
) -> DataFrame:
    """Row changes of a segment with a commit LSN at or past ``floor``, in the batch's columns.

    Changes that are passed over are left out.

    :param table: with all of its versions.
    :return: the columns of ``batch/changes.py``, but some only where they are needed: ``u`` for positions of
        ``unchanged``, ``o`` for positions of ``old``, the origin if some change has one, and ``VERSION`` if
        the segment is mixed.
    """
    parts = []
    for version in segment.versions:
        files = _files(version, "changes")
        gone = _gone(table.versions, version)
        parts.append(_read_version(spark, batch, segment, version, files, gone))
    rows = reduce(lambda left, right: left.union(right), parts)
    if table.until_lsn is not None:
        rows = rows.where(F.col(staged.COMMIT_LSN) < F.lit(int(Lsn.parse(table.until_lsn))))
    return rows.where(F.col(staged.COMMIT_LSN) >= F.lit(int(floor)))


def _read_version(
    spark: SparkSession,
    batch: StagedBatch,
    segment: Segment,
    version: TableVersion,
    files: Sequence[StagedFile],
    gone: frozenset[str],
) -> DataFrame:
    leading = (*staged.LEADING, *(staged.ORIGINS if segment.has_origins else ()))
    schema, selected = [*leading], [name for name, _ in leading]
    if segment.is_mixed:
        selected.append(f"{version.version} AS {VERSION}")
    for i, column in enumerate(version.columns):
        schema += [(staged.new(i), column.lake_type), (staged.old(i), column.lake_type)]
        schema.append((staged.unchanged(i), "boolean"))
    at = {column.name: i for i, column in enumerate(version.columns)}
    for position, one in enumerate(segment.columns):
        column, source = _without_default(one, gone), at.get(one.name)
        kind = None if source is None else version.columns[source].lake_type
        new = None if source is None else Sql(staged.new(source))
        value = _value(segment.table, column, new, kind, Sql("op != 'D'"))
        selected.append(f"{value} AS {staged.new(position)}")
        if position in segment.old:
            old = None if source is None else Sql(staged.old(source))
            value = _value(segment.table, column, old, kind, Sql("old_kind = 'O'"))
            selected.append(f"{value} AS {staged.old(position)}")
        if position in segment.unchanged:
            flag = "false" if source is None else f"coalesce({staged.unchanged(source)}, false)"
            selected.append(f"{flag} AS {staged.unchanged(position)}")
    return read_files(spark, batch, files, schema).selectExpr(*selected)


def read_copy(
    spark: SparkSession, batch: StagedBatch, table: Table, columns: tuple[Column, ...]
) -> DataFrame | None:
    """Rows of the initial copy, in the batch's columns; None: the batch has no copy."""
    parts = []
    for version in table.versions:
        files = _files(version, "copy")
        if not files:
            continue
        schema = [(staged.new(i), each.lake_type) for i, each in enumerate(version.columns)]
        at = {each.name: i for i, each in enumerate(version.columns)}
        gone = _gone(table.versions, version)
        selected = []
        for position, column in enumerate(columns):
            source = at.get(column.name)
            kind = None if source is None else version.columns[source].lake_type
            held = None if source is None else Sql(staged.new(source))
            value = _value(table.name, _without_default(column, gone), held, kind, Sql("true"))
            selected.append(f"{value} AS {staged.new(position)}")
        parts.append(read_files(spark, batch, files, schema).selectExpr(*selected))
    return reduce(lambda left, right: left.union(right), parts) if parts else None


def _without_default(column: Column, gone: frozenset[str]) -> Column:
    """The column, without its default if it is gone. Only rows from before it came show the default."""
    return dataclasses.replace(column, missing_value=None) if column.name in gone else column


def _value(table: str, column: Column, held: Sql | None, kind: str | None, exists: Sql) -> Sql:
    """SQL of one column: the staged value, or what older rows show in the column.

    :param held: the staged column.
    :param kind: its lake type.
    :param exists: SQL: whether the row has values on that side (old or new).
    """
    if held is not None and kind is not None:
        return widened(held, kind, column.lake_type)
    return Sql(f"CASE WHEN {exists} THEN {missing_value(column, table)} END")


def _files(version: TableVersion, kind: str) -> list[StagedFile]:
    return [file for file in version.files if file.kind == kind]
