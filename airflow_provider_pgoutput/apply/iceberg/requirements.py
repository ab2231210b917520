"""Looks, before a job reads a row, whether Spark has what it needs: settings, jars, a Java that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.causes import sure_cause
from airflow_provider_pgoutput.apply.iceberg.jvm import JAVA_ERRORS, class_named
from airflow_provider_pgoutput.apply.iceberg.spark_jars import versions_here
from airflow_provider_pgoutput.batch.spark_packages import (
    SPARK_EXTENSIONS,
    needed,
    scheme,
    store_of,
)
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXTENSIONS = "spark.sql.extensions"


def check(spark: SparkSession, catalog: str) -> None:
    """Look at the settings with which Spark was started, and load a class of each jar that is needed.

    The jars of the staging area are not looked for: whoever read the job's file has them.

    :param catalog: name of the catalog.
    :raises ConfigurationError: a setting or a jar is missing, or Java is too old for a jar.
    """
    conf = dict(spark.sparkContext.getConf().getAll())
    prefix = f"spark.sql.catalog.{catalog}"
    if prefix not in conf:
        raise ConfigurationError(
            f"Spark's settings have no catalog {catalog}.",
            advice=f"set {prefix} and its properties, or name the catalog's connection in iceberg_conn_id.",
        )
    if SPARK_EXTENSIONS not in conf.get(_EXTENSIONS, ""):
        raise ConfigurationError(
            f"Spark runs without Iceberg's extensions: {_EXTENSIONS} does not name them.",
            advice=f"add {SPARK_EXTENSIONS} to {_EXTENSIONS}.",
        )
    properties = {
        key.removeprefix(f"{prefix}."): value
        for key, value in conf.items()
        # Properties of S3 alone do not say that the warehouse is there, and a guess refuses nothing.
        if key.startswith(f"{prefix}.") and not key.startswith(f"{prefix}.s3.")
    }
    store = scheme(properties.get("warehouse", ""))
    versions = versions_here()
    for package in needed(versions, properties, staging_uri=""):
        # Iceberg takes Hadoop's client, as of EMR, if it lacks its own.
        if not (package == store_of(store, versions) and _hadoop_knows(spark, store)):
            _load(spark, package.class_name)


def _hadoop_knows(spark: SparkSession, scheme: str) -> bool:
    """Whether Hadoop opens paths of a scheme."""
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext
    try:
        class_named(jvm, "org.apache.hadoop.fs.FileSystem").getFileSystemClass(
            scheme, context._jsc.hadoopConfiguration()
        )
    except JAVA_ERRORS:
        return False
    return True


def _load(spark: SparkSession, class_name: str) -> None:
    jvm: Any = spark._jvm
    # The loader that knows the jars of spark.jars and --packages.
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(class_name)
    except JAVA_ERRORS as error:
        if named := sure_cause(error):
            raise named from error
        raise
