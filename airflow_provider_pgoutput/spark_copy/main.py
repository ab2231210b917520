"""What spark-submit starts to copy large tables: ``main.py --folder FOLDER``. It runs on Airflow's worker.

The folder is private to the worker's user. It holds the job, which is read and deleted at once, as the
source's password is in it; it receives a file for each table that is copied whole, one that says how far the
others are, and one that says why the job failed. The worker holds the snapshot meanwhile. ``ranges.py`` does
the work of one task.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import sys
from collections import Counter
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from airflow_provider_pgoutput.batch.table_version import Counts
from airflow_provider_pgoutput.capture.copy_job import (
    PROGRESS_FILE,
    CopiedSoFar,
    CopyJob,
    copied_file,
    refused_file,
)
from airflow_provider_pgoutput.capture.source.progress_log import CopyProgress
from airflow_provider_pgoutput.capture.staging.copied_table import CopiedTable
from airflow_provider_pgoutput.spark_copy.ranges import AddUp, DoneSoFar, copy_range
from airflow_provider_pgoutput.spark_driver import (
    failure_of,
    other_failure,
    run_driver,
    write_whole,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark import Accumulator, Broadcast, SparkContext

log = logging.getLogger(__name__)

#: Tables whose ranges are tasks at the same time: the next begins when the last tasks of one leave room.
_TABLES_AT_ONCE = 2
_SECONDS_BETWEEN_REPORTS = 10.0


def main(arguments: list[str] | None = None) -> int:
    """Copy the tables of the job in ``--folder``; return the exit status."""

    def run(context: SparkContext, text: str, folder: Path) -> None:
        _Copy(context, CopyJob.from_json(text), folder).run()

    return run_driver("Copy large tables in an exported snapshot.", run, arguments)


class _Copy:
    """The tables of a job, each a Spark job of as many tasks as it has ranges."""

    def __init__(self, context: SparkContext, job: CopyJob, folder: Path) -> None:
        self._context = context
        self._job = job
        self._folder = folder
        shared = dataclasses.replace(job, conninfo="")
        self._shared: Broadcast[CopyJob] = context.broadcast(shared)
        self._progress = CopyProgress({each.table.name: each.size_bytes for each in job.tables})
        self._done: list[Accumulator[DoneSoFar]] = [
            context.accumulator(DoneSoFar(), AddUp()) for _ in job.tables
        ]

    def run(self) -> None:
        """Copy all tables.

        :raises PgoutputError: what ended a task, in its own class.
        """
        with ThreadPoolExecutor(_TABLES_AT_ONCE, thread_name_prefix="table") as pool:
            waiting = {
                pool.submit(self._copy_table, number) for number in range(len(self._job.tables))
            }
            while waiting:
                done, waiting = wait(waiting, _SECONDS_BETWEEN_REPORTS, FIRST_EXCEPTION)
                try:
                    for each in done:
                        each.result()
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    self._context.cancelAllJobs()
                    raise
                self._report()
        self._progress.done()

    def _copy_table(self, number: int) -> None:
        table = self._job.tables[number].table
        count = len(self._job.tables[number].ranges)
        copy = functools.partial(
            copy_range, self._shared, self._job.conninfo, self._done[number], number
        )
        try:
            done = self._context.parallelize(range(count), count).map(copy).collect()
        except Py4JJavaError as error:
            failure = failure_of(str(error))
            if failure is None:
                raise other_failure(
                    error, "copied the table", table.name, "copy_with_spark.md", "spark_copy_conf"
                ) from None
            if not failure.is_of_table:
                raise failure.to_error() from None
            log.warning("%s is not copied, and the others go on. %s", table.name, failure.message)
            write_whole(self._folder / refused_file(table.relation_oid), failure.to_json())
            return
        copied = CopiedTable(
            relation_oid=table.relation_oid,
            files=tuple(file for each in done for file in each.files),
            rejected_files=tuple(file for each in done for file in each.rejected_files),
            counts=sum((each.counts for each in done), Counts()),
            read_bytes=sum(each.read_bytes for each in done),
        )
        write_whole(self._folder / copied_file(table.relation_oid), copied.to_json())
        executors = Counter(each.executor for each in done)
        log.info(
            "%s: %s rows in %d parts, by %d executor(s).",
            table.name,
            f"{copied.counts.copied:,}",
            count,
            len(executors),
        )

    def _report(self) -> None:
        """Take note of what was done. A line follows when it is time for one, and the worker is told."""
        told = []
        for table, done in zip(self._job.tables, (each.value for each in self._done), strict=True):
            share = done.ranges / len(table.ranges)
            self._progress.so_far(table.table.name, share, done.rows, done.read_bytes)
            told.append(CopiedSoFar(table.table.relation_oid, share, done.rows, done.read_bytes))
        body = json.dumps([dataclasses.asdict(each) for each in told])
        write_whole(self._folder / PROGRESS_FILE, body)


if __name__ == "__main__":
    sys.exit(main())
