"""Applies few changes to a small table with a key on the driver: one commit to the branch, no Spark job.

A Spark statement costs the same for ten rows as for ten thousand. So for few changes the driver reads the
staged rows, folds them, looks the replaced rows up, and commits their deletes and the new rows together. The
branch and its publish are those of every batch.

Whatever is not simple is left to Spark, see ``_is_simple`` and ``_fits``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg import generic_rows
from airflow_provider_pgoutput.apply.rows.branch_writer import MERGE_MODE
from airflow_provider_pgoutput.apply.rows.staged_files import iceberg_input
from airflow_provider_pgoutput.apply.schema.partitioning import is_partitioned
from airflow_provider_pgoutput.apply.schema.spark_types import PRIMITIVES, UUID
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch.jobs import FORMAT_VERSIONS, MERGE_ON_READ
from airflow_provider_pgoutput.batch.lake_types import decimal_type
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.crash_points import reach

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.apply.iceberg.generic_rows import Field, Key
    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
    from airflow_provider_pgoutput.apply.rows.branch_writer import BranchWriter
    from airflow_provider_pgoutput.apply.rows.segments import Segment
    from airflow_provider_pgoutput.apply.rows.table_state import TableState
    from airflow_provider_pgoutput.batch.table_version import StagedFile

#: Of one table in one batch. With more, Spark is faster. 0 leaves all to Spark.
MOST_CHANGES = 200
#: Of the table. The driver reads one file after the other.
_MOST_ROWS, _MOST_FILES = 500_000, 64
#: Types whose values are in the staged file as Iceberg writes them.
_PLAIN = PRIMITIVES.keys() - {UUID}
#: Types of keys that cross to Python and back unchanged.
_KEYS = frozenset({"int", "long", "string"})
#: What a change needs to be folded.
_OF_CHANGE = {name: kind for name, kind in staged.LEADING if name != staged.COMMIT_TS}
_FORMATS = ("write.format.default", "write.delete.format.default")


@dataclass(frozen=True, slots=True)
class _Change:
    """One change of the stream."""

    position: tuple[int, int]
    op: str
    new_key: Key
    #: None: the change has no old tuple.
    old_key: Key | None
    #: The record in Java, with the fields of the target.
    row: Any


def apply(state: TableState, segments: Sequence[Segment]) -> bool:
    """Apply the changes of a batch to the branch, if they are few and simple.

    :return: whether that was done. If not, nothing was written, and Spark has to do it.
    """
    table = state.table
    if table is None or len(segments) != 1 or not _is_simple(state, segments[0]):
        return False
    jvm = state.spark._jvm
    if not generic_rows.is_available(jvm) or not _is_plain(table):
        return False
    segment, fields = segments[0], generic_rows.fields(table)
    if not _fits(segment, fields):
        return False
    changes = _read(state, segment, fields)
    rows = _fold(changes)
    # The lake cannot hold this key. Spark refuses it with an error that names the column.
    if any(value is None for key in rows for value in key):
        return False
    if rows:
        writer = state.writer()
        table, head = writer.table, writer.head
        # The records were made with the fields that the table had before the branch was made, and these may
        # have changed since. A snapshot is read with the columns that it was written with. An attempt that
        # was killed may have renamed one after that.
        if generic_rows.fields(table) != fields or (head and table.has_other_columns(head)):
            return False
        _write(state, writer, segment, rows)
    return True


def _is_simple(state: TableState, segment: Segment) -> bool:
    """Whether the batch alone says what each row is, in the columns that the target has already."""
    layout, counts = state.layout, state.counts
    return (
        sum(file.rows for file in _files(segment)) <= MOST_CHANGES
        and not counts.truncates
        and not state.start.copies
        and not state.soft_delete
        and len(segment.versions) == 1
        and bool(segment.key)
        and not (segment.full or segment.unchanged or segment.unsent)
        and not (layout.renamed or layout.dropped or layout.left_out or layout.not_in_batch)
        and {each.name for each in segment.versions[0].columns} == {e.name for e in segment.columns}
    )


def _files(segment: Segment) -> list[StagedFile]:
    files = (file for version in segment.versions for file in version.files)
    return [file for file in files if file.kind == "changes"]


def _is_plain(table: IcebergTable) -> bool:
    """Whether files of the table are written without a partition, an order, or another format."""
    properties, java = table.properties, table.java
    if any(properties.get(name, "parquet").lower() != "parquet" for name in _FORMATS):
        return False
    snapshot = java.currentSnapshot()
    if snapshot is not None:
        rows, files = _rows_and_files(table, snapshot)
        # None: another writer did not count.
        if rows is None or files is None or int(rows) > _MOST_ROWS or int(files) > _MOST_FILES:
            return False
    return (
        table.format_version in FORMAT_VERSIONS
        and properties.get(MERGE_MODE) == MERGE_ON_READ
        and not is_partitioned(table)
        and bool(java.sortOrder().isUnsorted())
    )


def _rows_and_files(table: IcebergTable, snapshot: Any) -> tuple[Any, Any]:
    """How many rows and files the table has, or its slice."""
    if table.name.slice is not None:
        return table.slice_files.size(table.java, int(snapshot.snapshotId()))
    counts = snapshot.summary()
    return counts.get("total-records"), counts.get("total-data-files")


def _fits(segment: Segment, fields: Sequence[Field]) -> bool:
    """Whether every staged value goes into its field as it is, and every field gets the right one."""
    kinds = {field.name: field.kind for field in fields}
    newest = {column.name: column.lake_type for column in segment.versions[0].columns}
    names = [segment.columns[i].name for i in segment.key]
    return (
        all(kinds.get(name) == kind and _is_plain_type(kind) for name, kind in newest.items())
        and all(newest[name] in _KEYS for name in names)
        and all(
            name in newest or staged.METADATA_COLUMNS.get(name, kind) == kind
            for name, kind in kinds.items()
        )
    )


def _is_plain_type(kind: str) -> bool:
    return kind in _PLAIN or decimal_type(kind) is not None


def _read(state: TableState, segment: Segment, fields: Sequence[Field]) -> list[_Change]:
    """The changes at or past the floor, in the order of the stream."""
    (version,) = segment.versions
    by_name = {field.name: field for field in fields}
    new = {staged.new(i): by_name[each.name] for i, each in enumerate(version.columns)}
    new |= {of: by_name[name] for name, of in staged.METADATA.items() if name in by_name}
    at_name = {each.name: i for i, each in enumerate(version.columns)}
    key = [at_name[name] for name in version.key_columns]
    constants = state.target.constants
    same = [(i, constants[field.name]) for i, field in enumerate(fields) if field.name in constants]
    others = {name: kind for name, kind in _OF_CHANGE.items() if name not in new}
    others |= {staged.old(i): version.columns[i].lake_type for i in key}
    until, found = state.layout.table.until_lsn, []
    end = None if until is None else int(Lsn.parse(until))
    for file in _files(segment):
        input_file = iceberg_input(state.spark, state.batch, file)
        rows, at = generic_rows.read(state.spark._jvm, input_file, new, others, fields)
        for row in rows:
            change = _change(row, at, key)
            lsn, _ = change.position
            if lsn >= state.start.floor and (end is None or lsn < end):
                for place, text in same:
                    row.set(place, text)
                found.append(change)
    return sorted(found, key=lambda change: change.position)


def _change(row: Any, at: Mapping[str, int], key: Sequence[int]) -> _Change:
    def value(name: str) -> Any:
        return row.get(at[name])

    has_old = value(staged.OLD_KIND) is not None
    return _Change(
        (int(value(staged.COMMIT_LSN)), int(value(staged.SEQ))),
        str(value(staged.OP)),
        tuple(value(staged.new(i)) for i in key),
        tuple(value(staged.old(i)) for i in key) if has_old else None,
        row,
    )


def _fold(changes: Sequence[_Change]) -> dict[Key, Any]:
    """By key the row that the changes leave, or None: the row is gone; see ``fold.py``."""
    rows: dict[Key, Any] = {}
    for change in changes:
        if change.op == staged.DELETE:
            rows[change.old_key or (None,)] = None
            continue
        if change.op == staged.UPDATE and change.old_key is not None:
            rows[change.old_key] = None
        rows[change.new_key] = change.row
    return rows


def _write(
    state: TableState, writer: BranchWriter, segment: Segment, rows: Mapping[Key, Any]
) -> None:
    jvm = state.spark._jvm
    table, live = writer.table, [row for row in rows.values() if row is not None]
    deletes: list[Any] = []
    replaced: list[Any] = []
    if writer.head is not None and not state.empty:
        names = [segment.columns[i].name for i in segment.key]
        own = () if table.name.slice is None else table.name.slice.constants
        names += [name for name, _ in own]
        keys = [(*key, *(text for _, text in own)) for key in rows]
        found = generic_rows.positions(jvm, table, writer.head, names, keys)
        if found:
            deletes, replaced = generic_rows.write_deletes(jvm, table, writer.head, found)
        state.count(deleted_keys=len(rows))
    data = [generic_rows.write_rows(jvm, table, live)] if live else []
    reach("apply.before_row_delta")
    if data or deletes:
        writer.replace_rows(data, deletes, replaced, state.marker)
    state.count(appended=len(live))
    reach("apply.after_row_delta")
