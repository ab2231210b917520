"""Which jars Spark needs beside its own, by Spark, catalog and store, as Maven coordinates: one table.

Airflow's side adds them (``packages="auto"``). Spark's side names them if a class is missing.
``docs/reference/spark_jars.md`` prints them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The newest Iceberg whose runtime Maven has for each Spark and Scala.
ICEBERG = {
    ("3.5", "2.12"): "1.12.0",
    ("3.5", "2.13"): "1.11.0",
    ("4.0", "2.13"): "1.11.0",
    ("4.1", "2.13"): "1.12.0",
}
_NEWEST = "1.12.0"
#: The AWS SDK in the ``iceberg-aws-bundle`` of each Iceberg. Other parts of it must have the same version.
_AWS_SDK = {"1.11.0": "2.44.4", "1.12.0": "2.54.17"}
#: Version of the AWS SDK that ``hadoop-aws`` of Hadoop 3.3 uses.
_AWS_SDK_1 = "1.12.262"

_S3 = ("s3", "s3a", "s3n")
_GOOGLE = ("gs",)
_AZURE = ("abfs", "abfss", "wasb", "wasbs")
#: Implementations of Iceberg's file access that take another client by the scheme of a path.
RESOLVING_FILE_IO = "org.apache.iceberg.io.ResolvingFileIO"
SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
SPARK_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
#: How the coordinates of Iceberg's own jar begin.
RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-"


@dataclass(frozen=True, slots=True)
class SparkVersions:
    """A Spark, as far as its jars depend on it."""

    spark: str
    scala: str
    hadoop: str
    #: Iceberg's version, where it is known; empty: the one that the table names for this Spark.
    iceberg: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Spark and Scala as names of jars have them: ``("4.1", "2.13")``."""
        return _minor(self.spark), _minor(self.scala)


@dataclass(frozen=True, slots=True)
class Package:
    """Jars that are needed together."""

    needed_for: str
    #: Maven coordinates, ``group:name:version``.
    coordinates: tuple[str, ...]
    #: A class that is there if the jars are.
    class_name: str
    #: How the names of their classes begin.
    prefixes: tuple[str, ...]
    #: What these jars would bring along and must not, ``group:name``.
    excluded: tuple[str, ...] = ()

    @property
    def names(self) -> str:
        """The coordinates as ``spark-submit --packages`` takes them."""
        return ",".join(self.coordinates)


def runtime(versions: SparkVersions) -> Package:
    """Iceberg itself."""
    spark, scala = versions.key
    name = f"{RUNTIME}{spark}_{scala}"
    return Package(
        "Iceberg's tables",
        (_versioned(name, versions.iceberg or ICEBERG.get(versions.key)),),
        SPARK_CATALOG,
        ("org.apache.iceberg.",),
    )


def aws(versions: SparkVersions) -> Package:
    """The AWS SDK. The one of another Iceberg has other clients, so a class would be missing."""
    return Package(
        "a warehouse on S3, or a Glue catalog",
        (f"org.apache.iceberg:iceberg-aws-bundle:{_iceberg(versions)}",),
        "software.amazon.awssdk.services.s3.S3Client",
        ("software.amazon.awssdk.",),
    )


def google(versions: SparkVersions) -> Package:
    """The client of Google Cloud Storage. Like that of AWS it has the version of Iceberg."""
    return Package(
        "a warehouse on Google Cloud Storage",
        (f"org.apache.iceberg:iceberg-gcp-bundle:{_iceberg(versions)}",),
        "com.google.cloud.storage.Storage",
        ("com.google.cloud.",),
    )


def azure(versions: SparkVersions) -> Package:
    """The client of Azure's stores, in the version of Iceberg."""
    return Package(
        "a warehouse on Azure",
        (f"org.apache.iceberg:iceberg-azure-bundle:{_iceberg(versions)}",),
        "com.azure.storage.file.datalake.DataLakeServiceClient",
        ("com.azure.",),
    )


SQLITE = Package(
    "a SQL catalog in SQLite",
    ("org.xerial:sqlite-jdbc:3.50.3.0",),
    "org.sqlite.JDBC",
    ("org.sqlite.",),
)
POSTGRESQL = Package(
    "a SQL catalog in PostgreSQL",
    ("org.postgresql:postgresql:42.7.8",),
    "org.postgresql.Driver",
    ("org.postgresql.",),
)
MYSQL = Package(
    "a SQL catalog in MySQL",
    ("com.mysql:mysql-connector-j:9.4.0",),
    "com.mysql.cj.jdbc.Driver",
    ("com.mysql.",),
)
#: Schemes of the stores that a catalog's ``io-impl`` may name.
_CLIENTS = {
    "org.apache.iceberg.aws.s3.S3FileIO": "s3",
    "org.apache.iceberg.gcp.gcs.GCSFileIO": "gs",
    "org.apache.iceberg.azure.adlsv2.ADLSFileIO": "abfs",
}
#: Drivers of SQL catalogs by the word after ``jdbc:``.
DRIVERS = {"sqlite": SQLITE, "postgresql": POSTGRESQL, "mysql": MYSQL}


def staging_on_s3(versions: SparkVersions) -> Package:
    """What Hadoop needs to read a staging area on S3."""
    hadoop = f"org.apache.hadoop:hadoop-aws:{versions.hadoop}"
    sdk = _AWS_SDK.get(_iceberg(versions))
    purpose, class_name = "a staging area on S3", "org.apache.hadoop.fs.s3a.S3AFileSystem"
    if versions.hadoop.startswith("3.3."):
        return Package(
            purpose,
            (hadoop, f"com.amazonaws:aws-java-sdk-bundle:{_AWS_SDK_1}"),
            class_name,
            ("org.apache.hadoop.fs.s3a.", "com.amazonaws."),
        )
    return Package(
        purpose,
        (
            hadoop,
            *aws(versions).coordinates,
            _versioned("software.amazon.awssdk:s3-transfer-manager", sdk),
            _versioned("software.amazon.awssdk:apache-client", sdk),
        ),
        class_name,
        (
            "org.apache.hadoop.fs.s3a.",
            "software.amazon.awssdk.transfer.",
            "software.amazon.awssdk.http.apache.",
        ),
        # A whole AWS SDK of another version than the bundle's.
        excluded=("software.amazon.awssdk:bundle",),
    )


def needed(
    versions: SparkVersions, catalog: Mapping[str, str], staging_uri: str
) -> tuple[Package, ...]:
    """What a pipeline needs.

    :param catalog: the catalog's properties, by Java's names (``type``, ``uri``, ``warehouse``, ``io-impl``).
    """
    found = [runtime(versions)]
    if driver := _driver(catalog):
        found.append(driver)
    io, warehouse = catalog.get("io-impl", ""), catalog.get("warehouse", "")
    if catalog.get("type") == "glue":
        store = "s3"
    elif io in ("", RESOLVING_FILE_IO):
        # A REST catalog knows where its warehouse is. Properties of S3 say that it may be there.
        is_path = bool(scheme(warehouse)) or warehouse.startswith("/")
        may_be_s3 = not is_path and any(key.startswith("s3.") for key in catalog)
        store = "s3" if may_be_s3 else scheme(warehouse)
    else:
        store = _CLIENTS.get(io, "")
    if client := store_of(store, versions):
        found.append(client)
    if scheme(staging_uri) in _S3:
        found.append(staging_on_s3(versions))
    return tuple(found)


def store_of(scheme: str, versions: SparkVersions) -> Package | None:
    """What Iceberg needs for tables at URIs of a scheme; None: nothing, or this table does not know it."""
    stores = {_S3: aws(versions), _GOOGLE: google(versions), _AZURE: azure(versions)}
    return next((package for schemes, package in stores.items() if scheme in schemes), None)


def package_of(class_name: str, versions: SparkVersions) -> Package | None:
    """The jars that have a class; None: none of this table."""
    known = (
        staging_on_s3(versions),
        *(aws(versions), google(versions), azure(versions), *DRIVERS.values()),
        runtime(versions),
    )
    return next((each for each in known if class_name.startswith(each.prefixes)), None)


def _driver(catalog: Mapping[str, str]) -> Package | None:
    found = re.match(r"jdbc:(\w+):", catalog.get("uri", ""))
    return DRIVERS.get(found[1]) if found else None


def _iceberg(versions: SparkVersions) -> str:
    """The Iceberg for a Spark; for one that the table lacks: the newest."""
    return versions.iceberg or ICEBERG.get(versions.key, _NEWEST)


def _versioned(name: str, version: str | None) -> str:
    """A coordinate. Where the table has no version it lacks one, and no spark-submit takes it."""
    return f"{name}:{version}" if version else name


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def scheme(uri: str) -> str:
    """The scheme of a URI, ``s3``; empty: it has none."""
    return uri.partition("://")[0].lower() if "://" in uri else ""
