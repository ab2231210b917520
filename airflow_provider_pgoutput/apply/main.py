"""What spark-submit starts: ``main.py --job-uri URI``. The job is one of those in ``batch/jobs.py``.

The exit status says which kind of failure it was. A JSON file beside the job says what happened. The work
itself starts in ``come_back.py``, ``replay.py``, ``maintain.py`` and ``erase.py``.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.exit_status import COPY_AGAIN, FATAL, OK, RETRYABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.erase import ErasureResult
    from airflow_provider_pgoutput.apply.maintain import MaintenanceResult
    from airflow_provider_pgoutput.apply.pipeline import ApplyResult
    from airflow_provider_pgoutput.apply.replay import ReplayResult


def main(arguments: list[str] | None = None) -> int:
    """Do the job at ``--job-uri``; return the exit status."""
    parser = argparse.ArgumentParser(description="Apply a staged pgoutput batch to Iceberg.")
    parser.add_argument("--job-uri", required=True, help="URI of the job's JSON file")
    job_uri = parser.parse_args(arguments).job_uri
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # Imported late: only now the package can be found, from --py-files or by _find_package.
    from airflow_provider_pgoutput.parent_watch import die_with_parent  # noqa: PLC0415

    die_with_parent(RETRYABLE)

    from pyspark.sql import SparkSession  # noqa: PLC0415 - after the arguments were checked

    spark = SparkSession.builder.appName("airflow-provider-pgoutput apply").getOrCreate()
    if not spark.conf.get("spark.log.level", None):
        # At its level of INFO, Spark writes the filters of its plans, which hold keys of rows.
        spark.sparkContext.setLogLevel("WARN")
    try:
        return _apply(spark, job_uri)
    finally:
        spark.stop()


def _apply(spark: SparkSession, job_uri: str) -> int:
    from airflow_provider_pgoutput.apply.come_back import apply_and_bring_back  # noqa: PLC0415
    from airflow_provider_pgoutput.apply.erase import erase  # noqa: PLC0415
    from airflow_provider_pgoutput.apply.iceberg.requirements import check  # noqa: PLC0415
    from airflow_provider_pgoutput.apply.maintain import maintain  # noqa: PLC0415
    from airflow_provider_pgoutput.apply.replay import replay  # noqa: PLC0415
    from airflow_provider_pgoutput.apply.rows.staged_files import read_job  # noqa: PLC0415
    from airflow_provider_pgoutput.batch.jobs import (  # noqa: PLC0415
        ApplyJob,
        ErasureJob,
        MaintenanceJob,
        ReplayJob,
    )
    from airflow_provider_pgoutput.errors import (  # noqa: PLC0415
        CopyAgainError,
        PgoutputError,
        RetryableError,
    )

    try:
        print("::group::The job in Spark", flush=True)
        logging.getLogger(__name__).info("The job is %s.", job_uri)
        job = read_job(spark, job_uri)
        check(spark, job.catalog_name)
        result: ApplyResult | ReplayResult | MaintenanceResult | ErasureResult
        match job:
            case ApplyJob():
                result = apply_and_bring_back(spark, job)
            case ReplayJob():
                result = replay(spark, job)
            case MaintenanceJob():
                result = maintain(spark, job)
            case ErasureJob():
                result = erase(spark, job)
        _leave(spark, job_uri, {"status": "applied", **asdict(result)})
    except PgoutputError as error:
        log = logging.getLogger(__name__)
        log.error("%s: %s", type(error).__name__, error)
        failure = {"status": "failed", "error": type(error).__name__, "message": str(error)}
        try:
            _leave(spark, job_uri, failure)
        except PgoutputError as why:
            log.error("The worker learns of it by the exit status alone: %s", why)
        if isinstance(error, RetryableError):
            return RETRYABLE
        return COPY_AGAIN if isinstance(error, CopyAgainError) else FATAL
    finally:
        print("::endgroup::", flush=True)
    return OK


def _leave(spark: SparkSession, job_uri: str, result: dict[str, Any]) -> None:
    """Write the result beside the job, with the application's address if there is one."""
    from airflow_provider_pgoutput.apply.rows.staged_files import write_text  # noqa: PLC0415

    found = {**result, "application_url": application_url(spark)}
    write_text(spark, job_uri.removesuffix(".json") + ".result.json", json.dumps(found))


def application_url(spark: SparkSession) -> str | None:
    """Where the history server shows the application; None: it does not, or its address is not known.

    Spark's own pages end with the application. So a link to them would lead nowhere.

    Source: https://spark.apache.org/docs/latest/running-on-yarn.html (``spark.yarn.historyServer.address``)
    """
    address = spark.conf.get("spark.yarn.historyServer.address", None)
    logged = str(spark.conf.get("spark.eventLog.enabled", "false")).lower() == "true"
    if not address or "${" in address or not logged:
        return None
    server = address if "://" in address else f"http://{address}"
    return f"{server.rstrip('/')}/history/{spark.sparkContext.applicationId}/"


def _find_package() -> None:
    """Make the package importable. Its folders must not hide other modules of the same name."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    try:
        import airflow_provider_pgoutput  # noqa: F401, PLC0415
    except ModuleNotFoundError:
        sys.path.append(str(here.parent.parent))


if __name__ == "__main__":
    _find_package()
    sys.exit(main())
