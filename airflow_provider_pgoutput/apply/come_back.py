"""An apply that also tries tables again that are set aside for a cause that may be gone.

Example: the catalog forbade to write to table ``t``. The batches that ``t`` lacks are staged. After each
batch that the others get, ``t`` is tried with the first batch that it lacks. As soon as the right is there,
``t`` gets all of them, this batch too, and is one of the others again. The catch-up of a replay does the
work.

A table that is refused again, or whose batches cannot be read, stays set aside. The others have their batch
then already, so the apply ends well.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.pipeline import SPARK, apply_batch
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.errors import PgoutputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.pipeline import ApplyResult, RowWork
    from airflow_provider_pgoutput.batch.jobs import ApplyJob

log = logging.getLogger(__name__)


def apply_and_bring_back(spark: SparkSession, job: ApplyJob, work: RowWork = SPARK) -> ApplyResult:
    """Apply a batch, and then try the tables again that the job names.

    :param work: reads and writes rows.
    :raises PgoutputError: as ``apply_batch``. A table that cannot come back raises nothing.
    """
    result = apply_batch(spark, job, work)
    if job.retried_tables:
        _bring_back(spark, job, work)
    return result


def _bring_back(spark: SparkSession, job: ApplyJob, work: RowWork) -> None:
    names = ", ".join(job.retried_tables)
    log.info("The cause may be gone, so these tables are tried again: %s.", names)
    try:
        replay(spark, job.catch_up_job(), work)
    except PgoutputError as error:
        log.warning(
            "Not all of these tables are back: %s. The next batch tries them again. %s: %s",
            names,
            type(error).__name__,
            error,
        )
