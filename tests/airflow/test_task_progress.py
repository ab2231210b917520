"""How a running task tells Airflow how far it is, and what that costs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType

from airflow_provider_pgoutput.tasks.progress import KEY, TaskProgress
from tests.airflow.example_pipeline import metadata_database, newest_run, parsed

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_DAG = """
import time
from airflow.sdk import DAG, task
from airflow_provider_pgoutput.tasks.progress import TaskProgress

with DAG("progress_dag", schedule=None) as dag:

    @task
    def work(ti=None):
        took = []
        for rows in range(50):
            progress = TaskProgress(ti)
            began = time.monotonic()
            progress({"what": "changes", "rows": rows})
            took.append(time.monotonic() - began)
        return {"seconds": sorted(took)[25]}

    work()
"""


class Task:
    """A task instance that keeps what is pushed, or refuses it as Airflow's client does."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.pushed: list[dict[str, Any]] = []
        self.refuses = refuses

    def xcom_push(self, key: str, value: Any) -> None:
        assert key == KEY
        self.pushed.append(value)
        if self.refuses:
            from airflow.sdk.execution_time.comms import ErrorResponse

            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))


def test_it_tells_at_most_every_quarter_of_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    task: Any = Task()
    progress = TaskProgress(task)
    for _ in range(7):
        progress({"rows": now[0]})
        now[0] += 5
    assert [each["rows"] for each in task.pushed] == [1000, 1015, 1030]


def test_if_airflow_does_not_take_it_the_work_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    task: Any = Task(refuses=True)
    progress = TaskProgress(task)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            progress({"rows": 1})
            now[0] += 20
    assert len(task.pushed) == 1
    assert "The page will not show the progress" in caplog.text


def test_airflow_keeps_the_newest_and_it_costs_little(tmp_path: Path, airflow_home: Path) -> None:
    (tmp_path / "progress.py").write_text(_DAG)
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "dags", "test", "progress_dag"],
        env={**os.environ, "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    with metadata_database() as database:
        (value,) = database.execute("SELECT value FROM xcom WHERE key = ?", (KEY,)).fetchone()
    assert (parsed(value)["rows"], parsed(value)["schema_version"]) == (49, 1)
    seconds = newest_run().values["work"]["seconds"]
    print(f"A write took {seconds * 1000:.1f} ms.")
    assert seconds < 1, json.dumps(seconds)
