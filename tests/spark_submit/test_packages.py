"""``packages="auto"`` and coordinates beside it: which jars spark-submit gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.spark_submit.packages import with_needed

if TYPE_CHECKING:
    from pathlib import Path

_ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13"
_ON_S3 = {"type": "glue"}


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    """A folder with the names of Spark's jars, by which its versions are known."""
    (tmp_path / "jars").mkdir()
    for name in ("spark-core_2.13-4.1.3.jar", "hadoop-client-api-3.4.2.jar"):
        (tmp_path / "jars" / name).touch()
    return tmp_path


def jars(spark: Path, packages: str, catalog: dict[str, str], staging_uri: str = "/s") -> list[str]:
    """What spark-submit gets."""
    found, _ = with_needed(packages, None, spark, catalog, staging_uri)
    assert found is not None
    return found.split(",")


def test_a_named_coordinate_takes_the_place_of_the_same_jar(spark: Path) -> None:
    mine = "org.postgresql:postgresql:42.7.1"
    catalog = {"type": "jdbc", "uri": "jdbc:postgresql://h/d", "warehouse": "/lake"}
    assert jars(spark, f"auto,{mine}", catalog) == [mine, f"{_ICEBERG}:1.12.0"]


def test_the_jars_that_go_with_a_named_iceberg_have_its_version(spark: Path) -> None:
    found = jars(spark, f"{_ICEBERG}:1.11.0,auto", _ON_S3, "s3://b/staging")
    assert found == [
        f"{_ICEBERG}:1.11.0",
        "org.apache.iceberg:iceberg-aws-bundle:1.11.0",
        "org.apache.hadoop:hadoop-aws:3.4.2",
        "software.amazon.awssdk:s3-transfer-manager:2.44.4",
        "software.amazon.awssdk:apache-client:2.44.4",
    ]


def test_a_jar_whose_version_nobody_knows_has_to_be_named(spark: Path) -> None:
    named = f"{_ICEBERG}:1.9.0"
    with pytest.raises(ConfigurationError, match=r"s3-transfer-manager, .*Iceberg 1\.9\.0"):
        jars(spark, f"auto,{named}", _ON_S3, "s3://b/staging")
    parts = [
        f"software.amazon.awssdk:{each}:2.30.0" for each in ("s3-transfer-manager", "apache-client")
    ]
    found = jars(spark, ",".join(["auto", named, *parts]), _ON_S3, "s3://b/staging")
    assert [each for each in found if ":2.30.0" in each] == parts


def test_the_iceberg_of_another_spark_is_refused(spark: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"not for Spark 4\.1\.3 with Scala 2\.13"):
        jars(spark, "auto,org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.12.0", {})


def test_a_named_iceberg_is_enough_for_a_spark_that_the_table_lacks(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    for name in ("spark-core_2.13-9.0.1.jar", "hadoop-client-api-3.4.2.jar"):
        (tmp_path / "jars" / name).touch()
    named = "org.apache.iceberg:iceberg-spark-runtime-9.0_2.13:2.0.0"
    assert jars(tmp_path, f"auto,{named}", {"type": "rest"}) == [named]
