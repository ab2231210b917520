"""Large tables of a copy, which another engine reads in the snapshot that this process holds.

The engine writes files below a table's folder. No two of its tasks share a folder. At the end it says which
files count. ``copy_job.py`` says what the engine is asked to do. ``stage.py`` seals the tables, and copies
smaller ones in this process.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from airflow_provider_pgoutput.batch.answers import SET_ASIDE
from airflow_provider_pgoutput.capture.copy.plan import block_ranges
from airflow_provider_pgoutput.capture.copy.read import RefusedCopy
from airflow_provider_pgoutput.capture.copy_job import CopiedSoFar, CopyJob, RefusedTable, TableJob
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from airflow_provider_pgoutput.capture.copy.plan import TableStorage
    from airflow_provider_pgoutput.capture.copy.read import TableCopy
    from airflow_provider_pgoutput.capture.copy_job import BlockRange, FromEngine
    from airflow_provider_pgoutput.capture.request import CaptureRequest
    from airflow_provider_pgoutput.capture.server import PostgresSource
    from airflow_provider_pgoutput.capture.staging.copied_table import CopiedTable

#: A table is read in parts of about this size on the server's disk. Each part becomes a file or more. The
#: parts are larger than those that this process reads, because each costs the engine a task and a session at
#: the source.
PART_BYTES = 256 << 20


class TableElsewhere(NamedTuple):
    """A table that the other engine copied; see ``check``."""

    table_copy: TableCopy
    copied: CopiedTable


class PartElsewhere(NamedTuple):
    """How far the other engine is with a table."""

    table_copy: TableCopy
    so_far: CopiedSoFar


FromElsewhere: TypeAlias = "TableElsewhere | PartElsewhere | RefusedCopy"


def is_elsewhere(request: CaptureRequest, storage: TableStorage) -> bool:
    """Whether the other engine shall copy a table."""
    engine = request.copy_engine
    return engine is not None and storage.size_bytes >= engine.least_bytes


def ranges(request: CaptureRequest, storage: TableStorage) -> list[BlockRange]:
    """Cut a table into ranges that suit its reader."""
    return block_ranges(storage, PART_BYTES if is_elsewhere(request, storage) else None)


@contextlib.contextmanager
def copied_elsewhere(
    source: PostgresSource,
    snapshot_name: str,
    table_copies: Sequence[TableCopy],
    storage: Mapping[int, TableStorage],
) -> Iterator[Generator[FromElsewhere, None, None]]:
    """Start to copy tables with the other engine.

    Each table is yielded when the engine says that it is copied, and before that how far it is. If one cannot
    be copied, the others go on, as far as tables may be set aside.

    :param table_copies: at least one.
    :param storage: how large the tables are, by OID.
    :raises SnapshotLost: the snapshot does not exist any more.
    """
    engine, request = source.request.copy_engine, source.request
    assert engine is not None, "a table is elsewhere only where there is an engine"
    by_oid = {each.table.relation_oid: each for each in table_copies}
    job = CopyJob(
        snapshot_name=snapshot_name,
        staging_uri=source.area.staging_uri,
        policy=request.policy,
        types=source.describer.types_of([each.table for each in table_copies]),
        memory_mib=request.memory_mib,
        tables=tuple(
            TableJob(
                each.table,
                each.staged.versions[-1].version,
                _folder(each),
                tuple(each.ranges),
                storage[each.table.relation_oid].size_bytes,
            )
            for each in table_copies
        ),
        goes_on=request.on_table_refused == SET_ASIDE,
        conninfo=request.direct,
    )
    with engine.started(job) as found:
        yield (_of_table(by_oid[each.relation_oid], each) for each in found)


def _of_table(table_copy: TableCopy, found: FromEngine) -> FromElsewhere:
    if isinstance(found, RefusedTable):
        return RefusedCopy(table_copy, found.error)
    if isinstance(found, CopiedSoFar):
        return PartElsewhere(table_copy, found)
    return TableElsewhere(table_copy, found)


def _folder(table_copy: TableCopy) -> str:
    writer = table_copy.staged.versions[-1].copy_writer
    assert writer is not None, "the table was added to the batch"
    return writer.folder


def check(source: PostgresSource, table_copy: TableCopy, copied: CopiedTable) -> None:
    """Check a table's files, and delete files of tasks that died or ran twice.

    :raises ConfigurationError: the engine's files are not in the staging area as this process sees it.
    """
    files, folder = (*copied.files, *copied.rejected_files), _folder(table_copy)
    sizes = source.area.sizes([each.path for each in files])
    inside = all(each.path.startswith(f"{folder}/") for each in files)
    if not inside or sizes != [each.size_bytes for each in files]:
        raise ConfigurationError(
            "Files that the executors wrote are not in the staging area as this worker sees it.",
            slot=source.request.slot_name,
            table=table_copy.table.name,
            advice="use a staging_uri that leads Airflow's workers and all executors to the same place.",
        )
    named = {each.path for each in files}
    for entry in source.area.entries(folder, recursive=True):
        if entry.path not in named:
            source.area.delete_file(entry.path)
