"""What spark-submit starts to copy large tables: ``main.py --folder FOLDER``. It runs on Airflow's worker.

The folder is private to the worker's user. It holds the job, which is read and deleted at once, as the
source's password is in it; it receives a file for each table that is copied whole, and one that says why the
job failed. The worker holds the snapshot meanwhile. ``ranges.py`` does the work of one task.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import logging
import re
import sys
from collections import Counter
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from airflow_provider_pgoutput.batch.table_version import Counts
from airflow_provider_pgoutput.capture.copy_job import (
    FAILURE_FILE,
    JOB_FILE,
    CopyJob,
    Failure,
    copied_file,
    refused_file,
)
from airflow_provider_pgoutput.capture.source.progress_log import CopyProgress
from airflow_provider_pgoutput.capture.staging.copied_table import CopiedTable
from airflow_provider_pgoutput.errors import ConfigurationError, PgoutputError, SparkFailed
from airflow_provider_pgoutput.parent_watch import die_with_parent
from airflow_provider_pgoutput.spark_copy.ranges import AddUp, DoneSoFar, copy_range, failure_of

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast

log = logging.getLogger(__name__)

OK = 0
FAILED = 1

#: Tables whose ranges are tasks at the same time: the next begins when the last tasks of one leave room.
_TABLES_AT_ONCE = 2
_SECONDS_BETWEEN_REPORTS = 10.0
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


def main(arguments: list[str] | None = None) -> int:
    """Copy the tables of the job in ``--folder``; return the exit status."""
    parser = argparse.ArgumentParser(description="Copy large tables in an exported snapshot.")
    parser.add_argument("--folder", required=True, type=Path, help="the folder of the job")
    folder = parser.parse_args(arguments).folder
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    die_with_parent(FAILED)
    job_file = folder / JOB_FILE
    job = CopyJob.from_json(job_file.read_text(encoding="utf-8"))
    job_file.unlink()
    context = SparkContext.getOrCreate()
    try:
        _Copy(context, job, folder).run()
    except PgoutputError as error:
        log.error("%s: %s", type(error).__name__, error)
        _write_whole(folder / FAILURE_FILE, Failure.of(error).to_json())
        return FAILED
    finally:
        context.stop()
    return OK


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
        self._reported = [DoneSoFar()] * len(job.tables)

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
                raise _missing_package(str(error)) or _unnamed(error, table.name) from None
            if not failure.is_of_table:
                raise failure.to_error() from None
            log.warning("%s is not copied, and the others go on. %s", table.name, failure.message)
            _write_whole(self._folder / refused_file(table.relation_oid), failure.to_json())
            return
        copied = CopiedTable(
            relation_oid=table.relation_oid,
            files=tuple(file for each in done for file in each.files),
            rejected_files=tuple(file for each in done for file in each.rejected_files),
            counts=sum((each.counts for each in done), Counts()),
            read_bytes=sum(each.read_bytes for each in done),
        )
        _write_whole(self._folder / copied_file(table.relation_oid), copied.to_json())
        executors = Counter(each.executor for each in done)
        log.info(
            "%s: %s rows in %d parts, by %d executor(s).",
            table.name,
            f"{copied.counts.copied:,}",
            count,
            len(executors),
        )

    def _report(self) -> None:
        """Take note of what was done since the last time; a line follows when it is time for one."""
        rows = read_bytes = 0
        for number, table in enumerate(self._job.tables):
            done, before = self._done[number].value, self._reported[number]
            self._reported[number] = done
            self._progress.part(table.table.name, (done.ranges - before.ranges) / len(table.ranges))
            rows += done.rows - before.rows
            read_bytes += done.read_bytes - before.read_bytes
        self._progress.rows(rows, read_bytes)


def _missing_package(message: str) -> PgoutputError | None:
    """The error for a package that the executors lack; None: the job failed for another reason."""
    if missing := _MISSING_MODULE.search(message):
        return ConfigurationError(
            f"The executors' Python lacks the package {missing[1].partition('.')[0]}.",
            advice="install what docs/how-to/copy_with_spark.md lists on the executors, and name that"
            " Python as spark.pyspark.python in spark_copy_conf.",
        )
    return None


def _unnamed(error: Py4JJavaError, table: str) -> SparkFailed:
    """An error for what has no name here; what Java says of it may quote a value."""
    return SparkFailed(
        f"Spark failed while it copied the table: {error.java_exception.getClass().getName()}.",
        table=table,
        advice="nothing, if executors or memory were lost: the next try copies what is not sealed. If it"
        " lasts, see the log of Spark's executors.",
    )


def _write_whole(path: Path, text: str) -> None:
    """Write a file that the worker sees whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.rename(path)


if __name__ == "__main__":
    sys.exit(main())
