"""``python -m benchmarks.progress``: long reads that tell Airflow how far they are, beside reads that do not.

Both read the same backlog inside a task of a real Airflow, in turns, and the second pair in the opposite
order. So a ratio has the writes of the XCom, with the API server that ``airflow dags test`` runs in the
task's process. CPU time depends less on the load of the machine than seconds do. Prints the figures as JSON.
``--scale 0.02`` is a short form, which shows that all of it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.tasks.progress import TaskProgress
from benchmarks.lake import say
from benchmarks.stage_once import cpu_seconds, position
from benchmarks.workloads import PUBLICATION, WORKLOADS, Source, backlog, copied_slot

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

_ROOT = Path(__file__).resolve().parent.parent
#: The transport that takes longest.
_TRANSPORT = "walsender"
_DAG = """
import json, os
from airflow.sdk import DAG, task

with DAG("progress", schedule=None):

    @task
    def read(ti=None):
        from benchmarks.progress import read_in_task
        order = json.loads(os.environ["BENCH_ORDER"])
        with open(order["result"], "w") as file:
            json.dump(read_in_task(ti, **order["given"]), file)

    read()
"""


def read_in_task(
    task_instance: RuntimeTaskInstanceProtocol, *, conninfo: str, slot: str, tells: bool
) -> dict[str, Any]:
    """Stage the backlog; what it took, and how often Airflow was told."""
    told: list[int] = []
    progress = TaskProgress(task_instance)

    def tell(facts: dict[str, Any]) -> None:
        before = cpu_seconds()
        progress(facts)
        told.append(round((cpu_seconds() - before) * 1000))

    with tempfile.TemporaryDirectory(prefix="pgoutput-bench-") as folder:
        request = CaptureRequest(
            conninfo=conninfo,
            slot_name=slot,
            publication_names=(PUBLICATION,),
            staging_uri=folder,
            checkpoint=position(conninfo, slot),
            transport=_TRANSPORT,
            attempt="bench",
            tell=tell if tells else None,
        )
        cpu, began = cpu_seconds(), time.perf_counter()
        manifest = stage_batch(request).manifest
        return {
            "seconds": time.perf_counter() - began,
            "cpu_seconds": cpu_seconds() - cpu,
            "rows": manifest.changes,
            "cpu_ms_of_calls": told,
        }


def read(source: Source, slot: str, *, tells: bool, home: Path) -> dict[str, Any]:
    """Read once, in a task."""
    result = home / "result.json"
    given = {"conninfo": source.conninfo, "slot": slot, "tells": tells}
    variables = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "BENCH_ORDER": json.dumps({"result": str(result), "given": given}),
        "PYTHONPATH": str(_ROOT),
    }
    environment = {**os.environ, **variables}
    for command in (["db", "migrate"], ["dags", "test", "progress"]):
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *command],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"airflow failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.progress")
    parser.add_argument("--scale", type=float, default=2.0, help="1: 2 M changes")
    parser.add_argument("--pairs", type=int, default=2)
    asked = parser.parse_args()
    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="pgoutput-bench-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        (home / "dags").mkdir()
        (home / "dags" / "progress.py").write_text(_DAG)
        with (
            Source(home / "server") as source,
            backlog(source, WORKLOADS["W1"], asked.scale) as work,
        ):
            for pair in range(asked.pairs):
                for tells in (False, True) if pair % 2 == 0 else (True, False):
                    with copied_slot(source, work) as slot:
                        one = read(source, slot, tells=tells, home=home)
                    if one["rows"] not in {work.rows, work.rows + 1}:
                        raise RuntimeError(f"{one['rows']} changes were staged, not {work.rows}.")
                    say(f"{'with' if tells else 'without'} progress: {one}")
                    found[tells].append(one)
    ratios = {
        name: round(
            statistics.median(each[name] for each in found[True])
            / statistics.median(each[name] for each in found[False]),
            3,
        )
        for name in ("seconds", "cpu_seconds")
    }
    print(json.dumps({"runs": {"without": found[False], "with": found[True]}, "ratios": ratios}))


if __name__ == "__main__":
    main()
