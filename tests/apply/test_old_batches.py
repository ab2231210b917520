"""F47: batches that older code of this package staged, byte by byte as it wrote them, applied by today's.

The two were recorded from a server with ``tests/old_batches/record.py``: a copy of two tables, and changes
with values that were not sent, a changed key, an added column and a table without a key. What is not here:
manifests of a newer format (``tests/batch/test_manifest.py``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.batch.jobs import ApplyJob
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.errors import BatchRefused
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from tests.old_batches.record import SLOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDED = Path(__file__).parents[1] / "old_batches"
#: The first commit whose manifests are read, and one before it.
READ, REFUSED = "0d3dd4b", "707c602"
LATER = ("loaded_lsn", "published", "skipped")
LATER_OF_TABLES = ("schema_changes", "records_columns", "storage")


def manifests(commit: str) -> list[Path]:
    """The copy's and the changes' manifest."""
    return sorted((RECORDED / commit / "staging" / SLOT / "manifests").iterdir())


def plan(commit: str, manifest: Path, namespace: str) -> ApplyJob:
    staging = (RECORDED / commit / "staging").as_uri()
    return ApplyJob(
        manifest_uri=manifest.as_uri(),
        staging_uri=staging,
        catalog_name="lake",
        namespace=namespace,
    )


def lake_rows(spark: SparkSession, namespace: str) -> dict[str, list[list[str | None]]]:
    """Every row by table, as the recording has them."""
    found = {}
    for table in ("orders", "bag"):
        name = f"lake.{namespace}.{table}"
        spark.catalog.refreshTable(name)
        rows = spark.table(name).collect()
        texts = [[None if each is None else str(each) for each in row] for row in rows]
        found[table] = sorted(texts, key=repr)
    return found


def test_f47_batches_of_the_oldest_format_are_applied(
    spark: SparkSession, lake_catalog_properties: dict[str, str]
) -> None:
    """Twice, because what was applied has to be known by the id that the older code gave it."""
    wanted = json.loads((RECORDED / READ / "rows.json").read_text())
    assert wanted[0] != wanted[1]
    namespace = "old_batches"
    for path, rows in zip(manifests(READ), wanted, strict=True):
        body: dict[str, Any] = json.loads(path.read_text())
        assert not body.keys() & set(LATER), "it is as old as it says"
        assert all(not table.keys() & set(LATER_OF_TABLES) for table in body["tables"])
        for _ in range(2):
            apply_batch(spark, plan(READ, path, namespace))
            assert lake_rows(spark, namespace) == rows
        checkpoint = read_checkpoint("lake", lake_catalog_properties, namespace, SLOT)
        assert checkpoint is not None
        assert str(checkpoint.end_lsn) == body["end_lsn"]
        assert Manifest.from_json(path.read_bytes()).batch_id == body["batch_id"]


def test_f47_an_older_format_is_refused_before_anything_is_written(spark: SparkSession) -> None:
    for path in manifests(REFUSED):
        with pytest.raises(BatchRefused, match="lacks a field"):
            apply_batch(spark, plan(REFUSED, path, "older_batches"))
    assert not spark.sql("SHOW NAMESPACES IN lake LIKE 'older_batches'").collect()
