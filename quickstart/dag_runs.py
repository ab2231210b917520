"""Runs the DAG with ``airflow dags test``, as a user would, and reads off how long each task took.

One process of Airflow's command line per run; its output goes into a file. What it did is read from
Airflow's metadata database, which Airflow's own tasks must not do and an observer may.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_pgoutput.errors import SourceError
from quickstart.place import DAG_ID

if TYPE_CHECKING:
    from pathlib import Path

    from quickstart.place import DemoPlace

TASKS = ("stage", "apply", "advance")
_LAST_LINES = 25
_END_SECONDS = 5.0


@dataclass
class DagRun:
    """What one run of the DAG did.

    :ivar seconds: seconds per task, by the task's name, and ``total`` with Airflow's own start.
    :ivar spans: when each task began and ended, in seconds since 1970.
    :ivar changes: the row changes in the batch.
    :ivar copied: the rows that the initial copy put into the batch.
    """

    number: int | str
    start_lsn: str = ""
    end_lsn: str = ""
    changes: int = 0
    copied: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)


def prepare_airflow(
    environment: dict[str, str], log_path: Path, *, python: str = sys.executable
) -> None:
    """Create Airflow's metadata database.

    :param python: the Python that has Airflow.
    :raises SourceError: Airflow refused; the message holds the end of its output.
    """
    with log_path.open("wb") as output:
        result = subprocess.run(
            [python, "-m", "airflow", "db", "migrate"],
            check=False,
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if result.returncode != 0:
        raise SourceError(f"airflow db migrate failed. {_tail(log_path)}")


def run_dag(
    place: DemoPlace,
    environment: dict[str, str],
    number: int | str,
    *,
    python: str = sys.executable,
    dag_id: str = DAG_ID,
    conf: dict[str, object] | None = None,
) -> DagRun:
    """Run a DAG once and wait for it.

    :param number: what the log file's name ends with.
    :param python: the Python that has Airflow.
    :param conf: the DAG's parameters; None: those of the pipeline.
    :raises SourceError: a task failed; the message holds the end of the log and its path.
    """
    log_path = place.logs / f"run-{number}.log"
    command = [python, "-m", "airflow", "dags", "test", dag_id]
    started = time.monotonic()
    with log_path.open("wb") as output:
        process = subprocess.Popen(
            [*command, "-c", json.dumps(conf or place.dag_conf())],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Spark is in its group, so all of it can be ended together.
        )
        try:
            status = process.wait()
        finally:
            end_group(process)
    run = DagRun(number)
    run.seconds["total"] = time.monotonic() - started
    states = _read_run(place.airflow_database, dag_id, run)
    if status != 0 or set(states.values()) != {"success"}:
        raise SourceError(f"Run {number} of {dag_id} failed ({states}). {_tail(log_path)}")
    return run


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a program and everything that it started and that is still there."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        if not _group_exists(process.pid):
            return


def _group_exists(group: int) -> bool:
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True


def _read_run(database: Path, dag_id: str, run: DagRun) -> dict[str, str]:
    """Fill in what the newest run did; return the state of each task."""
    states: dict[str, str] = {}
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as session:
        newest = session.execute(
            "SELECT run_id FROM dag_run WHERE dag_id = ? ORDER BY id DESC LIMIT 1", (dag_id,)
        ).fetchone()
        if newest is None:
            return states
        tasks = session.execute(
            "SELECT task_id, state, start_date, end_date FROM task_instance"
            " WHERE dag_id = ? AND run_id = ?",
            (dag_id, newest[0]),
        )
        for task_id, state, start, end in tasks:
            name = task_id.rpartition(".")[2]
            states[name] = state
            if start and end:
                # SQLite keeps them without the time zone, which is UTC.
                began, ended = (
                    datetime.fromisoformat(each).replace(tzinfo=UTC).timestamp()
                    for each in (start, end)
                )
                run.seconds[name] = ended - began
                run.spans[name] = (began, ended)
    batch = newest_result(database, dag_id, "stage")
    if batch is not None:
        run.start_lsn, run.end_lsn = batch["start_lsn"], batch["end_lsn"]
        run.changes = batch["changes"]
        run.copied = sum(table.get("copied", 0) for table in batch["tables"].values())
    return states


def newest_result(database: Path, dag_id: str, task: str) -> dict[str, Any] | None:
    """Return what a task of a DAG's newest run left in XCom.

    :param task: the end of the task's id.
    """
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as session:
        value = session.execute(
            "SELECT value FROM xcom JOIN dag_run USING (dag_id, run_id)"
            " WHERE dag_id = ? AND key = 'return_value' AND task_id LIKE ? ORDER BY dag_run.id DESC LIMIT 1",
            (dag_id, f"%{task}"),
        ).fetchone()
    if value is None:
        return None
    found = json.loads(value[0])
    return cast("dict[str, Any]", json.loads(found) if isinstance(found, str) else found)


def _tail(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()[-_LAST_LINES:]
    return "\n".join([f"The end of {path}:", *lines])
