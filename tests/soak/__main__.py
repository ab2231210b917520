"""``python -m tests.soak --minutes 30``: server, lake and Spark, and a pipeline under load between them."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG, TableOptions
from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation
from quickstart.spark import LocalLake, local_conf, spark_environment
from tests.conformance.pipeline import Pipeline
from tests.faults.workload import LOG_TABLE
from tests.soak.load import Load, prepare
from tests.soak.run import Soak

_COMPARISONS = 4


def main() -> int:
    """Soak; 1 when something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=100, help="transactions of pgbench in a second")
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="pgoutput-soak-"))
    try:
        _soak(home, arguments)
    except AssertionError as error:
        print(f"DIFFERENT: {error}")
        return 1
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return 0


def _soak(home: Path, arguments: argparse.Namespace) -> None:
    os.environ.update(spark_environment())
    from pyspark.sql import SparkSession

    lake = LocalLake(home / "lake").create()
    builder = SparkSession.builder.master("local[2]").appName("pgoutput-soak")
    for name, value in {**local_conf(), **lake.spark_conf()}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    installation = find_or_fetch_installation(18)
    server_home = Path(tempfile.mkdtemp(prefix="pgoutput-soak-server-"))
    server = EmbeddedPostgres(server_home, installation=installation, settings={"fsync": "off"})
    try:
        server.start()
        pgbench = str(installation.program("pgbench"))
        prepare(server.conninfo(), pgbench)
        pipeline = Pipeline(
            conninfo=server.conninfo(),
            slot_name="soak",
            publication_names=("p",),
            namespace="soak",
            staging=home / "staging",
            catalog_properties=lake.pyiceberg_properties(),
            spark=spark,
            plan_options={
                "table_options": {f"public.{LOG_TABLE}": TableOptions(mode=CHANGE_LOG)},
                # They would keep the files of each batch for days.
                "tag_retention_days": 0,
            },
        )
        pipeline.staging.mkdir()
        # The first run, so that no row of the journal is in the copy and in the count of its changes.
        first = pipeline.stage()
        pipeline.apply(first)
        load = Load(server.conninfo(), pgbench, arguments.seed, arguments.rate)
        soak = Soak(pipeline, load, home / "lake" / "warehouse", arguments.seed)
        try:
            for _ in range(_COMPARISONS):
                soak.go_on(time.monotonic() + arguments.minutes * 60 / _COMPARISONS)
                soak.compare()
        finally:
            load.stop()
        print(f"seed {arguments.seed}, {arguments.minutes:g} minutes: {soak.summary()}")
    finally:
        spark.stop()
        server.destroy()


if __name__ == "__main__":
    sys.exit(main())
