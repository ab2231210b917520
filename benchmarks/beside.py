"""``python -m benchmarks.beside OTHER``: the same batches, staged and applied by two checkouts.

The two take turns, in the opposite order every second time, so that other work hits both alike.
Each has its own environment (``make setup``). Prints seconds and CPU seconds of each pair, and the median of
the pairs' ratios: this checkout to the other, so 1.1 means 10 % slower.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import psutil

from benchmarks.lake import say
from benchmarks.staging import python_of, stage_once
from benchmarks.workloads import PUBLICATION, WORKLOADS, Source, Workload, run

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parents[1]
#: A stage over each transport, and an apply.
PARTS = ("sql", "walsender", "apply")


class Cost(NamedTuple):
    """What one stage or one apply took."""

    seconds: float
    cpu_seconds: float


class Applier:
    """A process of a checkout that has a warm Spark session."""

    def __init__(self, process: subprocess.Popen[str], orders: IO[str], answers: IO[str]) -> None:
        self._process, self._orders, self._answers = process, orders, answers

    def apply(self, namespace: str, staging: Path, manifest: Path) -> Cost:
        """Apply a batch."""
        before = self._cpu_seconds()
        print(json.dumps([namespace, str(staging), str(manifest)]), file=self._orders, flush=True)
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError("the process that applies has ended, see its messages above")
        return Cost(json.loads(answer)["seconds"], self._cpu_seconds() - before)

    def _cpu_seconds(self) -> float:
        """Of the process and of the Java below it."""
        own = psutil.Process(self._process.pid)
        times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
        return float(sum(each.user + each.system for each in times))


@contextmanager
def applier(checkout: Path, folder: Path) -> Iterator[Applier]:
    """Start a checkout's process with a lake of its own."""
    with subprocess.Popen(
        # -P: the checkout's modules, not those beside the file.
        [
            str(python_of(checkout)),
            "-P",
            str(HERE / "benchmarks" / "apply_in_turns.py"),
            str(folder),
        ],
        env={**os.environ, "PYTHONPATH": str(checkout)},
        cwd=checkout,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        yield Applier(process, process.stdin, process.stdout)
        process.stdin.close()


class Side:
    """One checkout with its slots, its staging areas and its lake."""

    def __init__(self, name: str, checkout: Path, source: Source, applier: Applier) -> None:
        self._name, self._checkout, self._source, self._applier = name, checkout, source, applier
        self._batches: dict[str, list[Path]] = {}

    def stage_what_is_applied(self, workload: Workload, folder: Path) -> None:
        """Stage once for all applies: first a copy, which makes the slot, then the workload's changes."""
        staging = folder / f"{self._name}_{workload.name}"
        known = self._batches.setdefault(workload.name, [])
        self._stage(workload, staging, **({} if known else {"copy_connections": 1}))
        known += [each for each in staging.glob("*/manifests/*.json") if each not in known]

    def measure(self, workload: Workload, what: str, turn: int) -> Cost:
        """Apply the workload to new tables, or stage it once more.

        :param what: ``apply``, or the transport of a stage.
        """
        if what == "apply":
            namespace = f"{workload.name}_{turn}".lower().replace("-", "warm_up_")
            copy, changes = self._batches[workload.name]
            staging = copy.parents[2]
            self._applier.apply(namespace, staging, copy)
            return self._applier.apply(namespace, staging, changes)
        with tempfile.TemporaryDirectory(prefix="pgoutput-bench-") as folder:
            return self._stage(workload, Path(folder), transport=what)

    def _stage(self, workload: Workload, staging: Path, **order: Any) -> Cost:
        order = {
            "slot": f"beside_{self._name}_{workload.name.lower()}",
            "publication": PUBLICATION,
            "transport": "sql",
            "options": {},
            "decode_parallelism": 1,
            **order,
        }
        one = stage_once(self._source.conninfo, staging, order, self._checkout)
        assert one.cpu_seconds is not None, "a stage of ours tells it"
        return Cost(one.seconds, one.cpu_seconds)


def compare(order: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    """Medians of the pairs' ratios, by what was measured."""
    found: dict[str, list[tuple[Cost, Cost]]] = {}
    checkouts = {"this": HERE, "other": order.other.resolve()}
    with Source(folder / "postgres", 1) as source, ExitStack() as stack:
        sides = {
            name: Side(name, path, source, stack.enter_context(applier(path, folder / name)))
            for name, path in checkouts.items()
        }
        for workload in (WORKLOADS[name] for name in order.workloads):
            for side in sides.values():
                side.stage_what_is_applied(workload, folder)
            run(source, workload, order.scale)
            for side in sides.values():
                side.stage_what_is_applied(workload, folder)
            for turn in range(-order.warm_up, order.repetitions):
                for what in order.parts:
                    names = list(sides) if turn % 2 else list(reversed(sides))
                    cost = {name: sides[name].measure(workload, what, turn) for name in names}
                    this, other = cost["this"], cost["other"]
                    case = f"{workload.name} {what}"
                    say(f"{turn} {case}: {_text(this)}, other: {_text(other)}")
                    if turn >= 0:
                        found.setdefault(case, []).append((this, other))
    return {case: _summary(pairs) for case, pairs in found.items()}


def _text(cost: Cost) -> str:
    return f"{cost.seconds:.2f} s, {cost.cpu_seconds:.2f} CPU s"


def _summary(pairs: list[tuple[Cost, Cost]]) -> dict[str, float]:
    median = statistics.median
    return {
        "cpu_seconds": median(this.cpu_seconds for this, _ in pairs),
        "cpu_seconds_of_other": median(other.cpu_seconds for _, other in pairs),
        "cpu_ratio": median(this.cpu_seconds / other.cpu_seconds for this, other in pairs),
        "seconds_ratio": median(this.seconds / other.seconds for this, other in pairs),
    }


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__)
    parser.add_argument("other", type=Path, help="the folder of the other checkout")
    parser.add_argument("--workloads", nargs="+", default=["W1", "W2"], choices=list(WORKLOADS))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--warm-up", type=int, default=1, help="pairs before those that count")
    parser.add_argument("--repetitions", type=int, default=5, help="pairs that count")
    with tempfile.TemporaryDirectory(prefix="pgoutput-beside-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        print(json.dumps(compare(parser.parse_args(), Path(folder)), indent=1))


if __name__ == "__main__":
    main()
