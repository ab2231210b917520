"""PostgreSQL's own benchmark as a source of changes: its tables, and its standard load beside us."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from airflow_provider_pgoutput.errors import SourceError
from quickstart.place import DATABASE, PUBLICATION

if TYPE_CHECKING:
    from pathlib import Path

    from quickstart.postgres import EmbeddedPostgres

TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
SCALE = 10
_TRANSACTIONS_PER_SECOND = 300  # Of 4 changes each; without a limit it would take Spark's cores.
_CLIENTS = 4
_LONGEST_SECONDS = 3600
_STOP_SECONDS = 30.0


def create_database(server: EmbeddedPostgres, log_path: Path, scale: int = SCALE) -> None:
    """Create the demo's database, pgbench's tables in it, and a publication of all tables.

    :param scale: pgbench's: so many times 100,000 accounts.
    :raises SourceError: pgbench failed.
    """
    with psycopg.connect(server.conninfo(), autocommit=True) as session:
        session.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
    with log_path.open("wb") as output:
        result = subprocess.run(
            _command(server, "-i", "-s", str(scale), "--quiet"),
            check=False,
            env=_environment(server),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if result.returncode != 0:
        raise SourceError(f"pgbench -i failed: {log_path.read_text(errors='replace')[-1000:]}")
    with psycopg.connect(server.conninfo(DATABASE), autocommit=True) as session:
        session.execute(
            sql.SQL("CREATE PUBLICATION {} FOR ALL TABLES").format(sql.Identifier(PUBLICATION))
        )


class Load:
    """pgbench's standard load, running beside us while the ``with`` block does.

    :param server: a server with the demo's database.
    :param log_path: receives what pgbench prints.
    :param rate: transactions per second.
    :param seconds: after so many the load ends by itself.
    """

    def __init__(
        self,
        server: EmbeddedPostgres,
        log_path: Path,
        rate: int = _TRANSACTIONS_PER_SECOND,
        seconds: int = _LONGEST_SECONDS,
    ) -> None:
        self._server = server
        self._log_path = log_path
        self._rate = rate
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Load:
        # Without -n: it begins with VACUUM and with TRUNCATE of its history, as users run it.
        command = _command(
            self._server,
            f"--client={_CLIENTS}",
            f"--time={self._seconds}",
            f"--rate={self._rate}",
            "--progress=10",
        )
        with self._log_path.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=_environment(self._server),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def wait(self, seconds: float) -> int:
        """Wait until the load ends by itself; return its exit status.

        :raises subprocess.TimeoutExpired: it still runs after so many seconds.
        """
        assert self._process is not None, "called inside the with block"
        return self._process.wait(seconds)

    def check(self) -> None:
        """Make sure that the load still runs.

        :raises SourceError: it ended by itself; the message holds the end of its output.
        """
        if self._process is None or self._process.poll() is not None:
            text = self._log_path.read_text(errors="replace")[-1000:]
            raise SourceError(f"pgbench ended too early: {text}")


def _command(server: EmbeddedPostgres, *arguments: str) -> list[str]:
    place = ["--host=127.0.0.1", f"--port={server.port}", "--username=postgres"]
    return [str(server.installation.program("pgbench")), *place, *arguments, DATABASE]


def _environment(server: EmbeddedPostgres) -> dict[str, str]:
    # The password goes by the environment: a command line can be read by everybody.
    return {**os.environ, "PGPASSWORD": server.password}
