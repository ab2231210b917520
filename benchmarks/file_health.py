"""``python -m benchmarks.file_health``: what reading a table costs after many small batches.

One warm Spark session applies the batches, with a maintenance after every so many of them, and
now and then reads the table and a fresh copy of the same rows. Prints medians in seconds, also in seconds of
the CPU, and the number of files as JSON. With several format versions the same batches go into a table of
each, in turns.
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
from benchmarks.lake import apply, cpu_seconds, open_spark, say
from benchmarks.synthetic_batch import SLOT, TABLE_NAME, BatchWriter
from quickstart.spark import LocalLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 5_000_000
BATCHES = 500
CHANGES = 1000
#: Batches between two maintenances, and between two measurements.
MAINTAIN_EVERY, MEASURE_EVERY = 25, 125


def maintain(spark: SparkSession, staging: Path, namespace: str) -> float:
    """Seconds of the pipeline's maintenance, with its defaults but that no snapshot is kept."""
    from airflow_provider_pgoutput.apply import maintain as maintenance  # noqa: PLC0415

    job = MaintenanceJob(
        staging_uri=staging.as_uri(),
        catalog_name="lake",
        namespace=namespace,
        slot_name=SLOT,
        snapshot_retention_seconds=0,
    )
    started = time.perf_counter()
    maintenance.maintain(spark, job)
    return time.perf_counter() - started


def read(spark: SparkSession, table: str) -> tuple[float, float]:
    """Seconds to read every value of the table, and seconds of the CPU."""
    spark.sql(f"REFRESH TABLE {table}")
    cpu, started = cpu_seconds(spark), time.perf_counter()
    spark.table(table).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started, cpu_seconds(spark) - cpu


def compare(spark: SparkSession, namespace: str, repetitions: int) -> dict[str, Any]:
    """The table as the batches left it, beside its rows written anew by Spark."""
    target, fresh = f"lake.{namespace}.{TABLE_NAME}", f"lake.{namespace}.fresh"
    spark.sql(f"DROP TABLE IF EXISTS {fresh} PURGE")
    spark.sql(f"CREATE TABLE {fresh} USING iceberg AS SELECT * FROM {target} ORDER BY id")
    times: dict[str, list[tuple[float, float]]] = {target: [], fresh: []}
    for repetition in range(-1, repetitions):
        for table, found in times.items():
            took = read(spark, table)
            if repetition >= 0:
                found.append(took)
    files = spark.sql(
        f"SELECT content, count(*) AS entries, count(DISTINCT file_path) AS files,"
        f" sum(coalesce(content_size_in_bytes, file_size_in_bytes)) AS bytes FROM {target}.files"
        " GROUP BY content"
    )
    counts = {row["content"]: row for row in files.collect()}
    (seconds, cpu), (seconds_fresh, cpu_fresh) = (
        map(statistics.median, zip(*times[table], strict=True)) for table in (target, fresh)
    )
    deletes = counts.get(1)
    return {
        "seconds": seconds,
        "seconds_fresh": seconds_fresh,
        "times_as_slow": seconds / seconds_fresh,
        "cpu_seconds": cpu,
        "cpu_seconds_fresh": cpu_fresh,
        "data_files": counts[0]["files"],
        "delete_files": deletes["files"] if deletes else 0,
        "delete_entries": deletes["entries"] if deletes else 0,
        "delete_bytes": deletes["bytes"] if deletes else 0,
    }


def run(folder: Path, options: argparse.Namespace) -> dict[str, dict[int, dict[str, Any]]]:
    """What was measured, by format version, then by the number of batches before it."""
    staging = folder / "staging"
    spark = open_spark(LocalLake(folder / "lake").create())
    writer = BatchWriter(staging, options.rows, most_batches=options.batches + 1)
    copy = writer.write_copy()
    namespaces = {f"health_{version}": version for version in options.format_versions}
    for namespace, version in namespaces.items():
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{namespace}")
        apply(spark, namespace, staging, copy.manifest_path, format_version=version)
    found: dict[str, dict[int, dict[str, Any]]] = {each: {} for each in namespaces}
    applied: dict[str, list[float]] = {each: [] for each in namespaces}
    for number in range(1, options.batches + 1):
        batch = writer.write_changes(options.changes)
        for namespace in namespaces:
            applied[namespace].append(apply(spark, namespace, staging, batch.manifest_path))
        if number % options.measure_every == 0 or number == options.batches:
            for namespace in namespaces:
                measured = compare(spark, namespace, options.repetitions)
                measured["apply_seconds"] = statistics.median(applied[namespace])
                applied[namespace].clear()
                found[namespace][number] = measured
                say(f"{namespace} after {number} batches: {measured}")
        # After the reading: every second one is of a table whose last maintenance was longest ago.
        if options.maintain_every and number % options.maintain_every == 0:
            for namespace in namespaces:
                seconds = maintain(spark, staging, namespace)
                found[namespace].setdefault(number, {})["maintenance_seconds"] = seconds
                say(f"{namespace}, batch {number}: maintenance {seconds:.1f} s")
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
    parser.add_argument("--format-versions", type=int, nargs="+", default=[2])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgoutput-health-", dir="/var/tmp") as folder:
        print(json.dumps(run(Path(folder), options), indent=1))


if __name__ == "__main__":
    main()
