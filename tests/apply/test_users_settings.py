"""Settings of Spark, and properties of a table, that users have for purposes of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.rows.branch_writer import BranchWriter
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused
from tests.apply.build import column, numbered
from tests.apply.conftest import source_rows
from tests.apply.fold_cases import a_is

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob
    from tests.apply.build import Relation, Source


def with_options(plan: ApplyJob, **options: Any) -> ApplyJob:
    """The plan with options for table ``t``."""
    return replace(plan, table_options={"public.t": TableOptions(**options)})


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


def by_column(spark: SparkSession, relation: Relation) -> dict[str, str]:
    """The properties that name a column, without what they have in common."""
    found = loaded(spark, relation).properties.items()
    return {key.removeprefix("write."): value for key, value in found if ".column." in key}


def test_properties_follow_their_columns(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    few = {
        "write.metadata.metrics.column.s.element": "none",
        "write.metadata.metrics.column.b": "counts",
        "write.parquet.bloom-filter-enabled.column.b": "true",
        "write.metadata.metrics.column.a": "full",
    }
    kinds = column("a"), column("b", "string"), column("s", "list<string>")
    t = source.table("t", numbered(kinds), key=("a",))
    t.insert(1, "x", ["x"])
    apply_batch(spark, with_options(source.stage(), properties=few))
    a, b, s = t.version.columns
    # Their names change places.
    t.alter(columns=(a, replace(b, name="s"), replace(s, name="b")))
    t.rows = [{"a": 1, "s": "x", "b": ["x"]}]
    t.insert(2, "y", ["y"])
    apply_batch(spark, with_options(source.stage(), properties=few))
    assert lake_rows(t) == source_rows(t)
    assert by_column(spark, t) == {
        "metadata.metrics.column.b.element": "none",
        "metadata.metrics.column.s": "counts",
        "parquet.bloom-filter-enabled.column.s": "true",
        "metadata.metrics.column.a": "full",
    }
    # A copy makes the field anew.
    t.alter(columns=(a, replace(b, name="s"), replace(s, name="b", lake_type="string")))
    t.rows = [{"a": 1, "s": "x", "b": "{x}"}]
    source.copy(t)
    t.insert(3, "z", "{z}")
    apply_batch(spark, with_options(source.stage(), properties=few))
    assert lake_rows(t) == source_rows(t)
    assert "metadata.metrics.column.b.element" not in by_column(spark, t)


@pytest.mark.parametrize("step", ["publish", "columns"])
def test_a_property_of_no_column_is_refused(
    spark: SparkSession, source: Source, lake_rows: Any, step: str
) -> None:
    t = source.table("t", (column("a"),), key=("a",))
    t.insert(1)
    apply_batch(spark, source.stage())
    name = TableName("lake", source.slot_name, "t").sql
    key = "write.metadata.metrics.column.note.element"
    spark.sql(f"ALTER TABLE {name} ADD COLUMN note array<string>")
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{key}' = 'none')")
    spark.sql(f"ALTER TABLE {name} DROP COLUMN note")
    if step == "columns":
        t.alter(columns=(*t.version.columns, column("b", "string", "x")))
    t.insert(*(2, "y")[: len(t.version.columns)])
    plan = source.stage()
    with pytest.raises(TableRefused, match=r"metrics\.column\.note") as refused:
        apply_batch(spark, plan)
    assert "UNSET TBLPROPERTIES" in str(refused.value)
    spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('{key}')")
    apply_batch(spark, plan)
    assert lake_rows(t) == source_rows(t)


def test_a_default_is_written_where_older_files_are_in_orc(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """Iceberg's reader of ORC knows no defaults: nobody could read these files any more."""
    t = source.table("t", numbered((column("a"),)), key=("a",))
    t.insert(1)
    apply_batch(spark, with_options(source.stage(), properties={"write.format.default": "orc"}))
    name = TableName("lake", source.slot_name, "t").sql
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.format.default' = 'parquet')")
    t.alter(columns=numbered((*t.version.columns, column("c", "int", "7"))))
    t.insert(2, 7)
    apply_batch(spark, source.stage())
    assert lake_rows(t) == source_rows(t) == [(1, 7), (2, 7)]


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ((column("b"),), {"partitioned_by": ("bucket(4, nope)",)}, "nope"),
        ((column("u", "uuid"),), {"partitioned_by": ("truncate(10, nope)",)}, "nope"),
        ((column("a_bucket"),), {"partitioned_by": ("bucket(4, a)",)}, "a_bucket"),
        ((column("m", "map<string, string>"), column("m.key", "string")), {}, "m.key"),
        ((column("b"),), {"properties": {"write.metadata.metrics.column.nope": "none"}}, "nope"),
    ],
    ids=[
        "no such column",
        "no such column beside a uuid",
        "a column with the partition's name",
        "a part's name",
        "property",
    ],
)
def test_a_table_that_iceberg_does_not_make_is_a_mistake_of_the_users(
    spark: SparkSession, source: Source, columns: Any, options: dict[str, Any], words: str
) -> None:
    t = source.table("t", (column("a"), *columns), key=("a",))
    t.insert(1, *(None for _ in columns))
    with pytest.raises(ConfigurationError, match=words) as refused:
        apply_batch(spark, with_options(source.stage(), **options))
    assert "partitioned_by" in str(refused.value)


def test_a_new_column_that_is_called_as_a_partition_is_refused(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    t = source.table("t", (column("a"),), key=("a",))
    t.insert(1)
    apply_batch(spark, with_options(source.stage(), partitioned_by=("bucket(4, a)",)))
    t.alter(columns=(*t.version.columns, column("a_bucket")))
    t.insert(2, 5)
    # Iceberg keeps the names of former partitions, too.
    name = TableName("lake", source.slot_name, "t").sql
    spark.sql(f"ALTER TABLE {name} REPLACE PARTITION FIELD a_bucket WITH bucket(4, a) AS a_in_4")
    with pytest.raises(TableRefused, match="name of a partition"):
        apply_batch(spark, source.stage())
    assert lake_rows(t, "a") == [(1,)]


@pytest.mark.parametrize("at_once", [True, False], ids=["option", "table"])
def test_a_table_of_any_schema_is_refused(
    spark: SparkSession, source: Source, lake_rows: Any, at_once: bool
) -> None:
    key = "write.spark.accept-any-schema"
    t = source.table("t", (column("a"), column("b")), key=("a",))
    t.insert(1, 0)
    name = TableName("lake", source.slot_name, "t").sql
    if not at_once:
        apply_batch(spark, source.stage())
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{key}' = 'true')")
        t.update(a_is(1), {"b": 5})
    plan = source.stage()
    with pytest.raises(TableRefused, match="accept-any-schema"):
        apply_batch(spark, with_options(plan, properties={key: "true"}))
    if not at_once:
        spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('{key}')")
    apply_batch(spark, plan)
    assert lake_rows(t) == source_rows(t)
