"""The driver of the Spark job that hashes the lake's files. spark-submit starts ``main.py --folder FOLDER``.

It runs on Airflow's worker. It puts the files into groups, and each Spark task hashes one group
(``files.py``). If a task fails, there is no answer. An answer has the digests of all files.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError

from airflow_provider_pgoutput.errors import SparkFailed
from airflow_provider_pgoutput.proof.digest import Digest
from airflow_provider_pgoutput.proof.files.file_hash import ANSWER_FILE, HashedFiles, HashJob
from airflow_provider_pgoutput.proof.files.lake_files import LakeFiles
from airflow_provider_pgoutput.spark_driver import (
    JobFailed,
    failure_of,
    other_failure,
    run_driver,
    write_whole,
)
from airflow_provider_pgoutput.spark_proof.files import hash_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark import SparkContext

    from airflow_provider_pgoutput.spark_proof.files import NamedFile

log = logging.getLogger(__name__)

#: About how many bytes of files a task hashes. If there are fewer, each core of the cluster gets some tasks.
_BYTES: Final = 64 << 20
_TASKS_OF_A_CORE: Final = 4
#: How many tasks a job has at most: the driver adds up what all of them return.
_MOST_TASKS: Final = 1_000


def main(arguments: list[str] | None = None) -> int:
    """Hash the files of the job in ``--folder``; return the exit status."""
    return run_driver("Hash files of the lake.", _run, arguments)


def _run(context: SparkContext, text: str, folder: Path) -> None:
    write_whole(folder / ANSWER_FILE, hashed(context, HashJob.from_json(text)).to_json())


def hashed(context: SparkContext, job: HashJob) -> HashedFiles:
    """The digests of all files of a job.

    :raises JobFailed: a task failed with an error of ours.
    :raises PgoutputError: a task failed for another reason, or the snapshot has other files than before.
    """
    wanted, what = set(job.files), job.what
    planned = LakeFiles(job.table(), job.snapshot_id, what.fields, what.part, what.own).named()
    files = [each for each in planned if each[0] in wanted]
    if len(files) != len(wanted):
        raise SparkFailed("The snapshot has other files than before.", table=job.target)
    groups = _grouped(files, context.defaultParallelism)
    # The password of the store travels in the tasks, because Spark may write a broadcast to disk.
    shared = context.broadcast(dataclasses.replace(job, store={}, files=()).to_json())
    of_group = functools.partial(hash_files, shared, dict(job.store))
    try:
        done = context.parallelize(groups, len(groups)).map(of_group).collect()
    except Py4JJavaError as error:
        failure = failure_of(str(error))
        if failure is not None:
            raise JobFailed(failure) from None
        raise other_failure(
            error, "hashed the files of the table", job.target, "verify.md", "spark_conf"
        ) from None
    log.info(
        "%s: %d files hashed in %d parts, by %d executor(s).",
        job.target,
        len(files),
        len(groups),
        len({each.executor for each in done}),
    )
    digests = {name: Digest(rows, total) for each in done for name, rows, total in each.files}
    return HashedFiles(digests, sum((each.ranges for each in done), what.empty))


def _grouped(files: Sequence[NamedFile], cores: int) -> list[list[NamedFile]]:
    """The files of each task."""
    sizes = [file.file.file_size_in_bytes for _, file in files]
    least = max(min(_BYTES, sum(sizes) // (_TASKS_OF_A_CORE * cores)), sum(sizes) // _MOST_TASKS)
    groups: list[list[NamedFile]] = []
    filled = least
    for file, size in zip(files, sizes, strict=True):
        if filled >= least:
            groups.append([])
            filled = 0
        groups[-1].append(file)
        filled += size
    return groups


if __name__ == "__main__":
    sys.exit(main())
