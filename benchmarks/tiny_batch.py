"""``python -m benchmarks.tiny_batch``: what a batch of ten changes costs beside an empty spark-submit.

Both are whole processes with the same settings, in turns: one opens a session and ends, the other is the
pipeline's own application with a batch. Prints medians in seconds as JSON. What is not here: a batch without
a change, which starts no Spark.
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

from airflow_provider_pgoutput.batch.plan import Plan
from airflow_provider_pgoutput.operators.spark_files import spark_files
from airflow_provider_pgoutput.quickstart.spark import LocalLake, local_conf, spark_environment
from benchmarks.lake import say
from benchmarks.synthetic_batch import BatchWriter

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

    def apply(self, plan: Path) -> float:
        """Seconds of the pipeline's application, started with the files that its operator gives it."""
        with spark_files({}, None, is_short=True) as files:
            own = [f"--py-files={files.package_zip}", f"--properties-file={files.properties_file}"]
            return self.run(*own, files.application, "--plan-uri", plan.as_uri())

    def run(self, *arguments: str) -> float:
        """Seconds from the start of the process to its end."""
        program = Path(self._environment["SPARK_HOME"]) / "bin" / "spark-submit"
        command = [str(program), "--master=local[2]", *self._conf, *arguments]
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=sys.stderr, env=self._environment)
        return time.perf_counter() - started


def write_plan(staging: Path, manifest_path: Path) -> Path:
    """The plan of an apply beside its batch."""
    plan = Plan(
        manifest_uri=manifest_path.as_uri(),
        staging_uri=staging.as_uri(),
        catalog="lake",
        namespace=NAMESPACE,
    )
    path = manifest_path.with_suffix(".plan.json")
    path.write_text(plan.to_json())
    return path


def run(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Medians of both, and how many times as long the batch takes."""
    staging, empty = folder / "staging", folder / "empty.py"
    empty.write_text(_EMPTY)
    submitter = Submitter(LocalLake(folder / "lake").create(), options.java_options)
    writer = BatchWriter(staging, options.rows)
    plan = write_plan(staging, writer.write_copy().manifest_path)
    submitter.apply(plan)
    found: dict[str, list[float]] = {"empty": [], "batch": []}
    # The first round fills the file system's cache.
    for repetition in range(-1, options.repetitions):
        plan = write_plan(staging, writer.write_changes(CHANGES).manifest_path)
        times = {
            "empty": submitter.run(str(empty)),
            "batch": submitter.apply(plan),
        }
        for name, seconds in times.items():
            say(f"{name}: {seconds:.2f} s")
            if repetition >= 0:
                found[name].append(seconds)
    medians = {name: statistics.median(times) for name, times in found.items()}
    return {**medians, "times_as_long": medians["batch"] / medians["empty"]}


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiny_batch", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--java-options", default="", help="of both, beyond what an apply adds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgoutput-tiny-", dir="/var/tmp") as folder:
        print(json.dumps(run(Path(folder), options), indent=1))


if __name__ == "__main__":
    main()
