"""An apply that also tries tables again that are set aside for a cause that may be gone.

Example: the catalog forbade to write to table ``t``. The batches that ``t`` lacks are staged. After each batch
that the others get, ``t`` is tried with the first batch that it lacks. As soon as the right is there, ``t``
gets all of them, this batch too, and is one of the others again. The catch-up of a replay does the work.

A table that is refused again, or whose batches cannot be read, stays set aside. The others have their batch
then already, so the apply ends well.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.pipeline import SPARK, apply_batch
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.batch.jobs import ReplayJob, WriteJob
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import PgoutputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.pipeline import ApplyResult, RowWork
    from airflow_provider_pgoutput.batch.jobs import ApplyJob

logger = logging.getLogger(__name__)


def apply_and_bring_back(spark: SparkSession, job: ApplyJob, work: RowWork = SPARK) -> ApplyResult:
    """Apply a batch, and then try the tables again that the job names.

    :param work: reads and writes rows.
    :raises PgoutputError: as ``apply_batch``. A table that cannot come back raises nothing.
    """
    result = apply_batch(spark, job, work)
    if job.retried_tables:
        reach("apply.before_coming_back")
        _bring_back(spark, job, work)
    return result


def _bring_back(spark: SparkSession, job: ApplyJob, work: RowWork) -> None:
    names = ", ".join(job.retried_tables)
    logger.info("The cause may be gone, so these tables are tried again: %s.", names)
    try:
        replay(spark, _catch_up(job), work)
    except PgoutputError as error:
        logger.warning(
            "Not all of these tables are back: %s. The next batch tries them again. %s: %s",
            names,
            type(error).__name__,
            error,
        )


def _catch_up(job: ApplyJob) -> ReplayJob:
    """The replay that brings the tables of a job back."""
    shared = {each.name: getattr(job, each.name) for each in dataclasses.fields(WriteJob)}
    return ReplayJob(
        **shared,
        manifest_uris=job.lacked_uris,
        tables=job.retried_tables,
        in_place=True,
        catch_up=True,
    )
