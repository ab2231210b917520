"""``packages="auto"``: the Maven coordinates that a job needs, for the Spark that spark-submit starts.

The table is in ``batch/spark_packages.py``. spark-submit fetches the jars from the repositories that Spark
knows.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.spark_packages import RUNTIME, SparkVersions, needed, runtime
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

AUTO = "auto"
#: In a whole coordinate.
_COLONS = 2
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

    A coordinate that the user names beside the word takes the place of the one with the same group and name.
    If it is Iceberg's, the jars that go with it have its version, too.

    :param home: the Spark that spark-submit starts; None: it was not found.
    :param catalog: the catalog's properties, by Java's names.
    :param staging_uri: any URI in the staging area.
    :raises ConfigurationError: nobody knows which Spark that is, or the table lacks a jar for it.
    """
    given = _words(packages)
    if AUTO not in given:
        return packages, excluded
    own = [each for each in given if each != AUTO]
    pinned = {_artifact(each): each for each in own}
    versions = _with_iceberg_of(pinned, versions_of(home))
    found = needed(versions, catalog, staging_uri)
    wanted = [each for package in found for each in package.coordinates]
    # Two versions of one jar would hide classes of each other, and a user's own has a reason.
    missing = [each for each in wanted if _artifact(each) not in pinned]
    if without := [each for each in missing if each.count(":") < _COLONS]:
        raise ConfigurationError(
            f'packages="auto" knows no version of {", ".join(without)} for Spark {versions.spark} with Scala'
            f" {versions.scala}{_and_iceberg(versions)}.",
            advice="name the coordinates in packages, or use one of the Sparks in"
            " docs/reference/spark_jars.md.",
        )
    left_out = _words(excluded) + [each for package in found for each in package.excluded]
    return ",".join(dict.fromkeys(own + missing)), ",".join(dict.fromkeys(left_out)) or None


def _with_iceberg_of(pinned: Mapping[str, str], versions: SparkVersions) -> SparkVersions:
    """The versions with the Iceberg that the user named. Its bundles and its SDK follow.

    :raises ConfigurationError: it is the one of another Spark.
    """
    ours = _artifact(runtime(versions).names)
    for artifact, coordinate in pinned.items():
        if artifact.startswith(RUNTIME) and artifact != ours:
            raise ConfigurationError(
                f"{coordinate} is not for Spark {versions.spark} with Scala {versions.scala}.",
                advice=f"name {ours} with the version that you want, or leave it out.",
            )
    if ours not in pinned:
        return versions
    return dataclasses.replace(versions, iceberg=pinned[ours].removeprefix(ours).lstrip(":"))


def _and_iceberg(versions: SparkVersions) -> str:
    return f" and Iceberg {versions.iceberg}" if versions.iceberg else ""


def _artifact(coordinate: str) -> str:
    """``group:name`` of a coordinate."""
    return ":".join(coordinate.split(":")[:_COLONS])


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
            advice="set SPARK_HOME of the worker, or name the coordinates in packages"
            " (docs/reference/spark_jars.md).",
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
