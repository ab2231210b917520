"""A batch is applied where the checkpoint ends: gaps, repetitions, empty batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.errors import BatchGap
from tests.apply.build import Source, opened
from tests.apply.conftest import source_rows
from tests.apply.drivers import loaded
from tests.apply.fold_cases import a_is

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.apply.build import Relation


def test_a_batch_past_the_checkpoint_is_a_gap(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    table.insert(4, "b4", 0)
    between = source.stage()
    table.insert(5, "b5", 0)
    after = source.stage()
    with pytest.raises(BatchGap):
        apply_batch(spark, after)
    apply_batch(spark, between)
    apply_batch(spark, after)
    assert lake_rows(table) == source_rows(table)


def test_a_batch_that_repeats_older_transactions_takes_only_the_new_ones(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    pending = list(source.pending)
    apply_batch(spark, source.stage())
    table.update(a_is(1), {"a": 7})
    table.insert(1, "new", 1)
    source.pending = pending + source.pending
    source.staged_to = 0x1_0000_1000
    apply_batch(spark, source.stage())
    assert lake_rows(table) == source_rows(table)


def test_an_empty_batch_moves_the_checkpoint_and_no_table(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    apply_batch(spark, source.stage())
    head = loaded(spark, table).head
    source.lsn += 0x1000
    plan = source.stage()
    apply_batch(spark, plan)
    manifest = opened(spark, plan).manifest
    assert checkpoint.read(spark, plan, manifest).end_lsn == manifest.end_lsn
    assert loaded(spark, table).head == head
