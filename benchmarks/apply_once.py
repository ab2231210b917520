"""Applies synthetic batches and runs a bare MERGE of the same rows, in one warm Spark session.

``python -m benchmarks.apply_once`` reads its order as JSON from standard input and prints its result
as the last line: medians in seconds. Both sides start from the same rows and get the same
batches in turns; at the end their tables are compared, so a fast wrong answer does not count.

The bare MERGE is one statement on a table without any of the pipeline's guarantees: its rows are
folded beforehand, there is no fold, no marker, no branch, no checkpoint.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.lake import apply, open_spark, say
from benchmarks.synthetic_batch import TABLE_NAME, BatchWriter, SyntheticBatch
from quickstart.spark import LocalLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESPACE = "bench"
TARGET = f"lake.{NAMESPACE}.{TABLE_NAME}"
MERGED = f"lake.{NAMESPACE}.merged"
#: Ends the name of a size whose changes are of recent rows, but for a few.
RECENT = " recent"


def copy_properties(spark: SparkSession) -> None:
    """Make the MERGE's table: same rows, same files layout, same table properties."""
    rows = spark.sql(f"SHOW TBLPROPERTIES {TARGET}").collect()
    kept = {
        row["key"]: row["value"]
        for row in rows
        if row["key"] == "format-version" or row["key"].startswith("write.")
    }
    properties = ", ".join(f"'{key}'='{value}'" for key, value in kept.items())
    spark.sql(
        f"CREATE TABLE {MERGED} USING iceberg TBLPROPERTIES ({properties}) AS SELECT * FROM {TARGET}"
    )


def merge(spark: SparkSession, batch: SyntheticBatch) -> float:
    """Seconds of one upsert MERGE of the rows that are folded already."""
    assert batch.folded_path is not None, "the initial copy has no folded form"
    spark.read.parquet(batch.folded_path.as_uri()).createOrReplaceTempView("folded")
    columns = ("id", "a", "b", "c", "d")
    started = time.perf_counter()
    spark.sql(
        f"MERGE INTO {MERGED} AS target USING folded ON target.id = folded.id"
        " WHEN MATCHED AND folded.op = 'D' THEN DELETE"
        f" WHEN MATCHED THEN UPDATE SET {', '.join(f'{c} = folded.{c}' for c in columns)}"
        f" WHEN NOT MATCHED AND folded.op <> 'D' THEN INSERT ({', '.join(columns)})"
        f" VALUES ({', '.join(f'folded.{c}' for c in columns)})"
    )
    return time.perf_counter() - started


def fingerprint(spark: SparkSession, table: str) -> tuple[int, str]:
    """Row count and the sum of the rows' hashes."""
    row = spark.sql(
        "SELECT count(*) AS n, sum(CAST(xxhash64(id, a, b, c, d) AS decimal(38, 0))) AS h"
        f" FROM {table}"
    ).first()
    assert row is not None, "an aggregate without groups has one row"
    return int(row["n"]), str(row["h"])


def run(order: dict[str, object]) -> dict[str, object]:
    """The whole comparison; ``order`` holds folder, table_rows, sizes and repetitions."""
    folder = Path(str(order["folder"]))
    sizes = {str(k): int(v) for k, v in dict(order["sizes"]).items()}  # type: ignore[call-overload]
    repetitions = int(str(order["repetitions"]))
    staging = folder / "staging"
    writer = BatchWriter(staging, int(str(order["table_rows"])))
    spark = open_spark(LocalLake(folder / "lake").create())
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{NAMESPACE}")
    copy_seconds = apply(spark, NAMESPACE, staging, writer.write_copy().manifest_path)
    say(f"apply: initial copy of {order['table_rows']} rows: {copy_seconds:.1f} s")
    copy_properties(spark)

    found: dict[str, dict[str, list[float]]] = {}
    # The first round warms Java's compiler for both and is thrown away.
    for repetition in range(-1, repetitions):
        for name, size in sizes.items():
            batch = writer.write_changes(size, recent=name.endswith(RECENT))
            times = found.setdefault(name, {"apply": [], "merge": []})
            for side in ("apply", "merge") if repetition % 2 == 0 else ("merge", "apply"):
                seconds = (
                    apply(spark, NAMESPACE, staging, batch.manifest_path)
                    if side == "apply"
                    else merge(spark, batch)
                )
                say(f"apply: {name} changes, {side}: {seconds:.2f} s")
                if repetition >= 0:
                    times[side].append(seconds)
    equal = fingerprint(spark, TARGET) == fingerprint(spark, MERGED)
    spark.stop()
    return {
        "copy_seconds": copy_seconds,
        "tables_equal": equal,
        "peak_mib_of_python": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "seconds": {
            name: {side: statistics.median(times) for side, times in sides.items()}
            for name, sides in found.items()
        },
    }


if __name__ == "__main__":
    print(json.dumps(run(json.load(sys.stdin))))
