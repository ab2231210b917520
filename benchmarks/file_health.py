"""``python -m benchmarks.file_health``: what reading a table costs after many small batches.

One warm Spark session applies the batches, with a maintenance after every so many of them, and
now and then reads the table and a fresh copy of the same rows. Prints medians in seconds and the number of
files as JSON. What is not here: what the batches cost (``growth.py``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.jobs import MaintenanceJob
from benchmarks.lake import apply, open_spark, say
from benchmarks.synthetic_batch import SLOT, TABLE_NAME, BatchWriter
from quickstart.spark import LocalLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESPACE = "health"
TARGET = f"lake.{NAMESPACE}.{TABLE_NAME}"
FRESH = f"lake.{NAMESPACE}.fresh"
ROWS = 5_000_000
BATCHES = 500
CHANGES = 1000
#: Batches between two maintenances, and between two measurements.
MAINTAIN_EVERY, MEASURE_EVERY = 25, 125


def maintain(spark: SparkSession, staging: Path) -> float:
    """Seconds of the pipeline's maintenance, with its defaults but that no snapshot is kept."""
    from airflow_provider_pgoutput.apply import maintain as maintenance  # noqa: PLC0415

    job = MaintenanceJob(
        staging_uri=staging.as_uri(),
        catalog="lake",
        namespace=NAMESPACE,
        slot_name=SLOT,
        snapshot_retention_s=0,
    )
    started = time.perf_counter()
    maintenance.maintain(spark, job)
    return time.perf_counter() - started


def read(spark: SparkSession, table: str) -> float:
    """Seconds to read every value of the table."""
    spark.sql(f"REFRESH TABLE {table}")
    started = time.perf_counter()
    spark.table(table).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def compare(spark: SparkSession, repetitions: int) -> dict[str, Any]:
    """The table as the batches left it, beside its rows written anew by Spark."""
    spark.sql(f"DROP TABLE IF EXISTS {FRESH} PURGE")
    spark.sql(f"CREATE TABLE {FRESH} USING iceberg AS SELECT * FROM {TARGET} ORDER BY id")
    times: dict[str, list[float]] = {TARGET: [], FRESH: []}
    for repetition in range(-1, repetitions):
        for table, found in times.items():
            seconds = read(spark, table)
            if repetition >= 0:
                found.append(seconds)
    files = spark.sql(f"SELECT content, count(*) AS n FROM {TARGET}.files GROUP BY content")
    counts = {row["content"]: row["n"] for row in files.collect()}
    medians = {table: statistics.median(found) for table, found in times.items()}
    return {
        "seconds": medians[TARGET],
        "seconds_fresh": medians[FRESH],
        "times_as_slow": medians[TARGET] / medians[FRESH],
        "data_files": counts.get(0, 0),
        "delete_files": counts.get(1, 0),
    }


def run(folder: Path, options: argparse.Namespace) -> dict[int, dict[str, Any]]:
    """What was measured, by the number of batches before it."""
    staging = folder / "staging"
    spark = open_spark(LocalLake(folder / "lake").create())
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{NAMESPACE}")
    writer = BatchWriter(staging, options.rows, most_batches=options.batches + 1)
    apply(spark, NAMESPACE, staging, writer.write_copy().manifest_path)
    found = {}
    for number in range(1, options.batches + 1):
        batch = writer.write_changes(options.changes)
        seconds = apply(spark, NAMESPACE, staging, batch.manifest_path)
        if number % options.measure_every == 0 or number == options.batches:
            found[number] = compare(spark, options.repetitions)
            say(f"after {number} batches: {found[number]}")
        # After the reading: every second one is of a table whose last maintenance was longest ago.
        if options.maintain_every and number % options.maintain_every == 0:
            say(f"batch {number}: {seconds:.2f} s, maintenance: {maintain(spark, staging):.1f} s")
    spark.stop()
    return found


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.file_health", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--changes", type=int, default=CHANGES, help="of one batch")
    parser.add_argument(
        "--maintain-every", type=int, default=MAINTAIN_EVERY, help="batches; 0: never"
    )
    parser.add_argument("--measure-every", type=int, default=MEASURE_EVERY, help="batches")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgoutput-health-", dir="/var/tmp") as folder:
        print(json.dumps(run(Path(folder), options), indent=1))


if __name__ == "__main__":
    main()
