"""Hashes the lake's files of large tables with Spark jobs. The task that starts them holds the snapshot.

The Spark application is in ``spark_proof/``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.errors import PgoutputError, SparkFailed
from airflow_provider_pgoutput.spark_submit.local_driver import LocalDriver

if TYPE_CHECKING:
    from airflow_provider_pgoutput.proof.files.file_hash import HashedFiles, HashJob

_AGAIN = (
    "nothing, if a machine or memory was lost: the next try verifies again. If it lasts, see the log of the"
    " job."
)


@dataclass(slots=True)
class SparkHash(LocalDriver):
    """A ``HashEngine``: one Spark job for each large table."""

    def hashed(self, job: HashJob) -> HashedFiles:
        """Submit the job and wait for its end; see ``HashEngine``."""
        from airflow_provider_pgoutput.capture.copy_job import FAILURE_FILE, Failure
        from airflow_provider_pgoutput.proof.files.file_hash import (
            ANSWER_FILE,
            FileNotRead,
            HashedFiles,
        )
        from airflow_provider_pgoutput.spark_submit.files import HASH

        with self.submitted(HASH, job.to_json()) as submission:
            submission.join()
            answer, failed = submission.folder / ANSWER_FILE, submission.folder / FAILURE_FILE
            if failed.exists():
                failure = Failure.from_json(failed.read_text("utf-8"))
                if failure.file:
                    raise FileNotRead(failure.file) from failure.to_error()
            # An answer is whole. But a job that failed after it wrote the answer is no reason to believe it.
            if submission.error is None and answer.exists():
                return HashedFiles.from_json(answer.read_text("utf-8"))
            error = submission.failure("hashed")
        if isinstance(error, SparkFailed):
            raise error
        # Whatever it is, it is of no table: the verification ends.
        message, advice = str(error), _AGAIN
        if isinstance(error, PgoutputError):
            message, advice = error.message, error.advice or _AGAIN
        raise SparkFailed(
            f"The job did not hash the files: {message}", table=job.target, advice=advice
        )
