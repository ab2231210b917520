"""Ways to look at what the demo left: Airflow's web page with the database up, and Spark SQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.errors import ConfigurationError
from quickstart.dag_runs import end_group
from quickstart.demo import say
from quickstart.place import DATABASE
from quickstart.postgres import EmbeddedPostgres
from quickstart.spark import spark_environment

if TYPE_CHECKING:
    from quickstart.place import DemoPlace


def run_airflow(place: DemoPlace) -> int:
    """Run ``airflow standalone`` and the demo's database until Ctrl-C.

    :raises ConfigurationError: there is no demo to look at.
    """
    with place.locked():
        if not (place.postgres_home() / "data" / "PG_VERSION").is_file():
            raise ConfigurationError(
                "There is no demo database to look at.", advice="run make demo first."
            )
        with EmbeddedPostgres(place.postgres_home()) as server:
            environment = place.environment(server)
            psql = server.installation.program("psql")
            say(f"PostgreSQL {server.version} runs on port {server.port}; change something with")
            print(f"    PGPASSWORD={server.password} {psql} -h 127.0.0.1 -p {server.port} "
                  f"-U postgres {DATABASE}")  # fmt: skip
            say("Airflow's page will be at http://localhost:8080 in half a minute. Ctrl-C ends it.")
            say("To run the DAG, trigger it on the page with this configuration:")
            print(f"    {json.dumps(place.dag_conf())}", flush=True)
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", "standalone"],
                env={**os.environ, **environment},
                start_new_session=True,
            )
            try:
                return process.wait()
            finally:
                end_group(process)


def run_sql(place: DemoPlace, statement: str) -> int:
    """Run one statement of Spark SQL on the demo's lake and print its result."""
    environment = {**os.environ, **spark_environment()}
    environment["SPARK_CONF_DIR"] = str(place.write_spark_conf())
    # Without Hive's metastore, which would be made as files in the current folder.
    command = ["spark-sql", "--master", "local[2]"]
    command += ["--conf", "spark.sql.catalogImplementation=in-memory"]
    for name, value in place.lake.spark_conf().items():
        command += ["--conf", f"{name}={value}"]
    # Its output comes on the standard output; Spark's own remarks on the other one.
    return subprocess.run([*command, "-e", statement], check=False, env=environment).returncode
