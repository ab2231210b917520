"""One task of the copy: reads a range of a table in the exported snapshot and writes staged files.

It runs on an executor with capture's reader, casters and writers, so values and files are the same as
capture's own. Each task writes below a folder of its own. So a task that is repeated, or runs twice, meets no
other task's files. The result names only the files of the attempt whose result Spark accepts. ``main.py`` is
the driver.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark import AccumulatorParam

from airflow_provider_pgoutput.batch.table_version import Counts
from airflow_provider_pgoutput.capture.copy.read import (
    CopiedRows,
    RefusedCopy,
    TableCopy,
    copy_tables,
)
from airflow_provider_pgoutput.capture.copy_job import Failure
from airflow_provider_pgoutput.capture.describe import copy_caster
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.rejected import SCHEMA as REJECTED_SCHEMA
from airflow_provider_pgoutput.capture.staging.sent_values import Casters
from airflow_provider_pgoutput.capture.staging.tables import (
    StagedTable,
    StagedVersion,
    copied_counts,
)
from airflow_provider_pgoutput.capture.staging.writers import TableWriter, WriterPool
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import PgoutputError
from airflow_provider_pgoutput.spark_driver import TaskFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark import Accumulator, Broadcast

    from airflow_provider_pgoutput.batch.table_version import StagedFile
    from airflow_provider_pgoutput.capture.copy_job import BlockRange, CopyJob, TableJob


@dataclasses.dataclass(frozen=True, slots=True)
class CopiedRange:
    """A range whose rows are all in complete and durable files."""

    files: tuple[StagedFile, ...]
    rejected_files: tuple[StagedFile, ...]
    counts: Counts
    read_bytes: int
    #: Host, and the process that starts an executor's Python workers. It stands for one executor.
    executor: str


class DoneSoFar(NamedTuple):
    """What the tasks of a table have done, as far as Spark counted it."""

    ranges: int = 0
    rows: int = 0
    read_bytes: int = 0


class AddUp(AccumulatorParam[DoneSoFar]):
    """Shows the driver what is done while tasks run. Each task adds its own part, once."""

    def zero(self, value: DoneSoFar) -> DoneSoFar:
        """Where a task begins."""
        return DoneSoFar()

    def addInPlace(self, value1: DoneSoFar, value2: DoneSoFar) -> DoneSoFar:  # noqa: N802
        """The sum."""
        return DoneSoFar(*map(sum, zip(value1, value2, strict=True)))


class _TableRefused(Exception):
    """The table cannot be copied, and the others go on."""

    def __init__(self, error: PgoutputError) -> None:
        super().__init__(str(error))
        self.error = error


def copy_range(
    shared: Broadcast[CopyJob],
    conninfo: str | Mapping[str, Any],
    done: Accumulator[DoneSoFar],
    table_number: int,
    range_number: int,
) -> CopiedRange:
    """Copy a range of a table.

    :param shared: the job without the source's connection parameters.
    :param conninfo: the parameters. They travel in the task itself, as Spark may write a broadcast to disk.
    :param done: counts the range when it is copied.
    :raises TaskFailed: for any ``PgoutputError``; ``failure_of`` finds it again in Spark's message.
    """
    job = shared.value
    table = job.tables[table_number]
    try:
        copied = _Range(job, table).copy(conninfo, table.ranges[range_number])
    except (PgoutputError, _TableRefused) as raised:
        is_of_table = isinstance(raised, _TableRefused)
        error = raised.error if isinstance(raised, _TableRefused) else raised
        raise TaskFailed.of(Failure.of(error, is_of_table=is_of_table)) from None
    done += DoneSoFar(1, copied.counts.copied, copied.read_bytes)
    return copied


class _Range:
    """Reads one range into files of its own."""

    def __init__(self, job: CopyJob, table: TableJob) -> None:
        self._job = job
        self._table = table
        self._area = StagingArea(job.staging_uri)
        self._folder = f"{table.folder}/{uuid.uuid4().hex}"
        caster = functools.partial(copy_caster, types=job.types)
        oid = table.table.relation_oid
        version = StagedVersion.of(oid, table.version, job.policy, Casters(caster, caster))
        self._staged = StagedTable(oid, [version])
        self._pool = WriterPool(job.memory_mib << 20)
        self._rows = self._writer("copy", pa.schema(version.new_fields))
        self._rejected = self._writer("rejected", REJECTED_SCHEMA)

    def copy(self, conninfo: str | Mapping[str, Any], blocks: BlockRange) -> CopiedRange:
        """Read all rows of the range and complete their files."""
        table_copy = TableCopy(self._table.table, self._staged, [blocks])
        counts, read_bytes = Counts(), 0
        try:
            parts = copy_tables(
                conninfo, self._job.snapshot_name, [table_copy], 1, goes_on=self._job.goes_on
            )
            for part in parts:
                if isinstance(part, RefusedCopy):
                    raise _TableRefused(part.error)
                if isinstance(part, CopiedRows):
                    counts += self._keep(part)
                    read_bytes += part.rows.nbytes
            self._pool.finish()
        except BaseException:
            self._pool.abandon()
            self._area.delete_folder(self._folder)
            raise
        reach("copy.after_range")
        if self._rows.files:
            self._area.sync(self._folder)
        return CopiedRange(
            files=tuple(self._rows.files),
            rejected_files=tuple(self._rejected.files),
            counts=counts,
            read_bytes=read_bytes,
            executor=f"{socket.gethostname()}:{os.getppid()}",
        )

    def _keep(self, part: CopiedRows) -> Counts:
        """Write rows, and the values that do not fit their columns."""
        self._pool.append(self._rows, part.rows)
        for each in part.rejected:
            self._pool.append(self._rejected, each)
        return copied_counts(self._table.version, part.rows, part.rejected)

    def _writer(self, kind: str, schema: pa.Schema) -> TableWriter:
        names = frozenset(schema.names)
        return self._pool.add(TableWriter(self._area, self._folder, kind, schema, names))
