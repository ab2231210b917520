"""``python -m benchmarks.many_slices``: many tables in one table of the lake, beside a table for each.

One warm Spark session applies the same batches both ways. Each table has few rows, and each batch changes a
few of them. Prints for each case, as JSON: seconds and CPU seconds of the copy and of a batch (medians), and
the size of the newest metadata file of the shared table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.jobs import TableOptions
from benchmarks.lake import apply, cpu_seconds, open_spark, say
from benchmarks.synthetic_batch import TABLE_NAME, BatchWriter, joined
from quickstart.spark import LocalLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = (50, 200)
ROWS = 640
CHANGES = 10
#: The last one is a shared table that is partitioned by its constant column.
OWN, SHARED, PARTITIONED = "own", "shared", "partitioned"
WAYS = (OWN, SHARED, PARTITIONED)


@dataclass
class Case:
    """So many tables, written in one way."""

    spark: SparkSession
    folder: Path
    tables: int
    way: str
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    copy_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._name = f"{self.way}_{self.tables}"
        self._staging = self.folder / self._name
        self._writers = [BatchWriter(self._staging, ROWS, table=n) for n in range(self.tables)]
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{self._name}")

    def copy(self) -> None:
        """The first batch."""
        batches = [writer.write_copy() for writer in self._writers]
        self.copy_seconds = self._apply(joined(self._staging, batches))

    def change(self) -> None:
        """A batch that changes each table."""
        batches = [writer.write_changes(CHANGES) for writer in self._writers]
        before = cpu_seconds(self.spark)
        self.seconds.append(self._apply(joined(self._staging, batches)))
        self.cpu.append(cpu_seconds(self.spark) - before)

    def _apply(self, manifest_path: Path) -> float:
        options: dict[str, Any] = {}
        if self.way != OWN:
            options["shared_names"] = {rf"public\.{TABLE_NAME}(?P<tenant>.*)": "shared"}
        if self.way == PARTITIONED:
            # The slice that comes first makes the partitions.
            names = (f"public.{each}" for each in (TABLE_NAME, *self._later_names()))
            table = TableOptions(partitioned_by=("tenant",))
            options["table_options"] = dict.fromkeys(names, table)
        return apply(self.spark, self._name, self._staging, manifest_path, **options)

    def _later_names(self) -> list[str]:
        return [f"{TABLE_NAME}_{number}" for number in range(1, self.tables)]

    def figures(self) -> dict[str, float]:
        """What was measured; the first batch of changes warms Java's compiler."""
        found = {
            "copy, seconds": round(self.copy_seconds, 1),
            "batch, seconds": round(statistics.median(self.seconds[1:]), 2),
            "batch, CPU seconds": round(statistics.median(self.cpu[1:]), 2),
        }
        if self.way != OWN:
            tables = (self.folder / "lake" / "warehouse" / self._name / "shared" / "metadata").glob(
                "*.metadata.json"
            )
            newest = max(tables, key=lambda path: path.stat().st_mtime)
            found["metadata, KiB"] = newest.stat().st_size // 1024
            found["snapshots"] = len(json.loads(newest.read_text())["snapshots"])
        return found


def run(folder: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The figures by case."""
    spark = open_spark(LocalLake(folder / "lake").create())
    found = {}
    for tables in options.tables:
        for way in options.ways:
            began = time.monotonic()
            case = Case(spark, folder, tables, way)
            case.copy()
            for _ in range(options.repetitions + 1):
                case.change()
            found[f"{tables} {way}"] = case.figures()
            say(f"{tables} {way}: {case.figures()} ({time.monotonic() - began:.0f} s)")
    spark.stop()
    return found


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_slices", description=__doc__)
    parser.add_argument("--tables", nargs="+", type=int, default=list(TABLES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgoutput-slices-", dir="/var/tmp") as folder:
        print(json.dumps(run(Path(folder), options), indent=1))


if __name__ == "__main__":
    main()
