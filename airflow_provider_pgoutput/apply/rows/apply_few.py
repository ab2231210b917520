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
#: Each row that is read is compared with so many slices, one after the other.
_SLICES_OF_ONE_SCAN = 50
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


@dataclass(frozen=True, slots=True)
class Few:
    """The few changes of one table, or of one slice, as rows."""

    #: The names of the key columns.
    key: tuple[str, ...]
    #: The texts of all its rows in constant columns that tell it from other slices.
    constants: Mapping[str, str]
    #: By key the row that the changes leave, or None: the row is gone.
    rows: Mapping[Key, Any]
    #: The columns that the table had when the rows were made.
    fields: Sequence[Field]

    @property
    def live(self) -> list[Any]:
        """The rows that exist after the batch."""
        return [row for row in self.rows.values() if row is not None]


def apply(state: TableState, segments: Sequence[Segment]) -> bool:
    """Apply the changes of a batch to the branch, if they are few and simple.

    :return: whether that was done. If not, nothing was written, and Spark has to do it.
    """
    if not _is_simple(state, segments) or state.table is None or not _is_small(state.table):
        return False
    few = read(state, segments)
    if few is None:
        return False
    if few.rows:
        writer = state.writer()
        table, head = writer.table, writer.head
        # The records were made with the fields that the table had before the branch was made, and these may
        # have changed since. A snapshot is read with the columns that it was written with. An attempt that
        # was killed may have renamed one after that.
        if generic_rows.fields(table) != few.fields or (head and table.has_other_columns(head)):
            return False
        if not state.empty:
            state.count(deleted_keys=len(few.rows))
        write(state.spark._jvm, writer, table, [few], state.marker, is_empty=state.empty)
        state.count(appended=len(few.live))
        reach("apply.after_row_delta")
    return True


def read(state: TableState, segments: Sequence[Segment]) -> Few | None:
    """The changes of a batch, if they are few and simple; None: Spark has to apply them."""
    table = state.table
    if table is None or not _is_simple(state, segments):
        return None
    if not generic_rows.is_available(state.spark._jvm) or not _is_plain(table):
        return None
    segment, fields = segments[0], generic_rows.fields(table)
    if not _fits(segment, fields):
        return None
    rows = _fold(_read(state, segment, fields))
    # The lake cannot hold this key. Spark refuses it with an error that names the column.
    if any(value is None for key in rows for value in key):
        return None
    key = tuple(segment.columns[i].name for i in segment.key)
    slice_ = table.name.slice
    return Few(key, {} if slice_ is None else dict(slice_.constants), rows, fields)


def _is_simple(state: TableState, segments: Sequence[Segment]) -> bool:
    """Whether the batch alone says what each row is, in the columns that the target has already."""
    if len(segments) != 1:
        return False
    segment, layout, counts = segments[0], state.layout, state.counts
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
    return (
        table.format_version in FORMAT_VERSIONS
        and properties.get(MERGE_MODE) == MERGE_ON_READ
        and not is_partitioned(table)
        and bool(java.sortOrder().isUnsorted())
    )


def _is_small(table: IcebergTable) -> bool:
    """Whether the table is small enough for the driver, or its slice."""
    snapshot = table.java.currentSnapshot()
    if snapshot is None:
        return True
    if table.name.slice is not None:
        return are_small(table, int(snapshot.snapshotId()), 1)
    counts = snapshot.summary()
    rows, files = counts.get("total-records"), counts.get("total-data-files")
    # None: another writer did not count.
    return (
        rows is not None
        and files is not None
        and int(rows) <= _MOST_ROWS
        and int(files) <= _MOST_FILES
    )


def are_small(table: IcebergTable, snapshot_id: int, slices: int) -> bool:
    """Whether slices of a table are small enough for the driver.

    :param table: ``slice_files`` are the files of the slices.
    :param slices: how many they are.
    """
    rows, files = table.slice_files.size(table.java, snapshot_id)
    return rows <= _MOST_ROWS * slices and files <= _MOST_FILES * slices


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


def write(
    jvm: Any,
    writer: BranchWriter,
    table: IcebergTable,
    several: Sequence[Few],
    marker: Mapping[str, str],
    *,
    is_empty: bool = False,
) -> None:
    """Commit the changes of a table, or of several of its slices, to the branch.

    :param table: the files of the slices are its ``slice_files``.
    :param marker: summary keys of the commit.
    :param is_empty: the branch surely holds no rows of them.
    """
    deletes: list[Any] = []
    replaced: list[Any] = []
    if writer.head is not None and not is_empty:
        found: dict[str, list[int]] = {}
        for at in range(0, len(several), _SLICES_OF_ONE_SCAN):
            batch = several[at : at + _SLICES_OF_ONE_SCAN]
            names = dict.fromkeys(name for few in batch for name in (*few.key, *few.constants))
            each = (generic_rows.any_of(jvm, few.key, few.rows, few.constants) for few in batch)
            where = generic_rows.either(jvm, list(each))
            there = generic_rows.positions(jvm, table, writer.head, names, where)
            for path, positions in there.items():
                found.setdefault(path, []).extend(positions)
        if found:
            deletes, replaced = generic_rows.write_deletes(jvm, table, writer.head, found)
    live = [row for few in several for row in few.live]
    data = [generic_rows.write_rows(jvm, table, live)] if live else []
    reach("apply.before_row_delta")
    if data or deletes:
        writer.replace_rows(data, deletes, replaced, marker)
