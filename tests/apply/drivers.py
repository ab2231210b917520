"""What drivers of an apply do, in steps or two at once, for tests that come between."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply import pipeline
from airflow_provider_pgoutput.apply.iceberg.session import Sessions
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.rows import prepare
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.apply.table.start import start
from airflow_provider_pgoutput.apply.table.target import targets
from airflow_provider_pgoutput.errors import PublishRefused
from tests.apply.build import opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.rows.staged_files import StagedBatch
    from airflow_provider_pgoutput.batch.jobs import ApplyJob
    from tests.apply.build import Relation


def name_of(relation: Relation) -> TableName:
    return TableName("lake", relation.source.slot_name, relation.name)


def loaded(spark: SparkSession, relation: Relation) -> IcebergTable:
    found = IcebergTable.load(spark, name_of(relation))
    assert found is not None
    return found


def prepared(spark: SparkSession, plan: ApplyJob) -> tuple[StagedBatch, Any, Any]:
    """Prepare the only table of a batch, as a driver does before it publishes."""
    batch = opened(spark, plan)
    progress = checkpoint.read(spark, plan, batch.manifest)
    (target,) = targets(plan, batch.manifest)
    begin = start(spark, target, batch.manifest, progress)
    return batch, prepare.prepare(Sessions(spark), batch, target, begin), progress


def race(spark: SparkSession, plan: ApplyJob) -> None:
    """Apply a batch by two drivers at once."""
    refused: list[BaseException] = []

    def run() -> None:
        try:
            pipeline.apply_batch(spark, plan)
        except PublishRefused as refusal:
            refused.append(refusal)

    drivers = [threading.Thread(target=run) for _ in range(2)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    if len(refused) == 2:  # Each removed the other's branch; a retry settles it.
        apply_batch(spark, plan)
