"""``python -m benchmarks.few_changes``: ten changes in each of many small tables, in one warm Spark session.

Three ways take turns: the apply as it is, the apply with all tables left to Spark, and a bare ``MERGE`` of
the folded rows for each table, four at the same time, as the apply prepares them. At the end all must hold
the same rows. Prints medians a table as JSON: seconds, and CPU seconds of Python and Java together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.lake import apply, cpu_seconds, open_spark, say
from benchmarks.synthetic_batch import TABLE_NAME, BatchWriter, SyntheticBatch, joined
from quickstart.spark import LocalLake

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

TABLES, ROWS, CHANGES = 100, 10_000, 10
#: Tables that are written at the same time, as ``WriteJob.parallel_tables`` has it.
_AT_ONCE = 4
_COLUMNS = ("id", "a", "b", "c", "d")
_MERGED = "merge"


class Cost(NamedTuple):
    """What a batch took, for each table."""

    seconds: float
    cpu_seconds: float


class Contender:
    """Tables of one namespace, and the batches that they get."""

    def __init__(
        self, spark: SparkSession, folder: Path, name: str, order: argparse.Namespace
    ) -> None:
        self._spark, self._name, self._staging = spark, name, folder / name
        self._format_version = order.format_version
        self._writers = [
            BatchWriter(self._staging, order.rows, table=number) for number in range(order.tables)
        ]
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{name}")
        self._apply([writer.write_copy() for writer in self._writers])

    def change(self, changes: int) -> Cost:
        """Bring so many changes into each table."""
        batches = [writer.write_changes(changes) for writer in self._writers]
        started, before = time.perf_counter(), cpu_seconds(self._spark)
        if self._name == _MERGED:
            with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
                list(pool.map(self._merge, range(len(batches)), batches))
        else:
            self._apply(batches)
        cpu = cpu_seconds(self._spark) - before
        tables = len(self._writers)
        return Cost((time.perf_counter() - started) / tables, cpu / tables)

    def fingerprint(self) -> list[str]:
        """Row count and the sum of the rows' hashes, of each table."""
        found = []
        for number in range(len(self._writers)):
            row = self._spark.sql(
                f"SELECT count(*), sum(CAST(xxhash64({', '.join(_COLUMNS)}) AS decimal(38, 0)))"
                f" FROM {self._table(number)}"
            ).first()
            found.append(str(row))
        return found

    def _apply(self, batches: Sequence[SyntheticBatch]) -> None:
        path = joined(self._staging, batches)
        options: dict[str, Any] = {"format_version": self._format_version}
        apply(self._spark, self._name, self._staging, path, parallel_tables=_AT_ONCE, **options)

    def _table(self, number: int) -> str:
        suffix = f"_{number}" if number else ""
        return f"lake.{self._name}.{TABLE_NAME}{suffix}"

    def _merge(self, number: int, batch: SyntheticBatch) -> None:
        assert batch.folded_path is not None, "a batch of changes has a folded form"
        view = f"folded_{number}"
        self._spark.read.parquet(batch.folded_path.as_uri()).createOrReplaceTempView(view)
        self._spark.sql(
            f"MERGE INTO {self._table(number)} AS target USING {view} AS folded ON target.id = folded.id"
            " WHEN MATCHED AND folded.op = 'D' THEN DELETE"
            f" WHEN MATCHED THEN UPDATE SET {', '.join(f'{c} = folded.{c}' for c in _COLUMNS)}"
            f" WHEN NOT MATCHED AND folded.op <> 'D' THEN INSERT ({', '.join(_COLUMNS)})"
            f" VALUES ({', '.join(f'folded.{c}' for c in _COLUMNS)})"
        )


def _without(changes: int | None, run: Callable[[], Cost]) -> Cost:
    """Run with all tables left to Spark, if ``changes`` is 0."""
    from airflow_provider_pgoutput.apply.rows import apply_few  # noqa: PLC0415 - needs PySpark

    usual = apply_few.MOST_CHANGES
    if changes is not None:
        apply_few.MOST_CHANGES = changes
    try:
        return run()
    finally:
        apply_few.MOST_CHANGES = usual


def run(folder: Path, order: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Medians of each way."""
    spark = open_spark(LocalLake(folder / "lake").create())
    names = {"apply": None, "apply_by_spark": 0, _MERGED: None}
    contenders = {name: Contender(spark, folder, name, order) for name in names}
    found: dict[str, list[Cost]] = {name: [] for name in names}
    # The first rounds warm Java's compiler.
    for repetition in range(-order.warm_up, order.repetitions):
        for name in names if repetition % 2 else reversed(names):
            contender = contenders[name]
            cost = _without(names[name], lambda: contender.change(order.changes))  # noqa: B023 - run at once
            say(f"{name}: {cost.seconds:.3f} s, {cost.cpu_seconds:.3f} CPU s a table")
            if repetition >= 0:
                found[name].append(cost)
    first, *others = (each.fingerprint() for each in contenders.values())
    if any(each != first for each in others):
        raise RuntimeError("the tables differ")
    spark.stop()
    return {
        name: Cost(*(statistics.median(each) for each in zip(*costs, strict=True)))._asdict()
        for name, costs in found.items()
    }


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.few_changes", description=__doc__)
    parser.add_argument("--tables", type=int, default=TABLES)
    parser.add_argument("--rows", type=int, default=ROWS, help="of each table")
    parser.add_argument("--changes", type=int, default=CHANGES, help="of each table")
    parser.add_argument("--format-version", type=int, default=2)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before those that count")
    parser.add_argument("--repetitions", type=int, default=3)
    with tempfile.TemporaryDirectory(prefix="pgoutput-few-", dir="/var/tmp") as folder:
        print(json.dumps(run(Path(folder), parser.parse_args()), indent=1))


if __name__ == "__main__":
    main()
