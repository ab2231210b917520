"""A standalone cluster applies a large batch: all of its executors do, and the result is that of one process.

What runs there has nothing but Spark: the driver is a Python without this package, the executors have no
Python at all. What is not here: copies by a cluster (``tests/airflow/test_spark_copy.py``), and executors
that die (``tests/faults/test_executors.py``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.spark_submit.files import spark_files
from quickstart.spark import spark_environment, spark_jars
from tests.conformance.compare import connect, lake_fields, read_source
from tests.conformance.pipeline import CATALOG, Batch, Pipeline
from tests.spark_cluster import WORKERS, SparkCluster, standalone_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from quickstart.spark import LocalLake

pytestmark = pytest.mark.submit

_ROWS = 60_000
_CHANGES = (
    f"UPDATE t SET b = b || ' again' WHERE a % 3 = 0 AND a <= {_ROWS}",
    "DELETE FROM t WHERE a % 7 = 0",
    f"INSERT INTO t SELECT g, 'new ' || g, g / 3.0 FROM generate_series({_ROWS + 1}, {_ROWS * 2}) g",
    "UPDATE bag SET b = 'other' WHERE a % 2 = 0",
)


@pytest.fixture
def cluster() -> Iterator[SparkCluster]:
    with standalone_cluster() as started:
        yield started


@pytest.fixture
def pipelines(
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
) -> tuple[Pipeline, Pipeline]:
    """Two pipelines of the same tables: for the cluster, and for this process."""
    with connect(postgres_database) as session:
        for statement in (
            "CREATE TABLE t(a int PRIMARY KEY, b text, c numeric(12, 4))",
            "CREATE TABLE bag(a int, b text)",
            "ALTER TABLE bag REPLICA IDENTITY FULL",
            "CREATE PUBLICATION p FOR TABLE t, bag",
            f"INSERT INTO t SELECT g, 'row ' || g, g / 7.0 FROM generate_series(1, {_ROWS}) g",
            "INSERT INTO bag SELECT g % 500, 'b' FROM generate_series(1, 3000) g",
        ):
            session.execute(statement)
    there, here = (
        Pipeline(
            conninfo=postgres_database,
            slot_name=f"on_{name}",
            publication_names=("p",),
            namespace=f"on_{name}",
            staging=tmp_path / name,
            catalog_properties=lake_catalog_properties,
            spark=spark,
        )
        for name in ("a_cluster", "one_process")
    )
    return there, here


def a_python_without_the_package() -> str:
    """The interpreter that this environment was made from."""
    found = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
    imported = subprocess.run(
        [found, "-c", "import airflow_provider_pgoutput"],
        env={},
        cwd="/",
        capture_output=True,
        check=False,
    )
    assert b"ModuleNotFoundError" in imported.stderr
    return found


def apply_there(cluster: SparkCluster, pipeline: Pipeline, batch: Batch, lake: LocalLake) -> None:
    """Apply a batch as the operator does, on the cluster."""
    plan = pipeline.staging / f"plan-{batch.manifest.batch_id}.json"
    plan.write_text(pipeline.plan(batch).to_json(), encoding="utf-8")
    conf = {
        **cluster.conf(),
        **lake.spark_conf(),
        "spark.master": f"{cluster.host}:{cluster.port}",
        "spark.jars": ",".join(str(path) for path in spark_jars()),
        "spark.sql.shuffle.partitions": "8",
        "spark.pyspark.driver.python": a_python_without_the_package(),
        "spark.pyspark.python": "/no/python/on/executors",
    }
    environment = {**os.environ, **spark_environment()}
    for name in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)
    command = [f"{environment['SPARK_HOME']}/bin/spark-submit"]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    with spark_files({}, None) as files:
        command += ["--py-files", files.package_zip, files.application, "--job-uri", plan.as_uri()]
        done = subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads(plan.with_suffix(".result.json").read_text())
    assert result["status"] == "applied", result


def rows_of(pipeline: Pipeline, table: str) -> DataFrame:
    name = f"{CATALOG}.{pipeline.namespace}.{table}"
    pipeline.spark.catalog.refreshTable(name)
    return pipeline.spark.table(name)


def test_every_executor_applies_and_the_result_is_the_same(
    cluster: SparkCluster, pipelines: tuple[Pipeline, Pipeline], local_lake: LocalLake
) -> None:
    there, here = pipelines
    for each in pipelines:
        each.apply(each.stage())
    with connect(there.conninfo) as session:
        for statement in _CHANGES:
            session.execute(statement)
    apply_there(cluster, there, there.stage(), local_lake)
    here.apply(here.stage())
    (tasks,) = cluster.tasks_by_executor()
    assert len(tasks) == WORKERS
    assert min(tasks.values()) > 1, tasks
    for table in ("t", "bag"):
        ours, theirs = rows_of(there, table), rows_of(here, table)
        assert ours.exceptAll(theirs).isEmpty()
        assert theirs.exceptAll(ours).isEmpty()
        fields = list(lake_fields(there.spark, f"{CATALOG}.{there.namespace}.{table}").values())
        with connect(there.conninfo) as session:
            held = read_source(session, "public", table, fields)
        assert ours.count() == held.total() > 0
