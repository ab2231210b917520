"""Writes typed Parquet files. Rows are gathered in memory within a budget, and written as row groups.

All files of a batch share one budget. When it is used up, the largest buffers are written first. One thread
encodes, because Arrow does that without Python's lock. At the end several threads complete the files.

Source: https://arrow.apache.org/docs/python/parquet.html
"""

from __future__ import annotations

import contextlib
import functools
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import parquet

from airflow_provider_pgoutput.batch.changes import COMMIT_LSN, LEADING, ORIGIN, PREFIX, SEQ
from airflow_provider_pgoutput.batch.layout import file_name
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.table_version import StagedFile
from airflow_provider_pgoutput.capture.staging.storage_errors import storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_provider_pgoutput.capture.staging.area import StagedOutput, StagingArea

#: A buffer of this size is a good row group.
ROW_GROUP_BYTES = 16 << 20
#: A file is closed when it has grown to this size.
FILE_BYTES = 192 << 20

#: A file with fewer bytes of values is compressed by snappy. Zstd sets up tables for each column of a file.
#: That takes longer than to compress such values.
_SMALL_FILE_BYTES = 64 << 10

#: Rows that keep more than so many times their own bytes in memory are copied.
_MOST_HELD = 2
#: Memory of a block's column in addition to its values; measured.
_COLUMN_BYTES = 1000
#: Blocks smaller than this are joined, many at a time.
_SMALL_BYTES = 32 << 10
_JOINED_BLOCKS = 16
#: Most files that are open. Each takes a file descriptor, and a process often has only 1024.
_OPEN_FILES = 100
#: How many files are completed at the same time at the end of a batch. More would take more memory.
_COMPLETED_AT_ONCE = 2
#: The same, if there is little left to encode: then they wait for the disk or the object store.
_SMALL_COMPLETED_AT_ONCE = 8
_LARGE_BYTES = 2 << 20
#: How many row groups may wait for the encoder.
_WAITING_GROUPS = 2

_LEADING_NAMES = frozenset(name for name, _ in LEADING)
#: Columns in which few values repeat.
_DICTIONARY_NAMES = (_LEADING_NAMES - {SEQ}) | {ORIGIN, PREFIX}


@dataclass(slots=True, eq=False)
class TableWriter:
    """Writes the files of one kind in one folder.

    Rows may lack columns that are null in all of them. A file gets the columns that its rows need. Rows that
    need more columns begin a new file.
    """

    area: StagingArea
    #: Relative to the staging root.
    folder: str
    kind: str
    #: Every column that a file can have, in order.
    schema: pa.Schema
    #: Columns that every file has.
    required: frozenset[str]
    files: list[StagedFile] = field(default_factory=list)
    #: Memory of the buffered rows.
    buffered_bytes: int = 0
    _buffer: list[pa.RecordBatch] = field(default_factory=list)
    #: Number and memory of the small blocks at the end of the buffer.
    _small_blocks: int = 0
    _small_bytes: int = 0
    _open: _OpenFile | None = None
    _columns: frozenset[str] = frozenset()

    def append(self, rows: pa.RecordBatch) -> None:
        """Keep rows for the next row group. They may lack columns that are not required."""
        size = rows.nbytes
        if rows.get_total_buffer_size() > _MOST_HELD * size:
            rows = _owning(rows, _MOST_HELD * size)
        self._keep(rows, size)
        if self._small_blocks >= _JOINED_BLOCKS:
            self.join_small_blocks()

    def join_small_blocks(self) -> None:
        """Join the small blocks at the end into one. A small block takes far more memory than its values.

        Columns that only some of them have are null in the others, as they would be in the file.
        """
        if self._small_blocks < 2:
            return
        small = self._buffer[-self._small_blocks :]
        del self._buffer[-self._small_blocks :]
        self.buffered_bytes -= self._small_bytes
        self._small_blocks = self._small_bytes = 0
        names: set[str] = set().union(*(each.schema.names for each in small))
        schema = pa.schema([each for each in self.schema if each.name in names])
        joined = pa.concat_batches([_completed(each, schema) for each in small])
        self._keep(joined, joined.nbytes)

    def _keep(self, rows: pa.RecordBatch, size: int) -> None:
        taken = size + _COLUMN_BYTES * rows.num_columns
        self._buffer.append(rows)
        self.buffered_bytes += taken
        if size < _SMALL_BYTES:
            self._small_blocks += 1
            self._small_bytes += taken
        else:
            self._small_blocks = self._small_bytes = 0

    def take(self) -> Callable[[], None]:
        """Empty the buffer; return a function that writes the rows which were in it."""
        return functools.partial(self._write, self._emptied())

    def _emptied(self) -> list[pa.RecordBatch]:
        """Empty the buffer; return the rows that were in it."""
        buffer, self._buffer, self.buffered_bytes = self._buffer, [], 0
        self._small_blocks = self._small_bytes = 0
        return buffer

    def close(self) -> None:
        """Complete the last file. Nothing may be buffered any more."""
        assert not self._buffer, "rows are written before their file is closed"
        self.close_file()

    def complete(self) -> None:
        """Write what is buffered and complete the last file."""
        if self._buffer:
            is_small = sum(each.nbytes for each in self._buffer) < _SMALL_FILE_BYTES
            buffer = self._emptied()
            self._write(buffer, is_small=is_small)
        self.close()

    def abandon(self) -> None:
        """Close without completing, after an error."""
        if self._open is not None:
            self._open.abandon()
            self._open = None

    def _write(self, buffer: list[pa.RecordBatch], *, is_small: bool = False) -> None:
        """Write rows as a row group.

        :param is_small: whether the file of these rows stays small, if they begin one.
        """
        needed = self.required.union(*(each.schema.names for each in buffer))
        if not needed <= self._columns:
            self.close_file()
            self._columns |= needed
        if self._open is None:
            schema = pa.schema([each for each in self.schema if each.name in self._columns])
            path = f"{self.folder}/{file_name(self.kind, len(self.files))}"
            self._open = _OpenFile(self.area.create(path), path, self.kind, schema, is_small)
        self._open.write(buffer)
        if self._open.size_bytes >= FILE_BYTES:
            self.close_file()

    @property
    def has_open_file(self) -> bool:
        """Whether a file is open for more rows."""
        return self._open is not None

    def close_file(self) -> None:
        """Complete the open file, if there is one. Later rows go into another file."""
        if self._open is not None:
            self.files.append(self._open.close())
            self._open = None


def open_parquet(
    sink: pa.NativeFile, schema: pa.Schema, *, is_small: bool = False
) -> parquet.ParquetWriter:
    """Begin a staged file."""
    return parquet.ParquetWriter(
        sink,
        schema,
        version="2.6",
        compression="snappy" if is_small else "zstd",
        compression_level=None if is_small else 1,
        # In a column of a table few values repeat. In the leading columns they all do.
        use_dictionary=[name for name in schema.names if name in _DICTIONARY_NAMES],
        write_statistics=[name for name in schema.names if name in _LEADING_NAMES],
        store_schema=False,
    )


class _OpenFile:
    """One Parquet file being written."""

    def __init__(
        self, output: StagedOutput, path: str, kind: str, schema: pa.Schema, is_small: bool
    ) -> None:
        self._output = output
        self._path = path
        self._kind = kind
        self._schema = schema
        self._rows = 0
        self._lsns: tuple[int, int] | None = None
        # Arrow writes a small file in dozens of pieces. In memory they need no lock of Python's.
        self._memory = pa.BufferOutputStream() if is_small else None
        sink = self._memory or pa.PythonFile(output, mode="w")
        self._writer = open_parquet(sink, schema, is_small=is_small)

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._output.size_bytes

    def write(self, buffer: list[pa.RecordBatch]) -> None:
        """Write rows as one row group."""
        with storage_errors("write"):
            rows = pa.Table.from_batches([_completed(each, self._schema) for each in buffer])
            self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self._rows += rows.num_rows
        if COMMIT_LSN in self._schema.names and self._kind == "changes":
            # Rows are in the order of the stream, so in the order of their commits.
            lsns = rows.column(COMMIT_LSN)
            first, last = lsns[0].as_py(), lsns[-1].as_py()
            self._lsns = (self._lsns[0] if self._lsns else first, last)

    def close(self) -> StagedFile:
        """Complete the file and make it durable."""
        with storage_errors("write"):
            self._writer.close()
            if self._memory is not None:
                self._output.write(self._memory.getvalue())
            written = self._output.finish()
        lowest, highest = self._lsns or (None, None)
        return StagedFile(
            kind=self._kind,
            path=self._path,
            rows=self._rows,
            size_bytes=written.size_bytes,
            sha256=written.sha256,
            columns=tuple(self._schema.names),
            min_commit_lsn=None if lowest is None else str(Lsn(lowest)),
            max_commit_lsn=None if highest is None else str(Lsn(highest)),
        )

    def abandon(self) -> None:
        """Close the open file. The owner of the batch deletes the folder."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
            self._output.finish()


class WriterPool:
    """All writers of a batch. They share one budget, and one encoding thread until the end.

    :param memory_bytes: limit for rows that are buffered or wait to be encoded.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._budget = memory_bytes
        self._group_bytes = min(ROW_GROUP_BYTES, max(memory_bytes // 8, 1))
        self.writers: list[TableWriter] = []
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parquet")
        self._waiting: list[tuple[Future[None], int]] = []
        #: The sum of what the writers have buffered. With many writers it takes long to add it up again.
        self._buffered = 0
        #: Writers with an open file, the last used one at the end. Only the encoder uses it.
        self._open: dict[TableWriter, None] = {}

    def add(self, writer: TableWriter) -> TableWriter:
        """Let a writer share the budget."""
        self.writers.append(writer)
        return writer

    def append(self, writer: TableWriter, rows: pa.RecordBatch) -> None:
        """Buffer rows, and write if it is time."""
        before = writer.buffered_bytes
        writer.append(rows)
        self._buffered += writer.buffered_bytes - before
        if writer.buffered_bytes >= self._group_bytes:
            self._submit(writer)
        if self._buffered + self._in_flight > self._budget:
            self._make_room()

    def _make_room(self) -> None:
        """Join small blocks, then write the largest buffers, until there is some room again.

        Each call looks at all writers, so it must not run often.
        """
        enough = self._budget * 7 // 8
        for step in (self._join, self._submit):
            for writer in sorted(self.writers, key=lambda each: -each.buffered_bytes):
                if self._buffered + self._in_flight <= enough or not writer.buffered_bytes:
                    break
                step(writer)
        if self._buffered + self._in_flight > self._budget:
            self._wait(0)

    def _join(self, writer: TableWriter) -> None:
        before = writer.buffered_bytes
        writer.join_small_blocks()
        self._buffered += writer.buffered_bytes - before

    def finish_some(self, writers: Sequence[TableWriter]) -> None:
        """Write what these writers have buffered, complete their files, and release the writers."""
        for writer in writers:
            # Closed at once, so that not all of them are open at the same time.
            self._submit(writer, last=True)
        self._wait(0)
        finished = set(writers)
        self.writers = [each for each in self.writers if each not in finished]

    def drop(self, writers: Sequence[TableWriter]) -> None:
        """Forget the rows of these writers. Their files are not completed."""
        for writer in writers:
            self._buffered -= writer.buffered_bytes
            writer.take()
        self._wait(0)
        self._executor.submit(self._abandon, writers).result()
        dropped = set(writers)
        self.writers = [each for each in self.writers if each not in dropped]

    def finish(self) -> None:
        """Write everything that is buffered and complete all files, several at the same time."""
        self._wait(0)
        self._executor.shutdown()
        large = [each for each in self.writers if each.buffered_bytes >= _LARGE_BYTES]
        small = [each for each in self.writers if each.buffered_bytes < _LARGE_BYTES]
        self._buffered = 0
        _complete(large, _COMPLETED_AT_ONCE)
        _complete(small, _SMALL_COMPLETED_AT_ONCE)

    def abandon(self) -> None:
        """Stop, after an error."""
        self._executor.shutdown(cancel_futures=True)
        for writer in self.writers:
            writer.abandon()

    @property
    def _in_flight(self) -> int:
        return sum(size for future, size in self._waiting if not future.done())

    def _submit(self, writer: TableWriter, *, last: bool = False) -> None:
        """Let the encoder write what a writer has buffered. If it is the last, complete its file, too."""
        size = writer.buffered_bytes
        self._buffered -= size
        self._wait(_WAITING_GROUPS - 1)
        write = writer.take() if size else None
        self._waiting.append((self._executor.submit(self._encode, writer, write, last), size))

    def _encode(self, writer: TableWriter, write: Callable[[], None] | None, last: bool) -> None:
        """Runs in the encoder's thread. Only that thread opens and closes files."""
        self._open.pop(writer, None)
        if len(self._open) >= _OPEN_FILES:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.close_file()
        if write is not None:
            write()
        if last:
            writer.close()
        elif writer.has_open_file:
            self._open[writer] = None

    def _abandon(self, writers: Sequence[TableWriter]) -> None:
        for writer in writers:
            self._open.pop(writer, None)
            writer.abandon()

    def _wait(self, most: int) -> None:
        """Wait until at most ``most`` row groups are left for the encoder. Raise its error."""
        while self._waiting and (len(self._waiting) > most or self._waiting[0][0].done()):
            future, _ = self._waiting.pop(0)
            future.result()


def _complete(writers: Sequence[TableWriter], at_once: int) -> None:
    """Write what the writers have buffered and complete their files. Raise an error of one of them."""
    with ThreadPoolExecutor(at_once, thread_name_prefix="parquet") as executor:
        # The threads share the list. A future for each of thousands of small files would take too long.
        waiting = iter(writers)
        for future in [executor.submit(_complete_all, waiting) for _ in range(at_once)]:
            future.result()


def _complete_all(writers: Iterator[TableWriter]) -> None:
    for each in writers:
        each.complete()


def _owning(rows: pa.RecordBatch, most: int) -> pa.RecordBatch:
    """The same rows, copied as far as they keep more than ``most`` bytes of memory alive.

    The columns of a block are slices of columns that have the rows of all tables of a chunk. A slice keeps
    the whole column in memory.
    """
    share = most // rows.num_columns
    columns = [
        pa.concat_arrays([each]) if each.get_total_buffer_size() > share else each
        for each in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _completed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """``rows`` with the columns of ``schema``. A missing column is null, or false if it is a flag."""
    if rows.schema.names == schema.names:
        return pa.RecordBatch.from_arrays(rows.columns, schema=schema)
    present = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns = [
        present[each.name] if each.name in present else pa.nulls(rows.num_rows, each.type)
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
