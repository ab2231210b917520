"""The rows of an Iceberg snapshot, a few at a time, and only of the keys that are asked for.

pyiceberg decodes a whole file before it gives its first row. So this reads Parquet files itself, row group by
row group. pyiceberg still says how a file's columns become those of the table, and which rows are deleted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg import expressions
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import pyarrow as iceberg_arrow
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema, prune_columns

from airflow_provider_pgoutput.proof.files.lake_damage import DataFileFailure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from pyiceberg.table import DataScan, FileScanTask, Table

    from airflow_provider_pgoutput.proof.key_ranges import Part

    Mask = NDArray[np.bool_]

#: How many rows are decoded at once: rows of about this many bytes in the file, but at most and at least so
#: many rows.
_BYTES_AT_ONCE, _MOST_AT_ONCE, _LEAST_AT_ONCE = 8 << 20, 65_536, 1_024
#: How many bytes are read ahead: of all columns together, and of one column at least and at most.
_AHEAD, _LEAST_AHEAD, _MOST_AHEAD = 24 << 20, 64 << 10, 4 << 20


class LakeFiles:
    """The data files of one snapshot. With a part, only the files that may have rows of it.

    :param names: of the fields that are read.
    :param part: None: all rows.
    :param own: only rows with these texts in these fields, see ``slices.py``; empty: all rows.
    """

    def __init__(
        self,
        table: Table,
        snapshot_id: int,
        names: Sequence[str],
        part: Part | None = None,
        own: Sequence[tuple[str, str]] = (),
    ) -> None:
        # Their constructors have no types.
        make: Any = expressions
        row_filter = (None if part is None else part.expression()) or AlwaysTrue()
        for name, text in own:
            row_filter = make.And(row_filter, make.EqualTo(name, text))
        fields = dict.fromkeys((*names, *(name for name, _ in own)))
        self._scan: DataScan = table.scan(
            row_filter, selected_fields=tuple(fields), snapshot_id=snapshot_id
        )
        self._part, self._own = part, own
        self._projected: Schema = self._scan.projection()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows. Each batch has the fields in any order.

        :raises DataFileFailure: a data file or its file of deletes cannot be read.
        """
        for file in self.files():
            yield from self.of_file(file)

    def files(self) -> Iterator[FileScanTask]:
        """The files, each with its deletes."""
        yield from self._scan.plan_files()

    def named(self) -> Iterator[tuple[str, FileScanTask]]:
        """The files with their names. A file that was added twice has its rows twice, and two names."""
        seen = Counter[str]()
        for file in self.files():
            name = name_of(file)
            yield name + " again" * seen[name], file
            seen[name] += 1

    def of_file(self, file: FileScanTask) -> Iterator[pa.RecordBatch]:
        """The rows of a file, see ``batches``."""
        of_file = (
            self._of_parquet(file)
            if file.file.file_format == FileFormat.PARQUET
            else self._of_other(file)
        )
        # ``next`` is called in a function of its own: an error of the caller, between two batches, is no
        # failure of this file.
        while (batch := _next_of(of_file, file)) is not None:
            yield self._own_rows(batch)

    def _own_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        for name, text in self._own:
            rows = rows.filter(pc.fill_null(pc.equal(rows.column(name), text), False))
        return rows

    def _of_other(self, task: FileScanTask) -> Iterator[pa.RecordBatch]:
        scan = self._scan
        reader = iceberg_arrow.ArrowScan(
            scan.table_metadata, scan.io, self._projected, AlwaysTrue()
        )
        for rows in reader.to_record_batches([task]):
            yield rows if self._part is None else _chosen(rows, self._part.mask(rows))

    def _of_parquet(self, task: FileScanTask) -> Iterator[pa.RecordBatch]:
        io = self._scan.io
        deleted = _positions(
            iceberg_arrow._read_all_delete_files(io, [task]).get(task.file.file_path, [])
        )
        ahead = _AHEAD // max(1, len(self._projected.fields))
        with (
            io.new_input(task.file.file_path).open() as source,
            pq.ParquetFile(
                source,
                pre_buffer=False,
                buffer_size=min(max(ahead, _LEAST_AHEAD), _MOST_AHEAD),
            ) as file,
        ):
            of_file = _File(file, self._scan, task)
            begin = 0
            for number in range(file.num_row_groups):
                rows = file.metadata.row_group(number).num_rows
                inside = deleted[slice(*np.searchsorted(deleted, [begin, begin + rows]))] - begin
                yield from self._of_group(of_file, number, inside)
                begin += rows

    def _of_group(
        self, file: _File, number: int, deleted: NDArray[np.int64]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one row group.

        :param deleted: numbers of rows that are deleted, ascending.
        """
        masks = self._masks(file, number)
        if masks is not None and not any(each.any() for each in masks):
            return
        begin, columns = 0, file.columns(self._projected)
        for position, rows in enumerate(file.batches(number, columns)):
            end = begin + rows.num_rows
            gone = deleted[slice(*np.searchsorted(deleted, [begin, end]))] - begin
            stays = None if masks is None else masks[position]
            if len(gone):
                stays = np.ones(rows.num_rows, np.bool_) if stays is None else stays
                stays[gone] = False
            begin = end
            found = file.requested(rows if stays is None else _chosen(rows, stays), columns)
            if self._part is not None and masks is None:
                found = _chosen(found, self._part.mask(found))
            yield found

    def _masks(self, file: _File, number: int) -> list[Mask] | None:
        """Which rows of each batch are of the part. Only the column with the keys is read for that."""
        if self._part is None or not self._part.is_small:
            return None
        only = file.columns(Schema(*map(self._projected.find_field, self._part.in_lake)))
        return [self._part.mask(file.requested(rows, only)) for rows in file.batches(number, only)]


def name_of(file: FileScanTask) -> str:
    """A name for a file and the files of its deletes. Iceberg never writes one of them again."""
    one = file.file
    deletes = sorted(each.file_path for each in file.delete_files)
    return " ".join([one.file_path, str(one.file_size_in_bytes), str(one.record_count), *deletes])


def _next_of(batches: Iterator[pa.RecordBatch], task: FileScanTask) -> pa.RecordBatch | None:
    """The next rows of a file; None: there are no more."""
    try:
        return next(batches, None)
    except Exception as error:
        raise DataFileFailure(task) from error


@dataclass(frozen=True, slots=True)
class _Columns:
    """Fields of the table, and what a file has of them."""

    fields: Schema
    in_file: Schema


class _File:
    """A Parquet file that is open, and how its columns become the fields of the table."""

    def __init__(self, file: pq.ParquetFile, scan: DataScan, task: FileScanTask) -> None:
        metadata = scan.table_metadata
        self._file = file
        self._downcast = metadata.format_version <= 2
        self._schema: Schema = iceberg_arrow.pyarrow_to_schema(
            file.schema_arrow,
            metadata.name_mapping(),
            downcast_ns_timestamp_to_us=self._downcast,
            format_version=metadata.format_version,
        )
        self._missing = iceberg_arrow._get_column_projection_values(
            task.file,
            scan.projection(),
            metadata.schema(),
            metadata.specs().get(task.file.spec_id),
            self._schema.field_ids,
        )

    def columns(self, fields: Schema) -> _Columns:
        """What the file has of some fields."""
        pruned = prune_columns(self._schema, set(fields.field_ids), select_full_types=True)
        return _Columns(fields, pruned)

    def batches(self, number: int, columns: _Columns) -> Iterator[pa.RecordBatch]:
        """The rows of one row group as the file has them, always cut at the same rows."""
        group = self._file.metadata.row_group(number)
        of_row = max(1, group.total_byte_size // max(1, group.num_rows))
        at_once = min(max(_BYTES_AT_ONCE // of_row, _LEAST_AT_ONCE), _MOST_AT_ONCE)
        # A file may be older than all these columns. Then any column gives the number of rows.
        names = [each.name for each in columns.in_file.fields] or self._file.schema_arrow.names[:1]
        yield from self._file.iter_batches(at_once, [number], names)

    def requested(self, rows: pa.RecordBatch, columns: _Columns) -> pa.RecordBatch:
        """The rows with the names and the types of the table."""
        return iceberg_arrow._to_requested_schema(
            columns.fields,
            columns.in_file,
            rows,
            downcast_ns_timestamp_to_us=self._downcast,
            projected_missing_fields=self._missing,
            allow_timestamp_tz_mismatch=True,
        )


def _positions(deletes: Sequence[pa.ChunkedArray]) -> NDArray[np.int64]:
    """The numbers of rows that are deleted, ascending."""
    parts = [each.to_numpy().astype(np.int64) for each in deletes]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)


def _chosen(rows: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    return rows.filter(pa.array(mask))
