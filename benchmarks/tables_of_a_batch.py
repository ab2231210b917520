"""``python -m benchmarks.tables_of_a_batch``: the same changes in one batch of few and of many tables.

All tables together have the same rows and get the same number of changes, whatever their number. One
warm Spark session applies everything; they take turns. Prints medians in seconds as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.lake import apply, open_spark, say
from benchmarks.synthetic_batch import BatchWriter, joined
from quickstart.spark import LocalLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = (20, 200)
ROWS = 2_000_000
CHANGES = 20_000


class Namespace:
    """So many tables with their staging area."""

    def __init__(
        self, spark: SparkSession, folder: Path, tables: int, order: argparse.Namespace
    ) -> None:
        self._spark = spark
        self.tables = tables
        self._format_version = order.format_version
        self._name = f"tables_{tables}"
        self._staging = folder / self._name
        each = order.rows // tables
        self._writers = [BatchWriter(self._staging, each, table=n) for n in range(tables)]
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{self._name}")

    def copy(self) -> float:
        """Seconds of the initial copy."""
        batches = [writer.write_copy() for writer in self._writers]
        return self._apply(joined(self._staging, batches))

    def change(self, changes: int) -> float:
        """Seconds of so many changes, each table its share."""
        share = changes // self.tables
        batches = [writer.write_changes(share) for writer in self._writers]
        return self._apply(joined(self._staging, batches))

    def _apply(self, manifest_path: Path) -> float:
        version = self._format_version
        return apply(self._spark, self._name, self._staging, manifest_path, format_version=version)


def run(folder: Path, options: argparse.Namespace) -> dict[int, float]:
    """Median seconds by number of tables."""
    spark = open_spark(LocalLake(folder / "lake").create())
    spaces = [Namespace(spark, folder, tables, options) for tables in options.tables]
    for space in spaces:
        say(f"{space.tables} tables: initial copy: {space.copy():.1f} s")
    found: dict[int, list[float]] = {space.tables: [] for space in spaces}
    # The first round warms Java's compiler.
    for repetition in range(-1, options.repetitions):
        for space in spaces if repetition % 2 else reversed(spaces):
            seconds = space.change(options.changes)
            say(f"{space.tables} tables: {options.changes} changes: {seconds:.2f} s")
            if repetition >= 0:
                found[space.tables].append(seconds)
    spark.stop()
    return {tables: statistics.median(times) for tables, times in found.items()}


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tables_of_a_batch", description=__doc__
    )
    parser.add_argument("--tables", nargs="+", type=int, default=list(TABLES))
    parser.add_argument("--rows", type=int, default=ROWS, help="of all tables together")
    parser.add_argument("--changes", type=int, default=CHANGES, help="of all tables together")
    parser.add_argument("--format-version", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgoutput-tables-", dir="/var/tmp") as folder:
        print(json.dumps(run(Path(folder), options), indent=1))


if __name__ == "__main__":
    main()
