"""``python -m benchmarks.growth``: what the same changes cost in tables of different sizes.

Each kind of change gets tables of one, ten and a hundred million rows, and batches of 10,000 changes
of which each table has its own. The tables take turns; one warm Spark session applies everything.
Prints medians in seconds as JSON. What is not here: the comparison with a MERGE (``apply_once.py``).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.lake import apply, open_spark, say
from benchmarks.synthetic_batch import TABLE_NAME, BatchWriter
from quickstart.spark import LocalLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Kind of key and whether the changes are of the newest rows, by the name of the kind of changes.
KINDS = {
    "recent bigint": ("bigint", True),
    "recent uuid v7": ("uuid v7", True),
    "random bigint": ("bigint", False),
    "random uuid": ("uuid", False),
    "random text pair": ("text pair", False),
}
ROWS = (1_000_000, 10_000_000, 100_000_000)
CHANGES = 10_000


@dataclass(frozen=True, slots=True)
class GrowingTable:
    """One table, its staging area and its namespace."""

    rows: int
    namespace: str
    staging: Path
    writer: BatchWriter


def make_table(
    spark: SparkSession, folder: Path, key: str, rows: int, format_version: int
) -> GrowingTable:
    """A table by the pipeline's own initial copy; its staged files are gone afterwards."""
    namespace = f"{key.replace(' ', '_')}_{rows}"
    staging = folder / namespace
    writer = BatchWriter(staging, rows, key=key)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{namespace}")
    copy = writer.write_copy()
    # The table keeps it, whatever later applies say.
    options: dict[str, Any] = {"format_version": format_version}
    seconds = apply(spark, namespace, staging, copy.manifest_path, **options)
    say(f"{key}: initial copy of {rows:,} rows: {seconds:.1f} s")
    for path in staging.rglob("copy-*.parquet"):
        path.unlink()
    return GrowingTable(rows, namespace, staging, writer)


def measure(
    spark: SparkSession, tables: list[GrowingTable], changes: int, recent: bool, repetitions: int
) -> dict[int, float]:
    """Median seconds by the number of rows of the table."""
    found: dict[int, list[float]] = {table.rows: [] for table in tables}
    # The first two rounds warm Java's compiler.
    for repetition in range(-2, repetitions):
        for table in tables if repetition % 2 else reversed(tables):
            batch = table.writer.write_changes(changes, recent=recent)
            seconds = apply(spark, table.namespace, table.staging, batch.manifest_path)
            say(f"{table.namespace}: {changes} changes: {seconds:.2f} s")
            if repetition >= 0:
                found[table.rows].append(seconds)
    return {rows: statistics.median(times) for rows, times in found.items()}


def remove(spark: SparkSession, tables: list[GrowingTable]) -> None:
    """Drop tables and what was staged for them: all kinds together would need much space."""
    for table in tables:
        spark.sql(f"DROP TABLE lake.{table.namespace}.{TABLE_NAME} PURGE")
        shutil.rmtree(table.staging)


def run(folder: Path, options: argparse.Namespace) -> dict[str, dict[int, float]]:
    """All kinds, one after the other; tables of kinds with the same key are made once."""
    spark = open_spark(LocalLake(folder / "lake").create())
    found = {}
    for key in dict.fromkeys(KINDS[kind][0] for kind in options.kinds):
        tables = [
            make_table(spark, folder, key, rows, options.format_version) for rows in options.rows
        ]
        for kind in options.kinds:
            if KINDS[kind][0] == key:
                found[kind] = measure(
                    spark, tables, options.changes, KINDS[kind][1], options.repetitions
                )
        remove(spark, tables)
    spark.stop()
    return found


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--format-version", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgoutput-growth-", dir="/var/tmp") as folder:
        print(json.dumps(run(Path(folder), options), indent=1))


if __name__ == "__main__":
    main()
