"""A job looks, before it reads a row, whether Spark has what it needs, and says what is missing."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.apply.iceberg.requirements import check
from airflow_provider_pgoutput.batch.exit_status import FATAL
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.spark_submit.files import spark_files
from quickstart.jars import ICEBERG_SPARK_RUNTIME, Artifact, fetch_jars
from quickstart.spark import local_conf, site_conf, spark_environment
from tests.apply.build import column
from tests.faults.object_store import BUCKET, Action, Fault, ObjectStore

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from quickstart.spark import LocalLake
    from tests.apply.build import Source


_AWS_BUNDLE = Artifact(
    "org.apache.iceberg",
    "iceberg-aws-bundle",
    "1.12.0",
    "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
)


def test_a_spark_that_has_all(spark: SparkSession) -> None:
    check(spark, "lake")


def test_a_catalog_that_spark_was_not_told_of(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match=r"set spark\.sql\.catalog\.other "):
        check(spark, "other")


@pytest.fixture
def job(source: Source, tmp_path: Path) -> Path:
    """The file of a job with one row."""
    source.table("t", (column("a"),), key=("a",)).insert(1)
    path = tmp_path / "job.json"
    path.write_text(source.stage().to_json(), encoding="utf-8")
    return path


def failure_of(job: Path, conf: dict[str, str]) -> tuple[str, str]:
    """Class and message of the error with which a whole job ends, by real spark-submit."""
    with spark_files({}, None) as files:
        command = [f"{spark_environment()['SPARK_HOME']}/bin/spark-submit"]
        command += [part for each in conf.items() for part in ("--conf", "=".join(each))]
        command += ["--py-files", files.package_zip, files.application, "--job-uri", job.as_uri()]
        environment = {**os.environ, **spark_environment()}
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == FATAL, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads(job.with_suffix(".result.json").read_text(encoding="utf-8"))
    return result["error"], result["message"]


@pytest.mark.slow
@pytest.mark.submit
def test_a_spark_without_icebergs_jar(job: Path, local_lake: LocalLake) -> None:
    conf = {**local_conf("1g"), **local_lake.spark_conf(), "spark.master": "local[1]"}
    del conf["spark.jars"], conf["spark.driver.extraClassPath"]
    error, message = failure_of(job, conf)
    assert error == "ConfigurationError"
    assert ICEBERG_SPARK_RUNTIME.coordinates in message


@pytest.mark.submit
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"spark.sql.extensions": "no.such.Extensions"}, "IcebergSparkSessionExtensions"),
        (
            {
                "spark.sql.catalog.lake.warehouse": f"s3://{BUCKET}/warehouse",
                "spark.sql.catalog.lake.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            },
            _AWS_BUNDLE.coordinates,
        ),
    ],
    ids=["extensions", "store"],
)
def test_a_spark_without_what_the_catalog_needs(
    job: Path, local_lake: LocalLake, changed: dict[str, str], named: str
) -> None:
    assert local_lake.catalog_name == "lake"
    conf = {**local_conf("1g"), **local_lake.spark_conf(), "spark.master": "local[1]"}
    error, message = failure_of(job, conf | changed)
    assert error == "ConfigurationError", message
    assert named in message


@pytest.mark.submit
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        ((403, "SignatureDoesNotMatch"), "LakeDenied"),
        ((403, "AccessDenied"), "LakeDenied"),
        ((404, "NoSuchBucket"), "ConfigurationError"),
    ],
)
def test_a_store_that_refuses_sparks_login(
    job: Path, local_lake: LocalLake, refusal: tuple[int, str], error: str
) -> None:
    """The driver learns it when it writes the metadata of the first table."""
    prefix = f"spark.sql.catalog.{local_lake.catalog_name}"
    with ObjectStore() as store:
        store.fail(Fault(Action.REFUSE, lambda _: True, 10_000, refusal=refusal))
        conf = {**site_conf("1g"), **local_lake.spark_conf(), "spark.master": "local[1]"}
        conf["spark.jars"] += f",{fetch_jars((_AWS_BUNDLE,))[0]}"
        conf |= {
            f"{prefix}.warehouse": f"s3://{BUCKET}/warehouse",
            f"{prefix}.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            f"{prefix}.client.region": "us-east-1",
            f"{prefix}.s3.endpoint": store.environment["AWS_ENDPOINT_URL"],
            f"{prefix}.s3.path-style-access": "true",
            f"{prefix}.s3.access-key-id": "nobody",
            f"{prefix}.s3.secret-access-key": "canary",
        }
        found, message = failure_of(job, conf)
    assert found == error, message
    assert str(refusal[0]) in message or "bucket" in message
    assert "canary" not in message
