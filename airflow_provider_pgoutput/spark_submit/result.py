"""Reads what the Spark application left beside the file of its job: its result, or why it failed.

Spark's exit status says too little, and on a cluster the worker does not have Spark's log. ``apply/main.py``
writes the file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.exit_status import COPY_AGAIN, FATAL, RETRYABLE
from airflow_provider_pgoutput.errors import ConfigurationError, LakeUnavailable, error_named

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.errors import PgoutputError


def job_result(area: StagingArea, job_path: str) -> dict[str, Any] | None:
    """The result of a job; None: it left none.

    :raises LakeUnavailable: the staging area does not answer, or the file is damaged.
    """
    path = job_path.removesuffix(".json") + ".result.json"
    folder, _, name = path.rpartition("/")
    if name not in area.names(folder):
        return None
    try:
        found = json.loads(area.read(path))
    except ValueError as error:
        raise LakeUnavailable(f"The result of the job at {area.uri(path)} is damaged.") from error
    if not isinstance(found, dict):
        raise LakeUnavailable(f"The result of the job at {area.uri(path)} is damaged.")
    return found


def demanded(result: dict[str, Any] | None) -> dict[str, Any]:
    """The result of a job. Only the job itself knows it.

    :raises LakeUnavailable: there is no result. The job may still run, or may never have begun.
    """
    if result is None:
        raise LakeUnavailable(
            "spark-submit ended without an error, and the job left no result.",
            advice="let spark-submit wait for the job's end (spark.yarn.submit.waitAppCompletion), and let"
            " the job write to the staging area; look into Spark's log before you run it again.",
        )
    return result


def job_failure(result: dict[str, Any] | None) -> PgoutputError | None:
    """The error that ended the job, in its own class; None: the job did not say.

    :param result: what the job left; None: nothing.
    """
    if result is None or result.get("status") != "failed":
        return None
    return error_named(str(result.get("error")), str(result.get("message")))


def failure_of_status(status: int | None) -> PgoutputError | None:
    """The error for a job that could not leave its result, from its exit status; None: it says nothing.

    :param status: the job's own. spark-submit passes it on if the driver is its child.
    """
    if status == RETRYABLE:
        return LakeUnavailable(
            "The Spark job could not leave its result in the staging area; by its exit status another"
            " try can help.",
            advice="see the task's log, where the job says what happened.",
        )
    if status in (FATAL, COPY_AGAIN):
        return ConfigurationError(
            "The Spark job could not leave its result in the staging area; by its exit status no other"
            " try helps.",
            advice="see the task's log, where the job says what happened. Spark's user has to read and write"
            " the staging area.",
        )
    return None
