"""What ``make airflow`` starts: a database under load, and an Airflow whose pipeline runs by itself."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import ConfigurationError
from quickstart.looking import airflow_environment, run_airflow
from quickstart.place import DemoPlace
from tests.quickstart.running_airflow import running_airflow

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def place() -> Iterator[DemoPlace]:
    checkout = Path(tempfile.mkdtemp(prefix="pgoutput-tests-airflow-"))
    checkout.chmod(0o755)
    yield DemoPlace(checkout)
    shutil.rmtree(checkout, ignore_errors=True)


def test_a_port_that_is_taken_is_refused_before_anything_is_made(place: DemoPlace) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ConfigurationError, match=r"listens on port \d+.*PORT=8081"):
            run_airflow(place, other.getsockname()[1])
    assert not place.state.exists()


@pytest.mark.slow
def test_its_dags_are_filled_in(place: DemoPlace) -> None:
    """The file is read as Airflow's DAG processor reads it."""
    environment = airflow_environment(place, 8123)
    script = (
        "import sys\n"
        "from airflow.dag_processing.dagbag import DagBag\n"
        "bag = DagBag(sys.argv[1], load_op_links=False)\n"
        "assert not bag.import_errors, bag.import_errors\n"
        "for dag in bag.dags.values():\n"
        "    for task in dag.tasks:\n"
        "        print(dag.dag_id, task.task_id, task.slot_name, task.namespace)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, environment["AIRFLOW__CORE__DAGS_FOLDER"]],
        env={**os.environ, **environment, "AIRFLOW_HOME": str(place.checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    tasks = sorted(line for line in done.stdout.splitlines() if line.endswith(" demo shop"))
    assert tasks == [
        "shop pgoutput_to_iceberg.advance demo shop",
        "shop pgoutput_to_iceberg.apply demo shop",
        "shop pgoutput_to_iceberg.stage demo shop",
        "shop_verify verify demo shop",
    ]


@pytest.mark.submit
@pytest.mark.exhaustive
def test_charts_move_by_themselves(place: DemoPlace) -> None:
    with running_airflow(place) as airflow:
        seconds = []
        for runs in (1, 2):
            facts = airflow.facts_of_runs(runs)
            seconds.append(round(time.monotonic() - airflow.began))
        assert b'src="main.js"' in airflow.ask("/pgoutput/")
    print("seconds until the first and the second run had ended:", seconds)
    assert facts[0]["totals"]["copied"] > 100_000
    assert facts[1]["changes"] > 0, "a load runs"
    mark = f"PGOUTPUT_DEMO={place.state}".encode()
    assert not [path for path in Path("/proc").glob("[0-9]*/environ") if mark in read(path)]
    assert place.is_complete(), "the next make airflow goes on with it"


@pytest.mark.submit
@pytest.mark.exhaustive
def test_the_verification_waits_in_the_triggerer(place: DemoPlace) -> None:
    """It leaves its worker until a run of the pipeline has reached its LSN."""
    with running_airflow(place) as airflow:
        airflow.facts_of_runs(1)
        states, tables = airflow.verify()
    assert "deferred" in states
    assert {each["table_name"] for each in tables} >= {"public.pgbench_accounts"}
    assert all(each["is_equal"] for each in tables), tables


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # It ended meanwhile, or is somebody else's.
        return b""
