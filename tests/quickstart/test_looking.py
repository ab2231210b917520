"""What ``make airflow`` starts: a database under load, and an Airflow whose pipeline runs by itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.errors import ConfigurationError
from quickstart.looking import airflow_environment, run_airflow
from quickstart.place import DemoPlace

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = """
import signal, sys
from pathlib import Path
from quickstart.looking import run_airflow
from quickstart.place import DemoPlace

def end(number, frame):
    raise SystemExit(0)

signal.signal(signal.SIGTERM, end)
run_airflow(DemoPlace(Path(sys.argv[1])), int(sys.argv[2]))
"""
_SECONDS = 900


@pytest.fixture
def place() -> Iterator[DemoPlace]:
    checkout = Path(tempfile.mkdtemp(prefix="pgoutput-tests-airflow-"))
    checkout.chmod(0o755)
    yield DemoPlace(checkout)
    shutil.rmtree(checkout, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ask(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        body = answer.read()
    return (
        json.loads(body) if answer.headers["content-type"].startswith("application/json") else body
    )


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
    port = free_port()
    printed = place.checkout / "printed"
    began = time.monotonic()
    with printed.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(place.checkout), str(port)],
            cwd=_ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        seconds: list[float] = []
        facts: list[dict[str, Any]] = []
        while len(facts) < 2:
            assert process.poll() is None, printed.read_text()
            assert time.monotonic() - began < _SECONDS, printed.read_text()
            time.sleep(1)
            if f"open http://localhost:{port}/plugin/pgoutput" not in printed.read_text():
                continue
            told = ask(port, "/api/v2/assets/events?order_by=timestamp")["asset_events"]
            facts = [each["extra"]["pgoutput"] for each in told if "pgoutput" in each["extra"]]
            if len(facts) > len(seconds):
                seconds.append(round(time.monotonic() - began))
        assert b'src="main.js"' in ask(port, "/pgoutput/")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
    print("seconds until the first and the second run had ended:", seconds)
    assert facts[0]["totals"]["copied"] > 100_000
    assert facts[1]["changes"] > 0, "a load runs"
    mark = f"PGOUTPUT_DEMO={place.state}".encode()
    assert not [path for path in Path("/proc").glob("[0-9]*/environ") if mark in read(path)]
    assert place.is_complete(), "the next make airflow goes on with it"


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # It ended meanwhile, or is somebody else's.
        return b""
