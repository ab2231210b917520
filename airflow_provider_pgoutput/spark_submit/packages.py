"""``packages="auto"``: the Maven coordinates that a job needs, for the Spark that spark-submit starts.

The table is in ``batch/spark_packages.py``. spark-submit fetches the jars from the repositories that Spark
knows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.spark_packages import ICEBERG, SparkVersions, needed
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

AUTO = "auto"
_CORE = re.compile(r"spark-core_(\d+\.\d+)-(.+)\.jar")
_HADOOP = re.compile(r"hadoop-client-api-(.+)\.jar")


def with_needed(
    packages: str | None,
    excluded: str | None,
    home: Path | None,
    catalog: Mapping[str, str],
    staging_uri: str,
) -> tuple[str | None, str | None]:
    """The operator's ``packages`` and ``exclude_packages``, with what the word ``auto`` in them stands for.

    :param home: the Spark that spark-submit starts; None: it was not found.
    :param catalog: the catalog's properties, by Java's names.
    :param staging_uri: any URI in the staging area.
    :raises ConfigurationError: nobody knows which Spark that is, or the table has no Iceberg for it.
    """
    given = _words(packages)
    if AUTO not in given:
        return packages, excluded
    versions = versions_of(home)
    if versions.key not in ICEBERG:
        raise ConfigurationError(
            f'packages="auto" knows no Iceberg for Spark {versions.spark} with Scala {versions.scala}.',
            advice="name the coordinates in packages, or use one of the Sparks in docs/spark_jars.md.",
        )
    found = needed(versions, catalog, staging_uri)
    wanted = [each for each in given if each != AUTO]
    wanted += [each for package in found for each in package.coordinates]
    left_out = _words(excluded) + [each for package in found for each in package.excluded]
    return ",".join(dict.fromkeys(wanted)), ",".join(dict.fromkeys(left_out)) or None


def versions_of(home: Path | None) -> SparkVersions:
    """The versions of an installed Spark, by the names of its own jars.

    :raises ConfigurationError: there is no Spark.
    """
    names = sorted(path.name for path in home.glob("jars/*.jar")) if home else []
    core = next(filter(None, map(_CORE.fullmatch, names)), None)
    hadoop = next(filter(None, map(_HADOOP.fullmatch, names)), None)
    if core is None or hadoop is None:
        raise ConfigurationError(
            'packages="auto" cannot find out the version of the Spark that spark-submit starts.',
            advice="set SPARK_HOME of the worker, or name the coordinates in packages (docs/spark_jars.md).",
        )
    return SparkVersions(spark=core[2], scala=core[1], hadoop=hadoop[1])


def catalog_properties(name: str, *confs: Mapping[str, object]) -> dict[str, str]:
    """The properties of a catalog in Spark's configurations. The last one wins."""
    return dict(_properties(f"spark.sql.catalog.{name}.", confs))


def _properties(prefix: str, confs: tuple[Mapping[str, object], ...]) -> Iterator[tuple[str, str]]:
    for conf in confs:
        for key, value in conf.items():
            if key.startswith(prefix):
                yield key.removeprefix(prefix), str(value)


def _words(text: str | None) -> list[str]:
    return [each.strip() for each in (text or "").split(",") if each.strip()]
