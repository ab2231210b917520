"""``make airflow`` as a process of its own, for tests that look at what it shows."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quickstart.place import DemoPlace

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
_SECONDS_FOR_A_RUN = 600


@dataclass
class RunningAirflow:
    """An Airflow with the pipeline of the demo, which runs each minute."""

    port: int
    process: subprocess.Popen[bytes]
    printed: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def url(self) -> str:
        """Where its pages are."""
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """What the server answers: JSON, or the bytes of a page.

        :param body: what is posted; None: nothing is.
        """
        request = urllib.request.Request(  # noqa: S310
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
            found = answer.read()
        is_json = answer.headers["content-type"].startswith("application/json")
        return json.loads(found) if is_json else found

    def facts_of_runs(self, runs: int) -> list[dict[str, Any]]:
        """Wait until so many runs have told what they did; the facts of all, the oldest first."""
        end = time.monotonic() + runs * _SECONDS_FOR_A_RUN
        while True:
            assert self.process.poll() is None, self.printed.read_text()
            assert time.monotonic() < end, self.printed.read_text()
            time.sleep(1)
            if f"open http://localhost:{self.port}/plugin/pgoutput" not in self.printed.read_text():
                continue
            told = self.ask("/api/v2/assets/events?order_by=timestamp")["asset_events"]
            facts = [each["extra"]["pgoutput"] for each in told if "pgoutput" in each["extra"]]
            if len(facts) >= runs:
                return facts

    def verify(self) -> tuple[list[str], list[dict[str, Any]]]:
        """Verify the lake: the states that the task went through, and what it found of each table."""
        dag = "/api/v2/dags/shop_verify/dagRuns"
        run = self.ask(dag, {"logical_date": None})["dag_run_id"]
        states: list[str] = []
        while not states or states[-1] not in {"success", "failed"}:
            time.sleep(0.5)
            (task,) = self.ask(f"{dag}/{run}/taskInstances")["task_instances"]
            if not states or states[-1] != task["state"]:
                states.append(task["state"])
        assert states[-1] == "success", states
        value = self.ask(f"{dag}/{run}/taskInstances/verify/xcomEntries/return_value")["value"]
        return states, (json.loads(value) if isinstance(value, str) else value)["tables"]


@contextmanager
def running_airflow(place: DemoPlace) -> Iterator[RunningAirflow]:
    """``make airflow``, until the block ends."""
    port, printed = free_port(), place.checkout / "printed"
    with printed.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(place.checkout), str(port)],
            cwd=_ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield RunningAirflow(port, process, printed)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
