"""Which jars a pipeline needs, by its catalog and its stores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch.spark_packages import (
    MYSQL,
    POSTGRESQL,
    Package,
    SparkVersions,
    aws,
    azure,
    google,
    needed,
    package_of,
    runtime,
    staging_on_s3,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SPARK = SparkVersions("4.1.3", "2.13.17", "3.4.2")
RESOLVING = "org.apache.iceberg.io.ResolvingFileIO"


@pytest.mark.parametrize(
    ("catalog", "staging_uri", "expected"),
    [
        ({"type": "rest", "warehouse": "main"}, "file:///staging", []),
        ({"type": "rest", "s3.endpoint": "http://x"}, "file:///staging", [aws(SPARK)]),
        # These may be there for other catalogs of the connection.
        ({"warehouse": "file:///lake", "s3.access-key-id": "x"}, "file:///staging", []),
        ({"type": "glue"}, "/staging", [aws(SPARK)]),
        (
            {"type": "jdbc", "uri": "jdbc:postgresql://h/d", "warehouse": "s3://b"},
            "file:///staging",
            [POSTGRESQL, aws(SPARK)],
        ),
        ({"type": "jdbc", "uri": "jdbc:mysql://h/d", "warehouse": "/lake"}, "/staging", [MYSQL]),
        (
            {"warehouse": "s3a://b", "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"},
            "s3://b/staging",
            [staging_on_s3(SPARK)],
        ),
        ({"type": "hive", "warehouse": "gs://b", "io-impl": RESOLVING}, "gs://b", [google(SPARK)]),
        ({"type": "hive", "warehouse": "abfss://c@a/x", "io-impl": RESOLVING}, "", [azure(SPARK)]),
    ],
)
def test_what_is_needed(catalog: dict[str, str], staging_uri: str, expected: list[Package]) -> None:
    assert list(needed(SPARK, catalog, staging_uri)) == [runtime(SPARK), *expected]


def test_a_class_leads_to_the_jars_that_have_it() -> None:
    def jars(class_name: str) -> Package | None:
        return package_of(class_name, SPARK)

    assert jars("software.amazon.awssdk.services.s3.S3Client") == aws(SPARK)
    assert jars("software.amazon.awssdk.transfer.s3.S3TransferManager") == staging_on_s3(SPARK)
    assert jars("org.apache.iceberg.spark.SparkCatalog") == runtime(SPARK)
    assert jars("com.example.Mine") is None


@pytest.mark.parametrize("bundle", [aws, azure, google])
def test_the_client_of_a_store_has_the_version_of_iceberg(
    bundle: Callable[[SparkVersions], Package],
) -> None:
    older = SparkVersions("4.0.5", "2.13.16", "3.4.1")
    assert runtime(older).names.endswith(":1.11.0")
    assert bundle(older).names.endswith(":1.11.0")
    assert bundle(SPARK).names.endswith(":1.12.0")
    assert bundle(replace(SPARK, iceberg="1.10.1")).names.endswith(":1.10.1")


def test_the_aws_sdk_is_that_of_the_iceberg() -> None:
    """The clients that Iceberg 1.11 makes are not in the bundle of 1.12."""
    spark = SparkVersions("4.0.5", "2.13.16", "3.4.1")
    assert aws(spark).names.endswith(":1.11.0")
    sdk = {each.rpartition(":")[2] for each in staging_on_s3(spark).coordinates[2:]}
    assert sdk == {"2.44.4"}
