"""Spark's classes come from Java's archive; a Java that cannot write one is asked once."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from quickstart import class_archive
from quickstart.spark import (
    LocalLake,
    class_archive_option,
    local_conf,
    spark_environment,
    write_class_archive,
)

if TYPE_CHECKING:
    from pathlib import Path

_JOB = """\
from pyspark.sql import SparkSession
session = SparkSession.builder.getOrCreate()
session.sql("CREATE TABLE lake.archived.t (n int) USING iceberg")
session.stop()
"""


@pytest.mark.submit
def test_icebergs_classes_come_from_the_archive(tmp_path: Path) -> None:
    write_class_archive()
    if not class_archive_option():
        pytest.skip("this Java writes no archive of classes")
    lake = LocalLake(tmp_path / "lake").create()
    script, loaded = tmp_path / "job.py", tmp_path / "loaded.txt"
    script.write_text(_JOB)
    conf = local_conf("1g") | lake.spark_conf()
    conf["spark.driver.extraJavaOptions"] += f" -Xlog:class+load:file={loaded}"
    command = ["spark-submit", "--master", "local[2]"]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    environment = {**os.environ, **spark_environment()}
    subprocess.run([*command, str(script)], env=environment, check=True, capture_output=True)
    lines = [line for line in loaded.read_text().splitlines() if " org.apache.iceberg." in line]
    archived = [line for line in lines if "shared objects file" in line]
    assert len(archived) > 0.9 * len(lines) > 100


def test_a_java_that_writes_no_archive_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    java, spark, jar = tmp_path / "java", tmp_path / "spark", tmp_path / "some.jar"
    for path in (
        java / "bin" / "java",
        spark / "bin" / "spark-submit",
        spark / "jars" / "a.jar",
        jar,
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    asked = tmp_path / "asked"
    submit = spark / "bin" / "spark-submit"
    submit.write_text(f"#!/bin/sh\necho once >> {asked}\nexit 1\n")
    submit.chmod(0o755)
    for _ in range(2):
        conf = {"spark.driver.extraJavaOptions": "-Dsome=thing"}
        class_archive.write(java, [jar], spark, conf, dict(os.environ))
        assert class_archive.java_option(java, [jar], spark) == ""
    assert asked.read_text() == "once\n"
