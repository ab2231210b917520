"""``python -m benchmarks.tiny_batch``: what a batch of ten changes costs beside an empty spark-submit.

Whole processes with the same settings, in turns: one opens a session and ends, the others are the pipeline's
own application with a batch, without and with the class archive that ``make classes`` writes.
Prints medians as JSON: seconds, and CPU seconds of all that a process started. What is not here: a batch
without a change, which starts no Spark.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_pgoutput.batch.jobs import ApplyJob
from airflow_provider_pgoutput.spark_submit.files import spark_files
from benchmarks.lake import say
from benchmarks.synthetic_batch import BatchWriter
from quickstart.spark import LocalLake, class_archive_option, local_conf, spark_environment

if TYPE_CHECKING:
    from collections.abc import Callable

NAMESPACE = "tiny"
ROWS = 1_000_000
CHANGES = 10
_EMPTY = """\
from pyspark.sql import SparkSession
SparkSession.builder.appName("empty").getOrCreate().stop()
"""


class Submitter:
    """Runs applications with the same settings; of Java's options those that an apply of few rows gets."""

    def __init__(self, lake: LocalLake, java_options: str) -> None:
        settings = {**local_conf(), **lake.spark_conf()}
        settings["spark.driver.extraJavaOptions"] = java_options
        self._conf = [f"--conf={name}={value}" for name, value in settings.items()]
        self._environment = {**os.environ, **spark_environment()}

    def apply(self, plan: Path) -> Cost:
        """The cost of the pipeline's application, started with the files that its operator gives it."""
        with spark_files({}, None, is_short=True) as files:
            own = [f"--py-files={files.package_zip}", f"--properties-file={files.properties_file}"]
            return self.run(*own, files.application, "--job-uri", plan.as_uri())

    def run(self, *arguments: str) -> Cost:
        """The cost of a process from its start to its end."""
        program = Path(self._environment["SPARK_HOME"]) / "bin" / "spark-submit"
        command = [str(program), "--master=local[2]", *self._conf, *arguments]
        started, cpu = time.perf_counter(), _cpu_seconds()
        subprocess.run(command, check=True, stdout=sys.stderr, env=self._environment)
        return Cost(time.perf_counter() - started, _cpu_seconds() - cpu)


class Cost(NamedTuple):
    """What a process took."""

    seconds: float
    cpu_seconds: float


def _cpu_seconds() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write_job(staging: Path, manifest_path: Path) -> Path:
    """The job of an apply beside its batch."""
    job = ApplyJob(
        manifest_uri=manifest_path.as_uri(),
        staging_uri=staging.as_uri(),
        catalog_name="lake",
        namespace=NAMESPACE,
    )
    path = manifest_path.with_suffix(".job.json")
    path.write_text(job.to_json())
    return path


def run(folder: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Medians of each, and how many times as much as the empty one the others take."""
    staging, empty = folder / "staging", folder / "empty.py"
    empty.write_text(_EMPTY)
    lake = LocalLake(folder / "lake").create()
    archive = class_archive_option()
    plain, reading = (Submitter(lake, f"{options.java_options} {own}") for own in ("", archive))
    writer = BatchWriter(staging, options.rows)

    def batch(submitter: Submitter) -> Cost:
        return submitter.apply(write_job(staging, writer.write_changes(CHANGES).manifest_path))

    plain.apply(write_job(staging, writer.write_copy().manifest_path))
    runs: dict[str, Callable[[], Cost]] = {
        "empty": lambda: plain.run(str(empty)),
        "batch": lambda: batch(plain),
    }
    # Not every Java writes one.
    if archive:
        runs["batch_with_class_archive"] = lambda: batch(reading)
    found: dict[str, list[Cost]] = {name: [] for name in runs}
    for repetition in range(-options.warm_up, options.repetitions):
        for name, contender in runs.items():
            cost = contender()
            say(f"{name}: {cost.seconds:.2f} s, {cost.cpu_seconds:.2f} CPU s")
            if repetition >= 0:
                found[name].append(cost)
    medians = {name: _medians(costs) for name, costs in found.items()}
    base = medians["empty"]
    return {
        name: {**cost._asdict(), "times_as_long": cost.seconds / base.seconds}
        for name, cost in medians.items()
    }


def _medians(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(each) for each in zip(*costs, strict=True)))


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiny_batch", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--warm-up", type=int, default=1, help="rounds before, which fill the file system's cache"
    )
    parser.add_argument("--java-options", default="", help="of both, beyond what an apply adds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgoutput-tiny-", dir="/var/tmp") as folder:
        print(json.dumps(run(Path(folder), options), indent=1))


if __name__ == "__main__":
    main()
