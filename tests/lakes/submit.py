"""Submits an apply to a catalog, as the apply task does, with what the task makes of the connection."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

from airflow.sdk import Connection

from airflow_provider_pgoutput.hooks.lake_catalog import lake_catalog
from airflow_provider_pgoutput.spark_submit.files import spark_files
from quickstart.spark import site_conf, spark_environment
from tests.lakes.lakes import CATALOG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from airflow_provider_pgoutput.batch.jobs import ApplyJob


def submit(
    job: ApplyJob,
    file: Path,
    properties: Mapping[str, str],
    jars: Sequence[Path],
    settings: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the application to its end.

    :param file: where the job is written. The result is beside it.
    :param properties: of the ``iceberg`` connection.
    :param jars: beside Iceberg's.
    :param settings: more of Spark's.
    """
    file.write_text(job.to_json(), encoding="utf-8")
    connection = Connection(conn_id=CATALOG, conn_type="iceberg", extra=json.dumps(properties))
    catalog = lake_catalog(connection, dict(properties), CATALOG)
    conf = site_conf("1g") | catalog.spark_conf | catalog.spark_secrets | dict(settings or {})
    conf["spark.jars"] = ",".join((conf["spark.jars"], *map(str, jars)))
    with spark_files({}, None) as files:
        command = [f"{spark_environment()['SPARK_HOME']}/bin/spark-submit", "--master", "local[1]"]
        command += [part for each in conf.items() for part in ("--conf", "=".join(each))]
        command += ["--py-files", files.package_zip, files.application, "--job-uri", file.as_uri()]
        return subprocess.run(
            command,
            env={**os.environ, **spark_environment(), **catalog.environment},
            capture_output=True,
            check=False,
            text=True,
        )
