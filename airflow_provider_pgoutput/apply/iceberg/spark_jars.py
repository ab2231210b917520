"""The jars of the Spark that runs this job: which versions it has, and which jars a missing class is in."""

from __future__ import annotations

import re
from typing import Any

from py4j.java_gateway import JavaClass
from pyspark import SparkContext
from pyspark.version import __version__ as spark_version

from airflow_provider_pgoutput.batch.spark_packages import SparkVersions, package_of
from airflow_provider_pgoutput.errors import ConfigurationError


def versions_here() -> SparkVersions:
    """The versions of this Spark."""
    jvm: Any = SparkContext._jvm
    return SparkVersions(
        spark=spark_version,
        scala=str(getattr(jvm, "scala.util.Properties").versionNumberString()),
        hadoop=str(getattr(jvm, "org.apache.hadoop.util.VersionInfo").getVersion()),
        iceberg=_iceberg(jvm),
    )


def _iceberg(jvm: Any) -> str:
    """The version of the Iceberg that is here; empty: there is none, or it is no release."""
    build = jvm.org.apache.iceberg.IcebergBuild
    # What Java does not have is a package for Py4J.
    version = str(build.version()) if isinstance(build, JavaClass) else ""
    return version if re.fullmatch(r"\d+(\.\d+)+", version) else ""


def missing_class(name: str, table: str | None = None) -> ConfigurationError:
    """The error for a class that Spark does not have.

    :param name: its full name.
    :param table: the target, ``namespace.table``, if it is known.
    """
    versions = versions_here()
    found = package_of(name, versions)
    coordinates = found.names if found else None
    return ConfigurationError(
        f"Spark {versions.spark} (Scala {versions.scala}) lacks the Java class {name}.",
        table=table,
        advice=to_add(coordinates) if coordinates else "add the jar that has it to Spark's jars.",
    )


def to_add(coordinates: str) -> str:
    """What to do about missing jars.

    :param coordinates: as ``spark-submit --packages`` takes them.
    """
    return (
        f'give the operator packages="auto,{coordinates}", or add these jars to Spark\'s own'
        " (docs/reference/spark_jars.md)."
    )
