"""Ways to look at a pipeline: Airflow's web page while a load runs, and Spark SQL on what it left."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import webbrowser
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.errors import ConfigurationError, SourceError
from airflow_provider_pgoutput.spark_submit import log_configuration
from quickstart.dag_runs import end_group, prepare_airflow
from quickstart.demo import say
from quickstart.pgbench import Load, create_database
from quickstart.place import DATABASE
from quickstart.postgres import EmbeddedPostgres
from quickstart.spark import spark_environment

if TYPE_CHECKING:
    from quickstart.place import DemoPlace


#: Little, because Spark needs the cores.
_SCALE, _TRANSACTIONS_PER_SECOND = 1, 50
_SECONDS_OF_LOAD = 12 * 3600
_SECONDS_TO_ANSWER = 300
#: The first copy takes 40 seconds, and longer on a busy machine.
_BEFORE_VERIFICATION = timedelta(minutes=5)
_DAGS = Path(__file__).with_name("dags")


def run_airflow(place: DemoPlace, port: int) -> int:
    """Run Airflow with a pipeline that runs each minute, and a load at its source, until Ctrl-C.

    What an earlier ``make demo`` or ``make airflow`` left goes on. If there is nothing, it is made.

    :param port: of Airflow's web page.
    :raises ConfigurationError: somebody listens on the port.
    :raises SourceError: a step failed; the message says which and shows its log.
    """
    _check_free(port)
    with place.locked():
        is_new = not place.is_complete()
        if is_new:
            place.clear()
        with EmbeddedPostgres(place.postgres_home()) as server:
            environment = place.environment(server) | airflow_environment(place, port)
            if is_new:
                say(f"PostgreSQL {server.version} runs on port {server.port}; filling it")
                create_database(server, place.logs / "pgbench-init.log", scale=_SCALE)
                say("preparing Airflow and the Iceberg catalog")
                prepare_airflow(environment, place.logs / "airflow-db.log")
                place.lake.create()
            load = Load(
                server,
                place.logs / "pgbench.log",
                rate=_TRANSACTIONS_PER_SECOND,
                seconds=_SECONDS_OF_LOAD,
            )
            with load:
                return _airflow(place, server, environment, port)


def airflow_environment(place: DemoPlace, port: int) -> dict[str, str]:
    """Return what Airflow needs in addition, so that its DAGs are filled in."""
    url = f"http://localhost:{port}"
    return {
        "AIRFLOW__CORE__DAGS_FOLDER": str(_DAGS),
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "PGOUTPUT_DEMO_PIPELINE": json.dumps(place.dag_conf()),
        # Before the first copy there is nothing to compare.
        "PGOUTPUT_DEMO_VERIFIES_FROM": (datetime.now(UTC) + _BEFORE_VERIFICATION).isoformat(),
    }


def _airflow(
    place: DemoPlace, server: EmbeddedPostgres, environment: dict[str, str], port: int
) -> int:
    log_path = place.logs / "airflow.log"
    say(f"Airflow starts; what it prints is in {log_path}")
    with log_path.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", "standalone"],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for(process, f"http://127.0.0.1:{port}/api/v2/monitor/health", log_path)
        psql = server.installation.program("psql")
        page = f"http://localhost:{port}/plugin/pgoutput"
        say(f"open {page} - a run ends about every minute")
        if _has_desktop():
            webbrowser.open(page)
        say(f"  the pipeline's DAG: http://localhost:{port}/dags/shop")
        say(f"pgbench writes {_TRANSACTIONS_PER_SECOND} transactions/s; change something yourself:")
        print(f"    PGPASSWORD={server.password} {psql} -h 127.0.0.1 -p {server.port} "
              f"-U postgres {DATABASE}")  # fmt: skip
        say("Ctrl-C ends everything")
        return process.wait()
    finally:
        end_group(process)


def _has_desktop() -> bool:
    """Whether somebody has a graphical browser. A browser in the terminal would cover what is printed."""
    has_screen = sys.platform == "darwin" or any(
        map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))
    )
    return has_screen and sys.stdout.isatty()


def _wait_for(process: subprocess.Popen[bytes], url: str, log_path: Path) -> None:
    """Wait until Airflow answers.

    :raises SourceError: it ended, or did not answer in time.
    """
    end = time.monotonic() + _SECONDS_TO_ANSWER
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310
            return
        time.sleep(0.5)
    raise SourceError(
        "Airflow did not start.", advice=f"read {log_path}, then run make airflow again."
    )


def _check_free(port: int) -> None:
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigurationError(
                f"Another program listens on port {port}.",
                advice="give Airflow another one: make airflow PORT=8081.",
            ) from error


def run_sql(place: DemoPlace, statement: str) -> int:
    """Run one statement of Spark SQL on the demo's lake and print its result."""
    environment = {**os.environ, **spark_environment()}
    environment["SPARK_CONF_DIR"] = str(place.write_spark_conf())
    # Without Hive's metastore, which would be made as files in the current folder.
    command = ["spark-sql", "--master", "local[2]"]
    command += ["--conf", "spark.sql.catalogImplementation=in-memory"]
    log_file = place.state / log_configuration.FILE_NAME
    log_file.write_text(log_configuration.TEXT, encoding="utf-8")
    command += ["--driver-java-options", log_configuration.java_option(log_file)]
    for name, value in place.lake.spark_conf().items():
        command += ["--conf", f"{name}={value}"]
    # Its output comes on the standard output; Spark's own remarks on the other one.
    return subprocess.run([*command, "-e", statement], check=False, env=environment).returncode
