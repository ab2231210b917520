"""Settings of Spark, and properties of a table, that users have for purposes of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.iceberg import IcebergTable
from airflow_provider_pgoutput.apply.names import TableName
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.write import BranchWriter
from airflow_provider_pgoutput.batch.plan import TableOptions
from airflow_provider_pgoutput.errors import TableRefused
from tests.apply.build import column
from tests.apply.conftest import source_rows
from tests.apply.fold_cases import a_is

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.plan import Plan
    from tests.apply.build import Relation, Source

pytestmark = pytest.mark.spark


def with_options(plan: Plan, **options: Any) -> Plan:
    """The plan with options for table ``t``."""
    return replace(plan, tables={"public.t": TableOptions(**options)})


def loaded(spark: SparkSession, relation: Relation) -> IcebergTable:
    name = TableName("lake", relation.source.slot_name, relation.name)
    found = IcebergTable.load(spark, name)
    assert found is not None
    return found


def test_a_batch_is_not_staged_for_an_audit(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    audited = {"write.wap.enabled": "true"}
    t = source.table("t", (column("a"), column("b")), key=("a",))
    t.insert(1, 0)
    t.insert(2, 0)
    session = spark.newSession()
    session.conf.set("spark.wap.id", "w1")
    apply_batch(session, with_options(source.stage(), properties=audited))
    assert lake_rows(t) == source_rows(t)
    t.update(a_is(1), {"b": 5})
    t.delete(a_is(2))
    apply_batch(session, source.stage())
    assert lake_rows(t) == source_rows(t)


def test_rows_that_are_not_on_their_branch_are_missed(spark: SparkSession, source: Source) -> None:
    t = source.table("t", (column("a"),), key=("a",))
    t.insert(1)
    audited = {"write.wap.enabled": "true"}
    apply_batch(spark, with_options(source.stage(), properties=audited))
    table = loaded(spark, t)
    table.create_branch("b", table.head)
    session = spark.newSession()
    session.conf.set("spark.wap.id", "w1")
    writer = BranchWriter(session, table, "b", t.version.columns)
    writer.append(session.sql("SELECT 2 AS n0 WHERE false"), {})
    with pytest.raises(TableRefused, match="not there"):
        writer.append(session.sql("SELECT 2 AS n0"), {})
