"""Spark and an Iceberg catalog on this machine: settings only, nothing is started here.

The catalog is a SQLite file that Spark reads through Iceberg's JDBC catalog and pyiceberg through
its ``sql`` catalog. Both keep their tables under the catalog's *name*, so both sides use one name;
and only ``jdbc.schema-version=V1`` has the column that tells tables from views.
https://iceberg.apache.org/docs/latest/jdbc/
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from quickstart import class_archive
from quickstart.jars import ICEBERG_SPARK_RUNTIME, SQLITE_JDBC, cache_folder, fetch_jars, spark_home
from quickstart.java import java_home

CATALOG_NAME = "lake"
ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
# Writers of several tables wait for SQLite's single lock in place of failing at once.
_LOCK_WAIT_MS = 60_000
# A job of seconds never earns back what the optimising compiler costs: a small one took 43 s of CPU
# time with Java's defaults, 27 s without that compiler, 23 s with the collector for small heaps too.
# Without it Java reserves 48 MiB for compiled code, and a session of many plans ends up interpreted.
_SHORT_JOB_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"


@dataclass(frozen=True)
class LocalLake:
    """An Iceberg warehouse in a local folder, with its catalog in a SQLite file beside it.

    :ivar home: the folder that holds ``catalog.db`` and ``warehouse/``.
    :ivar catalog_name: the catalog's name, in Spark's SQL and in pyiceberg alike.
    """

    home: Path
    catalog_name: str = CATALOG_NAME

    @property
    def catalog_file(self) -> Path:
        """The SQLite file of the catalog."""
        return self.home.absolute() / "catalog.db"

    @property
    def warehouse(self) -> str:
        """The URI below which tables are made."""
        return (self.home.absolute() / "warehouse").as_uri()

    def create(self) -> LocalLake:
        """Make the folders and the catalog's tables, if they are missing."""
        from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - Spark's side needs none

        (self.home / "warehouse").mkdir(parents=True, exist_ok=True)
        SqlCatalog(self.catalog_name, **self.pyiceberg_properties()).close()
        return self

    def pyiceberg_properties(self) -> dict[str, str]:
        """Return what ``pyiceberg.catalog.load_catalog(catalog_name, **properties)`` takes."""
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.catalog_file}",
            "warehouse": self.warehouse,
        }

    def spark_conf(self) -> dict[str, str]:
        """Return the Spark settings that make this lake the session's catalog of that name."""
        prefix = f"spark.sql.catalog.{self.catalog_name}"
        return {
            "spark.sql.extensions": ICEBERG_EXTENSIONS,
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            f"{prefix}.type": "jdbc",
            f"{prefix}.uri": f"jdbc:sqlite:{self.catalog_file}",
            f"{prefix}.warehouse": self.warehouse,
            f"{prefix}.jdbc.schema-version": "V1",
            f"{prefix}.jdbc.busy_timeout": str(_LOCK_WAIT_MS),
        }


def spark_jars() -> list[Path]:
    """Return the local jars that a Spark with Iceberg and a SQLite catalog needs.

    :raises ConfigurationError: they are not in the cache folder and could not be fetched.
    """
    return fetch_jars((ICEBERG_SPARK_RUNTIME, SQLITE_JDBC))


def local_conf(driver_memory: str = "2g") -> dict[str, str]:
    """Return the Spark settings of a small local session, the jars included.

    For short jobs on little data, so not for measurements: see `_SHORT_JOB_OPTIONS`.
    """
    conf = site_conf(driver_memory)
    return conf | {
        "spark.driver.extraJavaOptions": f"{_SHORT_JOB_OPTIONS} {class_archive_option()}".rstrip(),
        # An archive has only the classes of Java's own class path.
        "spark.driver.extraClassPath": conf["spark.jars"].replace(",", os.pathsep),
    }


def class_archive_option() -> str:
    """Return Java's option that reads the archive of Spark's classes, or "" if there is none."""
    return class_archive.java_option(_java_home(), spark_jars(), spark_home())


def write_class_archive() -> None:
    """Write the archive of the classes that Spark and Iceberg load, unless it is there: ``make classes``.

    :raises ConfigurationError: a jar could not be fetched; there is no Java, or no Spark.
    """
    with tempfile.TemporaryDirectory(prefix="pgoutput-classes-") as folder:
        training = LocalLake(Path(folder), "training").create()
        conf = local_conf("1g") | training.spark_conf()
        class_archive.write(_java_home(), spark_jars(), spark_home(), conf, spark_environment())


def site_conf(driver_memory: str = "2g") -> dict[str, str]:
    """Return what of `local_conf` may stand in the ``spark-defaults.conf`` of ``SPARK_CONF_DIR``.

    Such a folder is a part of Java's class path, and Java then reads no archive of classes.
    """
    return {
        "spark.driver.extraJavaOptions": _SHORT_JOB_OPTIONS,
        "spark.jars": ",".join(map(str, spark_jars())),
        "spark.driver.memory": driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
    }


def _java_home() -> Path:
    return java_home(cache_folder() / "java")


def spark_environment() -> dict[str, str]:
    """Return the environment variables that every ``spark-submit`` on this machine needs.

    :raises ConfigurationError: there is no Java, or no Spark.
    """
    home = spark_home()
    return {
        "JAVA_HOME": str(_java_home()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
