"""An Airflow of its own, whose scheduler starts the runs, as in production.

``airflow dags test`` has no scheduler, so it starts no run that waits for an asset.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quickstart.dag_runs import end_group
from tests.lakes.programs import free_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[1]
_SECONDS = 300
_LAST = 3000


@dataclass
class ScheduledAirflow:
    """Programs of one Airflow, with its files in ``home``.

    :ivar python: the Python that has Airflow.
    :ivar more: variables of its environment, beside those that every such Airflow has.
    """

    home: Path
    python: str = sys.executable
    more: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        """Where its pages are."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def dags(self) -> Path:
        """The folder of its DAG files."""
        return self.home / "dags"

    @property
    def environment(self) -> dict[str, str]:
        """What its programs are started with."""
        return {
            **os.environ,
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__API__SECRET_KEY": "a key of the test",
            "AIRFLOW__API_AUTH__JWT_SECRET": "another key of the test, which is long enough for it",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db",
            **self.more,
        }

    def prepare(self, dag_file: str) -> None:
        """Make the database, and write the only DAG file."""
        self.dags.mkdir()
        (self.dags / "pipelines.py").write_text(dag_file, encoding="utf-8")
        self.run("-m", "airflow", "db", "migrate")
        self.run("-m", "airflow", "dags", "reserialize")

    def run(self, *arguments: str) -> None:
        """Run a Python program to its end."""
        done = subprocess.run(
            [self.python, *arguments],
            env=self.environment,
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-_LAST:]

    @contextlib.contextmanager
    def api_server(self) -> Iterator[None]:
        """Its API server, until the block ends."""
        command = [self.python, "-m", "airflow", "api-server", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--workers", "1"]
        log = self.home / "api-server.log"
        with running(command, self.port, log, environment=self.environment):
            yield

    @contextlib.contextmanager
    def scheduler(self) -> Iterator[None]:
        """Its scheduler, which also runs the tasks, until the block ends."""
        process = subprocess.Popen(
            [self.python, "-m", "airflow", "scheduler"],
            env=self.environment,
            cwd=self.home,
            stdout=(self.home / "scheduler.log").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield
        finally:
            end_group(process)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Ask its database."""
        database = sqlite3.connect(f"file:{self.home}/airflow.db?mode=ro", uri=True)
        with contextlib.closing(database) as session:
            return session.execute(query).fetchall()

    def wait_for(self, query: str, number: int) -> None:
        """Wait until a query that counts something says so many."""
        end = time.monotonic() + _SECONDS
        while self.rows(query)[0][0] < number:
            assert time.monotonic() < end, (self.home / "scheduler.log").read_text()[-_LAST:]
            time.sleep(0.5)
