"""Applies a staged batch whenever it is told to, in one warm Spark session; ``beside.py`` tells it.

The code of another checkout runs this file, too. So it asks little of that code.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.lake import apply, open_spark
from quickstart.spark import LocalLake


def serve(folder: Path) -> None:
    """For each line (namespace, staging area, manifest) apply that batch, and print the seconds.

    :param folder: where the lake is made.
    """
    spark = open_spark(LocalLake(folder).create())
    for line in sys.stdin:
        namespace, staging, manifest = json.loads(line)
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{namespace}")
        seconds = apply(spark, namespace, Path(staging), Path(manifest))
        print(json.dumps({"seconds": seconds}), flush=True)
    spark.stop()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
