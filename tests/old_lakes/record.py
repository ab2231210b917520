"""Record a lake and its staging area with the code of this checkout: ``python -m tests.old_lakes.record``.

The archive is named after the version of the package. Iceberg's files name each other by absolute paths, so
the lake is made in a fixed folder, and is unpacked there again. Kept is what a release made: run it once from
the checkout of that release. What is not here: today's code on it (``tests/conformance/test_old_lakes.py``).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput import __version__
from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation
from quickstart.spark import LocalLake, local_conf, spark_environment
from tests.conformance.many_tables import Tables
from tests.conformance.pipeline import CATALOG, Pipeline
from tests.old_lakes.source import BATCHES, RECORDED_SEGMENT, SETUP, SLOT, start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
NAMESPACE = "old_lake"
#: A table that is a log of its changes in the lake.
LOGS = ("public.events",)
_VERSION = 18
_FOLDERS = "/tmp/airflow-provider-pgoutput-lakes"  # noqa: S108 - locked, and the same on each machine


@contextmanager
def fixed_folder(version: str) -> Iterator[Path]:
    """The folder of a version's lake, empty; one process at a time has it."""
    folders = Path(_FOLDERS)
    folders.mkdir(exist_ok=True)
    with (folders / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = folders / version
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield folder
        shutil.rmtree(folder)


def pipeline_on(
    conninfo: str, folder: Path, catalog_properties: dict[str, str], spark: SparkSession
) -> Pipeline:
    """The pipeline that was recorded, on a source of its own."""
    staging = folder / "staging"
    return Pipeline(
        conninfo,
        SLOT,
        ("p",),
        NAMESPACE,
        staging,
        catalog_properties,
        spark,
        capture_options={"advance": "after_apply"},
    )


def main() -> None:
    """Record a copy, two batches that are applied and one that waits."""
    from pyspark.sql import SparkSession

    os.environ.update(spark_environment())
    home = Path(tempfile.mkdtemp(prefix="pgoutput-old-lakes-"))
    home.chmod(0o755)
    server = EmbeddedPostgres(home, installation=find_or_fetch_installation(_VERSION))
    with fixed_folder(__version__) as folder:
        lake = LocalLake(folder / "lake").create()
        builder = SparkSession.builder.master("local[2]")
        for name, value in {**local_conf(), **lake.spark_conf()}.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        try:
            start(server, RECORDED_SEGMENT)
            properties = lake.pyiceberg_properties()
            tables = Tables(pipeline_on(server.conninfo(), folder, properties, spark), LOGS)
            tables.run(*SETUP)
            *applied, waiting = BATCHES
            for statements in applied:
                tables.run(*statements)
            tables.execute(*waiting)
            tables.pipeline.stage()
            catalog = load_catalog(CATALOG, **properties)
            found = {
                identifier[-1]: catalog.load_table(identifier).metadata_location
                for identifier in catalog.list_tables(NAMESPACE)
            }
            (folder / "tables.json").write_text(json.dumps(found, indent=1))
        finally:
            spark.stop()
            server.destroy()
        with tarfile.open(HERE / f"{__version__}.tar.gz", "w:gz") as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path.suffix != ".crc" and path.name != "catalog.db":
                    archive.add(path, str(path.relative_to(folder)))
    print(HERE / f"{__version__}.tar.gz")


if __name__ == "__main__":
    main()
