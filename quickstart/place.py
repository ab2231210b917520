"""Where the demo keeps its things, who may use them now, and the environment of its programs.

Everything is below ``.quickstart/demo`` of the checkout, except PostgreSQL's folder if the account
that runs the server may not enter the checkout (root's home, for example). Nothing is started here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.errors import ConfigurationError
from quickstart.binaries import can_enter, private_folder, server_account
from quickstart.spark import LocalLake, site_conf, spark_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quickstart.postgres import EmbeddedPostgres

log = logging.getLogger(__name__)

DATABASE = "shop"
DAG_ID = "pgoutput_to_iceberg"
SLOT_NAME = "demo"
PUBLICATION = "demo"
NAMESPACE = "shop"
_MARK = (
    "PGOUTPUT_DEMO"  # In the environment of all that the demo starts; leftovers are known by it.
)
_END_SECONDS = 10.0
_OPEN_PARENT = Path("/var/tmp")  # noqa: S108 - owner and mode of the folder in it are checked


@dataclass(frozen=True)
class DemoPlace:
    """The folders of one checkout's demo.

    :ivar checkout: the repository's root, which holds ``dags_examples``.
    """

    checkout: Path

    @classmethod
    def of_this_checkout(cls) -> DemoPlace:
        """Return the place that belongs to the source tree this module was imported from.

        :raises ConfigurationError: it is an installed package without the example DAG.
        """
        checkout = Path(__file__).resolve().parent.parent
        if not (checkout / "dags_examples" / f"{DAG_ID}.py").is_file():
            raise ConfigurationError(
                f"The demo runs the example DAG, and {checkout} has none.",
                advice="clone the repository and run make demo there.",
            )
        return cls(checkout)

    @property
    def state(self) -> Path:
        """All of the demo's own files."""
        return self.checkout / ".quickstart" / "demo"

    @property
    def lake(self) -> LocalLake:
        """The Iceberg warehouse and its catalog."""
        return LocalLake(self.state / "lake")

    @property
    def staging(self) -> Path:
        """Staged batches."""
        return self.state / "staging"

    @property
    def logs(self) -> Path:
        """What the programs printed: a file for each DAG run, and the load's."""
        return self.state / "logs"

    @property
    def airflow_home(self) -> Path:
        """Airflow's configuration, metadata database and task logs."""
        return self.state / "airflow"

    @property
    def airflow_database(self) -> Path:
        """Airflow's metadata database."""
        return self.airflow_home / "airflow.db"

    def postgres_home(self) -> Path:
        """Return the server's folder, which the account that runs the server can enter."""
        account = server_account()
        self.state.mkdir(parents=True, exist_ok=True)
        if account is None or can_enter(self.state, account):
            return self.state / "postgres"
        key = hashlib.sha256(str(self.state).encode()).hexdigest()[:12]
        return private_folder(_OPEN_PARENT / f"airflow-provider-pgoutput-{key}") / "postgres"

    def dag_conf(self) -> dict[str, object]:
        """Return the DAG's parameters."""
        return {
            "slot_name": SLOT_NAME,
            "publication_names": [PUBLICATION],
            # No URI, in which a blank would be escaped.
            "staging_uri": str(self.staging),
            "namespace": NAMESPACE,
        }

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other demos of this checkout out, and end what a killed one left running.

        :raises ConfigurationError: a demo runs here at the moment.
        """
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state.parent / f"{self.state.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigurationError(
                    f"Another `make demo` or `make airflow` uses {self.state} at the moment.",
                    advice="end it first (Ctrl-C in its terminal).",
                ) from error
            self._end_leftovers()
            yield

    def is_complete(self) -> bool:
        """Whether an earlier demo got so far that its database and its lake can be used."""
        has_database = (self.postgres_home() / "data" / "PG_VERSION").is_file()
        return has_database and self.lake.catalog_file.is_file() and self.airflow_database.is_file()

    def clear(self) -> None:
        """Remove what earlier runs left, the database server's folder included."""
        shutil.rmtree(self.postgres_home(), ignore_errors=True)
        shutil.rmtree(self.state, ignore_errors=True)
        for folder in (self.staging, self.logs, self.airflow_home / "dags"):
            folder.mkdir(parents=True)

    def environment(self, server: EmbeddedPostgres) -> dict[str, str]:
        """Return the variables that Airflow, and the Spark below it, need for the demo."""
        database = {
            "conn_type": "postgres",
            "host": "127.0.0.1",
            "port": server.port,
            "login": "postgres",
            "password": server.password,
            "schema": DATABASE,
        }
        lake = {
            "conn_type": "iceberg",
            "extra": {**self.lake.pyiceberg_properties(), "catalog-name": self.lake.catalog_name},
        }
        spark = spark_environment()
        # `airflow standalone` starts its parts by the name `airflow`.
        path = f"{Path(sys.executable).parent}{os.pathsep}{spark['PATH']}"
        return {
            **spark,
            "PATH": path,
            _MARK: str(self.state),
            "SPARK_CONF_DIR": str(self.write_spark_conf()),
            "AIRFLOW_HOME": str(self.airflow_home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.checkout / "dags_examples"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",  # Each of the 32 by default is a process.
            # No login, so for this machine alone.
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.airflow_database}",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "AIRFLOW_CONN_POSTGRES_DEFAULT": json.dumps(database),
            "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps(lake),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "PYTHONWARNINGS": "ignore",
        }

    def write_spark_conf(self) -> Path:
        """Write ``spark-defaults.conf``: a site's settings belong there, not into the DAG."""
        folder = self.state / "spark-conf"
        folder.mkdir(exist_ok=True)
        lines = [f"{name} {value}" for name, value in self.spark_conf().items()]
        (folder / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
        return folder

    def spark_conf(self) -> dict[str, str]:
        """Return the settings of every Spark job."""
        return site_conf(driver_memory="2g")

    def _end_leftovers(self) -> None:
        """End programs of a demo that was killed; we hold the lock, so no living demo owns them."""
        if not sys.platform.startswith("linux"):
            return
        mark = f"{_MARK}={self.state}".encode()
        deadline = time.monotonic() + _END_SECONDS
        while left := _processes_with(mark):
            late = time.monotonic() > deadline
            for pid in left:
                log.info("ending process %d, which an interrupted demo left running", pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
            time.sleep(0.5)


def _processes_with(mark: bytes) -> list[int]:
    """Return the processes whose environment holds the mark, except our own."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # Ended meanwhile, or somebody else's.
            continue
        if mark in environment.split(b"\0"):
            found.append(int(folder.name))
    return found
