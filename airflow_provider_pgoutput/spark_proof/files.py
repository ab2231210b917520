"""What one Spark task does: it hashes some files of the lake, by the code that the worker uses, too."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyiceberg

from airflow_provider_pgoutput.capture.copy_job import Failure
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import ConfigurationError, PgoutputError
from airflow_provider_pgoutput.lake.failures import lake_failure
from airflow_provider_pgoutput.proof.files.file_hash import HashJob
from airflow_provider_pgoutput.proof.files.lake_damage import DataFileFailure
from airflow_provider_pgoutput.proof.files.lake_files import LakeFiles
from airflow_provider_pgoutput.spark_driver import TaskFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.table import FileScanTask
    from pyspark import Broadcast

    from airflow_provider_pgoutput.proof.ranges import Ranges

    NamedFile: TypeAlias = tuple[str, FileScanTask]


class HashedGroup(NamedTuple):
    """The result of a task."""

    #: The name of each file, with the number of its rows and the sum of their hashes.
    files: list[tuple[str, int, int]]
    #: The digests of the ranges, of all its files together.
    ranges: Ranges
    #: The host and the parent of this process: an executor has one such parent. So it names the executor.
    executor: str


def hash_files(
    shared: Broadcast[str], store: Mapping[str, str], files: Sequence[NamedFile]
) -> HashedGroup:
    """Hash some files.

    :param shared: the job as text, without ``store`` and ``files``.
    :param store: how the files are opened; see ``HashJob.store``.
    :param files: with their names.
    :raises TaskFailed: for any ``PgoutputError``; ``failure_of`` finds it again in Spark's message.
    """
    job, name = HashJob.from_json(shared.value), ""
    what, digests = job.what, []
    found = what.empty
    try:
        _check_version(job)
        reader = LakeFiles(job.table(store), job.snapshot_id, what.fields, what.part, what.own)
        for name, file in files:
            ranges = what.of_rows(map(what.current, reader.of_file(file)))
            digest = ranges.digest
            digests.append((name, digest.rows, digest.total))
            found += ranges
            reach("hash.after_file")
    except DataFileFailure as failed:
        cause = failed.__cause__
        assert isinstance(cause, Exception), "it is raised from the first failure"
        error = lake_failure(cause, "An executor cannot read a file of the table", job.target)
        failure = Failure(type(error).__name__, str(error), file=name)
        raise TaskFailed.of(failure) from None
    except PgoutputError as error:
        raise TaskFailed.of(Failure.of(error)) from None
    return HashedGroup(digests, found, f"{socket.gethostname()}:{os.getppid()}")


def _check_version(job: HashJob) -> None:
    """Refuse another pyiceberg than the worker's: it may turn the columns of a file into others.

    :raises ConfigurationError: the version is another one.
    """
    if pyiceberg.__version__ != job.pyiceberg:
        raise ConfigurationError(
            f"The executors have pyiceberg {pyiceberg.__version__}, and the worker {job.pyiceberg}.",
            advice="install the same version on both.",
        )
