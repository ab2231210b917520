"""A failure that no retry mends is told from one that passes: jars, Java, logins, buckets, on real parts.

The suite's Spark has neither the AWS SDK nor PostgreSQL's driver, so it lacks them for real here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.iceberg.causes import sure_cause
from airflow_provider_pgoutput.apply.iceberg.jvm import JAVA_ERRORS, class_named
from airflow_provider_pgoutput.apply.iceberg.spark_jars import versions_here
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.iceberg.views import refuse_view
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.batch.spark_packages import POSTGRESQL, aws, runtime
from airflow_provider_pgoutput.errors import ConfigurationError, LakeDenied, LakeUnavailable
from tests.apply.build import column
from tests.faults.rest_catalog import RestCatalog

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from quickstart.spark import LocalLake
    from tests.apply.build import Source


def set_catalog(spark: SparkSession, name: str, **properties: str) -> None:
    spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in properties.items():
        spark.conf.set(f"spark.sql.catalog.{name}.{key.replace('_', '-')}", value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "io_impl"),
    [
        ("no_bundle", "org.apache.iceberg.aws.s3.S3FileIO"),
        ("nor_hadoop", "org.apache.iceberg.io.ResolvingFileIO"),
    ],
)
def test_a_warehouse_on_s3_without_the_aws_bundle(
    spark: SparkSession, source: Source, tmp_path: Path, name: str, io_impl: str
) -> None:
    set_catalog(
        spark,
        name,
        type="jdbc",
        uri=f"jdbc:sqlite:{tmp_path}/catalog.db",
        warehouse="s3://bucket/warehouse",
        io_impl=io_impl,
    )
    t = source.table("t", (column("a"),), key=("a",))
    t.insert(1)
    with pytest.raises(ConfigurationError) as stop:
        apply_batch(spark, dataclasses.replace(source.stage(), catalog_name=name))
    assert aws(versions_here()).names in str(stop.value)


def test_a_sql_catalog_without_its_driver(spark: SparkSession) -> None:
    set_catalog(
        spark,
        "no_driver",
        type="jdbc",
        uri="jdbc:postgresql://127.0.0.1:1/c?password=canary",
        warehouse="file:///nowhere",
    )
    with pytest.raises(ConfigurationError) as stop:
        IcebergTable.load(spark, TableName("no_driver", "n", "t"))
    assert POSTGRESQL.names in str(stop.value)
    assert "canary" not in str(stop.value)


def test_a_sql_catalog_that_fails_is_no_sure_cause(spark: SparkSession) -> None:
    """Iceberg wraps the failure of the database in an exception that has no SQLSTATE."""
    set_catalog(
        spark,
        "broken",
        type="jdbc",
        uri="jdbc:sqlite:/no/such/folder/catalog.db",
        warehouse="file:///nowhere",
    )
    with pytest.raises(LakeUnavailable):
        IcebergTable.load(spark, TableName("broken", "n", "t"))


def test_a_sql_catalog_that_may_only_be_read(
    spark: SparkSession, source: Source, tmp_path: Path
) -> None:
    """Iceberg says the same of it as of a lost answer. But a forbidden statement was no commit."""
    uri, warehouse = f"jdbc:sqlite:file:{tmp_path}/catalog.db", tmp_path.as_uri()
    set_catalog(spark, "read_only", type="jdbc", uri=f"{uri}?mode=ro", warehouse=warehouse)
    set_catalog(spark, "written", type="jdbc", uri=uri, warehouse=warehouse)
    spark.sql("CREATE NAMESPACE written.n")
    t = source.table("t", (column("a"),), key=("a",))
    t.insert(1)
    with pytest.raises(LakeDenied):
        apply_batch(spark, dataclasses.replace(source.stage(), catalog_name="read_only"))


def test_views_of_a_catalog_that_has_none_or_does_not_tell(
    spark: SparkSession,
    local_lake: LocalLake,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without an answer the run ends. A right to list views is not needed."""
    warehouse = tmp_path.as_uri()
    uri = f"jdbc:sqlite:{tmp_path}/catalog.db"
    set_catalog(spark, "no_views", type="jdbc", uri=uri, warehouse=warehouse)
    spark.conf.set("spark.sql.catalog.no_views.jdbc.schema-version", "V0")
    spark.sql("CREATE NAMESPACE no_views.n")
    refuse_view(spark, TableName("no_views", "n", "t"))
    refuse_view(spark, TableName("lake", "no_such_namespace", "t"))
    set_catalog(spark, "silent", type="jdbc", uri=f"{uri}/no/file.db", warehouse=warehouse)
    with pytest.raises(LakeUnavailable, match="did not say which views there are"):
        refuse_view(spark, TableName("silent", "n", "t"))
    catalog = RestCatalog(spark, local_lake)
    catalog.attach("denying")
    spark.conf.set("spark.sql.catalog.denying.view-endpoints-supported", "true")
    name = TableName("denying", "n", "t")
    try:
        IcebergTable.load(spark, name)
        catalog.denies = 403
        refuse_view(spark, name)
    finally:
        catalog.stop()
    assert "does not let this login list the views" in caplog.text


def test_a_spark_without_iceberg(spark: SparkSession) -> None:
    """The class of the catalog is not there, and Py4J takes the class for a package."""
    spark.conf.set("spark.sql.catalog.no_iceberg", "org.apache.iceberg.spark.NotThere")
    coordinates = runtime(versions_here()).names
    with pytest.raises(ConfigurationError) as stop:
        IcebergTable.load(spark, TableName("no_iceberg", "n", "t"))
    assert coordinates in str(stop.value)
    with pytest.raises(ConfigurationError) as stop:
        class_named(spark._jvm, "org.apache.iceberg.spark.NotThere")
    assert coordinates in str(stop.value)


def test_a_java_that_is_too_old_for_a_jar(spark: SparkSession, tmp_path: Path) -> None:
    # The beginning of a class file of Java 55. Java reads its version before all else.
    (tmp_path / "Newer.class").write_bytes(b"\xca\xfe\xba\xbe\x00\x00\x00\x63" + bytes(64))
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext
    urls = context._gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.net.URL(f"{tmp_path.as_uri()}/")
    with pytest.raises(JAVA_ERRORS) as failed:
        jvm.java.net.URLClassLoader(urls).loadClass("Newer")
    found = sure_cause(failed.value)
    assert isinstance(found, ConfigurationError)
    assert "Newer needs Java 55 and Spark runs on Java " in str(found)
