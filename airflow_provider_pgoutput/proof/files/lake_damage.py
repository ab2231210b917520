"""Finds out whether a failed read is the damage of one table: a file of it is missing or damaged.

A failure alone proves nothing: the store may be out, or the snapshot may have expired. So the worker
looks for itself. The table's newest metadata file must be readable and still have the snapshot. The file must
lie in the table's folder, and one of these must hold:

* the store says that the file is missing;
* the file has another size than Iceberg noted;
* a data file does not end as a Parquet file, or its bytes cannot be decoded.

``apply/iceberg/damage.py`` does this in Spark's driver. It looks only at files of the newest snapshot and
does not decode them.
"""

from __future__ import annotations

import logging
import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_pgoutput.batch.lake_causes import ENCRYPTION_KEY, lies_in
from airflow_provider_pgoutput.errors import TableDamaged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyiceberg.io import FileIO, InputFile, InputStream
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot

log = logging.getLogger(__name__)

_PARQUET = ".parquet"
_BYTES_AT_ONCE, _ROWS_AT_ONCE = 1 << 20, 1_024
_LOOKS_AT_ONCE = 8
#: The name of a metadata file in a sentence of pyiceberg or Arrow.
_METADATA_FILE = re.compile(r"""[^/\\\s'"]+\.json(?:\.gz)?\b""")


class DataFileFailure(Exception):
    """A data file, or its file of deletes, cannot be read. The cause is its ``__cause__``.

    The cause is one of our errors if another process failed to read the file.
    """

    def __init__(self, task: FileScanTask) -> None:
        super().__init__()
        self.task = task


class _File(NamedTuple):
    path: str
    #: None: Iceberg did not note it.
    size_bytes: int | None


def damage(table: Table, snapshot_id: int, target: str, error: Exception) -> TableDamaged | None:
    """The error for a table with a file that is missing or damaged; None: the failure is something else.

    :param snapshot_id: of the snapshot that was read.
    :param target: ``namespace.table``.
    :param error: what the read raised.
    """
    try:
        # Reads the newest metadata file, so the store answers.
        now = table.refresh()
        snapshot = now.snapshot_by_id(snapshot_id)
        if snapshot is None or ENCRYPTION_KEY in now.properties:
            return None
        for file in _suspects(now.io, snapshot, error):
            is_inside = lies_in(now.location(), file.path)
            if is_inside and (what := _damage_of(now.io, file, error)):
                return TableDamaged.of_file(file.path, what, target)
    except Exception as why:
        # The look itself failed. So the first failure is reported as it is.
        log.warning(
            "%s: whether a file of it is damaged is not known: %s", target, type(why).__name__
        )
    return None


def check_lengths(io: FileIO, tasks: Iterable[FileScanTask]) -> None:
    """Look whether files that are not read are there, and have their lengths. It is one request for each.

    :raises DataFileFailure: a file is missing, or has another length.
    """
    lengths: dict[str, int] = {}
    task_of: dict[str, FileScanTask] = {}
    for task in tasks:
        for each in (task.file, *task.delete_files):
            lengths[each.file_path] = each.file_size_in_bytes
            task_of[each.file_path] = task

    def check(path: str) -> None:
        try:
            found = len(io.new_input(path))
            if found != lengths[path]:
                raise OSError("The file has another length.")
        except Exception as error:
            raise DataFileFailure(task_of[path]) from error

    with ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="length") as pool:
        for _ in pool.map(check, lengths):
            pass


def metadata_missing(target: str, error: FileNotFoundError) -> TableDamaged:
    """The error for a table whose newest metadata file is missing."""
    names = _METADATA_FILE.findall(str(error))
    return TableDamaged.of_file(names[0] if names else "of its metadata", "is missing", target)


def _suspects(io: FileIO, snapshot: Snapshot, error: Exception) -> Iterator[_File]:
    """The file that could not be read; else the files of metadata, which lead to all others."""
    if isinstance(error, DataFileFailure):
        for each in (error.task.file, *error.task.delete_files):
            yield _File(each.file_path, each.file_size_in_bytes)
        return
    yield _File(snapshot.manifest_list, None)
    for manifest in snapshot.manifests(io):
        yield _File(manifest.manifest_path, manifest.manifest_length)


def _damage_of(io: FileIO, file: _File, error: Exception) -> str | None:
    """What is wrong with a file, in words; None: nothing, as far as this function can see."""
    found = io.new_input(file.path)
    if not found.exists():
        return "is missing"
    if file.size_bytes not in {None, len(found)}:
        return f"has {len(found)} bytes in place of {file.size_bytes}"
    if not file.path.endswith(_PARQUET):
        return None
    with found.open() as stream:
        try:
            pq.read_metadata(stream)
        except pa.ArrowInvalid:
            return "is no Parquet file any more"
    is_data = isinstance(error, DataFileFailure) and error.task.file.file_path == file.path
    return "cannot be decoded" if is_data and not _is_decodable(found) else None


def _is_decodable(file: InputFile) -> bool:
    """Whether the rows of a Parquet file can be decoded.

    :raises Exception: the store does not give all of its bytes.
    """
    with file.open() as stream:
        watched = _Watched(stream)
        try:
            with pq.ParquetFile(watched, buffer_size=_BYTES_AT_ONCE, pre_buffer=False) as parquet:
                for _ in parquet.iter_batches(_ROWS_AT_ONCE):
                    pass
        except (pa.ArrowInvalid, OSError):
            # Arrow's exceptions for damaged bytes and for a silent store are the same.
            if watched.has_failed:
                raise
            return False
    return True


class _Watched:
    """A file that remembers whether the store failed to give bytes of it."""

    def __init__(self, stream: InputStream) -> None:
        self._stream = stream
        self.has_failed = False
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size)
        except Exception:
            self.has_failed = True
            raise

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        self.closed = True
