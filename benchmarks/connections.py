"""``python -m benchmarks.connections``: the automatic number of connections beside one and two.

It should never be slower than one. So there is a case of each kind for which two are slower: one transaction,
a small backlog of wide rows, and cores that others use. For the last case, a long backlog, two are faster on
idle cores. Prints medians as JSON: rows per second, and CPU seconds of us and the server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.run import say
from benchmarks.staging import Measurement, measure
from benchmarks.workloads import WORKLOADS, Backlog, Source, backlog

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENDERS = {"automatic": "sql", "one": "sql_parallel_1", "two": "sql_parallel_2"}


@dataclass(frozen=True, slots=True)
class Case:
    """A backlog, and whether all cores are busy while it is read."""

    workload: str
    scale: float = 1.0
    busy: bool = False


CASES = {
    "one transaction": Case("W4"),
    "small": Case("W2", 0.25),
    "busy cores": Case("W1", busy=True),
    "wide": Case("W2"),
    "short transactions": Case("W3"),
    "long": Case("W1"),
}


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """A process for each core that does nothing but use it."""
    command = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()


def run(folder: Path, case: Case, scale: float, repetitions: int) -> dict[str, dict[str, float]]:
    """The figures of a case, by contender. Its server is new, because a workload runs once on it."""
    with (
        Source(folder / "postgres", 1) as source,
        backlog(source, WORKLOADS[case.workload], case.scale * scale) as waiting,
        busy_cores() if case.busy else contextlib.nullcontext(),
    ):
        measured = measure(source, waiting, tuple(CONTENDERS.values()), repetitions, say)
    return {name: figures(waiting, measured[each]) for name, each in CONTENDERS.items()}


def figures(waiting: Backlog, one: Measurement) -> dict[str, float]:
    """What is printed of a measurement."""
    return {
        "rows_per_s": waiting.rows / one.seconds,
        "cpu_seconds": (one.cpu_seconds or 0) + (one.server_cpu_seconds or 0),
    }


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connections", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pgoutput-bench-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        found = {
            name: run(folder, CASES[name], options.scale, options.repetitions)
            for name in options.cases
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
