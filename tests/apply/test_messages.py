"""Logical messages reach a table of their own, once each, whatever the batches are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT_TABLE, MESSAGES_TABLE
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.errors import TableRefused
from tests.apply.build import Source, column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob


def messages(spark: SparkSession, namespace: str) -> list[tuple[Any, ...]]:
    name = TableName("lake", namespace, MESSAGES_TABLE)
    rows = spark.newSession().table(name.sql).orderBy("lsn", "slot_name").collect()
    names = ("slot_name", "lsn", "commit_lsn", "transactional", "prefix")
    return [(*(row[each] for each in names), bytes(row["content"])) for row in rows]


def wanted(*sources: Source) -> list[tuple[Any, ...]]:
    return sorted(
        (
            (source.slot_name, lsn, commit_lsn, commit_lsn is not None, "app", content)
            for source in sources
            for lsn, commit_lsn, content in source.messages
        ),
        key=lambda row: (row[1], row[0]),
    )


def emit(source: Source) -> None:
    source.message(b"\x00\xff", transactional=True)
    source.message(b"", transactional=False)


def test_overlapping_batches_append_each_message_once(spark: SparkSession, source: Source) -> None:
    """A message that ends where a batch ends is of that batch, and not of the next."""
    begins = source.staged_to
    for _ in range(3):
        emit(source)
        plan = source.stage()
        apply_batch(spark, plan)
        assert messages(spark, source.slot_name) == wanted(source)
        assert source.messages[-1][0] == source.staged_to
    emit(source)
    apply_batch(spark, source.write(source._manifest([], Lsn(begins), Lsn(source.lsn))))
    assert messages(spark, source.slot_name) == wanted(source)
    table = IcebergTable.load(spark, TableName("lake", source.slot_name, MESSAGES_TABLE))
    assert table is not None
    assert table.branch_ages_ms() == {}


def test_messages_of_another_system_are_not_taken_for_ours(
    spark: SparkSession, source: Source
) -> None:
    emit(source)
    apply_batch(spark, source.stage())
    spark.sql(f"DROP TABLE {TableName('lake', source.slot_name, CHECKPOINT_TABLE).sql}")
    source.system_identifier = "another"
    source.table("t", (column("a"),), key=("a",)).insert(1)
    emit(source)
    with pytest.raises(TableRefused, match="a slot of this name of system 7301"):
        apply_batch(spark, source.stage())
    # Else the table would be one of the other slot's: neither way on that the error names would help.
    assert IcebergTable.load(spark, TableName("lake", source.slot_name, "t")) is None


def test_a_batch_that_is_applied_again_appends_nothing(spark: SparkSession, source: Source) -> None:
    emit(source)
    plan = source.stage()
    apply_batch(spark, plan)
    name = TableName("lake", source.slot_name, CHECKPOINT_TABLE)
    # As after a kill between the messages and the checkpoint.
    spark.sql(f"DROP TABLE {name.sql}")
    assert not apply_batch(spark, plan).already_applied
    assert messages(spark, source.slot_name) == wanted(source)


def test_slots_of_one_namespace_share_the_table(
    spark: SparkSession, source: Source, tmp_path: Any
) -> None:
    other = Source(tmp_path / "other", f"{source.slot_name}_other")

    def in_one_namespace(plan: ApplyJob) -> ApplyJob:
        return replace(plan, namespace=source.slot_name)

    for _ in range(2):
        for each in (source, other):
            emit(each)
            apply_batch(spark, in_one_namespace(each.stage()))
    assert messages(spark, source.slot_name) == wanted(source, other)


def test_without_messages_there_is_no_table(spark: SparkSession, source: Source) -> None:
    t = source.table("t", (column("a"),), key=("a",))
    t.insert(1)
    apply_batch(spark, source.stage())
    assert IcebergTable.load(spark, TableName("lake", source.slot_name, MESSAGES_TABLE)) is None
