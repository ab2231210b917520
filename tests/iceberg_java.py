"""Java with Iceberg's classes, without Spark, and a catalog as the job's Spark would open it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from quickstart.jars import ICEBERG_SPARK_RUNTIME, cache_folder, fetch_jars, spark_home
from quickstart.java import java_home

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_provider_pgoutput.hooks.lake_catalog import LakeCatalog


@contextlib.contextmanager
def iceberg_java(*more: Path) -> Iterator[Any]:
    """Java with Iceberg's classes.

    :param more: jars beside Iceberg's own.
    """
    (runtime,) = fetch_jars([ICEBERG_SPARK_RUNTIME])
    jars = spark_home() / "jars"
    names = ("py4j-*.jar", "slf4j-api-*.jar", "hadoop-client-*.jar")
    (py4j,), *others = ([str(each) for each in sorted(jars.glob(name))] for name in names)
    found = launch_gateway(
        jarpath=py4j,
        classpath=":".join(
            [str(runtime), *(each for group in others for each in group), *map(str, more)]
        ),
        java_path=str(java_home(cache_folder() / "java") / "bin" / "java"),
        javaopts=["-XX:TieredStopAtLevel=1"],
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=found))
    yield gateway.jvm
    gateway.shutdown()


def java_properties(lake: LakeCatalog) -> dict[str, str]:
    """The properties of the catalog, as the job's Spark gets them."""
    prefix = f"spark.sql.catalog.{lake.name}."
    both = {**lake.spark_conf, **lake.spark_secrets}
    return {key.removeprefix(prefix): both[key] for key in both if key.startswith(prefix)}


def ask_java(lake: LakeCatalog, jvm: Any) -> None:
    """Open a REST catalog and list its namespaces."""
    properties = jvm.java.util.HashMap()
    for name, value in java_properties(lake).items():
        properties.put(name, value)
    catalog = jvm.org.apache.iceberg.rest.RESTCatalog()
    catalog.initialize(lake.name, properties)
    catalog.listNamespaces()
    catalog.close()
