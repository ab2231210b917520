"""A lake and a staging area that a release made go on under this version of the package.

The source is a new server that passes for the old one. What is not here: batches older than any release
(``tests/apply/test_old_batches.py``).
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.types import StringType

from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT_TABLE
from airflow_provider_pgoutput.batch.lsn import Lsn
from quickstart.postgres import EmbeddedPostgres
from tests.conformance.many_tables import Tables
from tests.conformance.pipeline import CATALOG
from tests.old_lakes.record import HERE, LOGS, NAMESPACE, fixed_folder, pipeline_on
from tests.old_lakes.source import FIRST_SEGMENT, SLOT, resume, start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

RELEASES = sorted(each.name.removesuffix(".tar.gz") for each in HERE.glob("*.tar.gz"))
NAMES = ("orders", "bag", "events")


@pytest.fixture(params=RELEASES)
def unpacked(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder of a release's lake, where the release made it."""
    version: str = request.param
    with fixed_folder(version) as folder:
        with tarfile.open(HERE / f"{version}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        yield folder


def test_there_is_a_lake_of_the_first_release() -> None:
    assert "0.1.0" in RELEASES
    assert all((HERE / f"{each}.tar.gz").stat().st_size < 500_000 for each in RELEASES)


@pytest.mark.slow
def test_a_lake_of_an_earlier_release_goes_on(
    unpacked: Path,
    postgres_server: EmbeddedPostgres,
    server_home: Path,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
) -> None:
    catalog = load_catalog(CATALOG, **lake_catalog_properties)
    catalog.create_namespace(NAMESPACE)
    for table, location in json.loads((unpacked / "tables.json").read_text()).items():
        catalog.register_table((NAMESPACE, table), location)
    server = EmbeddedPostgres(server_home, installation=postgres_server.installation)
    try:
        start(server, FIRST_SEGMENT)
        pipeline = pipeline_on(server.conninfo(), unpacked, lake_catalog_properties, spark)
        tables = Tables(pipeline, LOGS)
        before = pipeline.checkpoint()
        assert before is not None
        *_, newest = sorted((unpacked / "staging" / SLOT / "manifests").iterdir())
        waits_until = Lsn.parse(json.loads(newest.read_text())["end_lsn"])
        resume(server.conninfo(), str(waits_until))
        # The batch that the release left waiting is the next one, as it is.
        waiting = tables.run()
        assert (waiting.start_lsn, waiting.end_lsn) == (before.end_lsn, waits_until)
        assert sorted(each.table_name for each in waiting.tables) == ["bag", "orders"]
        tables.assert_equal("bag", "events")
        _as_of_a_newer_version(tables)
        manifest = tables.run(
            "ALTER TABLE orders RENAME note TO remark",
            "UPDATE orders SET price = 1 WHERE a = 20",  # In place of a value that was rejected.
            "UPDATE orders SET remark = 'later' WHERE a = 6",  # Its large value is not sent.
            "UPDATE orders SET a = 12 WHERE a = 10",
            "INSERT INTO bag VALUES (8, 'later')",
            "INSERT INTO events VALUES (4, 'four')",
        )
        assert all(each.copy_lsn is None for each in manifest.tables)
        tables.assert_equal(*NAMES)
    finally:
        server.destroy()


def _as_of_a_newer_version(tables: Tables) -> None:
    """What a version that comes later may add is in the way of none before it, so one can go back."""
    pipeline = tables.pipeline
    catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
    checkpoint = catalog.load_table((NAMESPACE, CHECKPOINT_TABLE))
    with checkpoint.update_schema() as update:
        update.add_column("of_a_newer_version", StringType())
    with catalog.load_table((NAMESPACE, "orders")).transaction() as change:
        change.set_properties({"pgoutput.of-a-newer-version": "x"})
    newest = Path(tables.batches[-1].uri.removeprefix("file://"))
    body = json.loads(newest.read_text())
    newest.write_text(json.dumps(body | {"of_a_newer_version": None}))
