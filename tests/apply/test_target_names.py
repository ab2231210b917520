"""Two tables of the source never share a table of the lake, whatever the catalog does with case."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.table.target import every_target, ignores_case, shared, targets
from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT_TABLE, MESSAGES_TABLE
from airflow_provider_pgoutput.batch.jobs import ApplyJob, TableOptions
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest, Table
from airflow_provider_pgoutput.batch.table_version import Column, TableVersion
from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused
from tests.apply.build import column
from tests.apply.conftest import source_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.apply.build import Source

#: What a job must say.
WHERE: dict[str, Any] = {
    "manifest_uri": "m",
    "staging_uri": "s",
    "catalog_name": "lake",
    "namespace": "shop",
}


def manifest(*names: str) -> Manifest:
    column = Column("a", 23, -1, "integer", "int")
    return Manifest(
        slot_name="s",
        system_identifier="1",
        timeline=1,
        database="d",
        publication_names=("p",),
        start_lsn=Lsn(1),
        end_lsn=Lsn(2),
        tables=tuple(
            Table(oid, "public", name, (TableVersion(1, "public", name, "d", (column,), ("a",)),))
            for oid, name in enumerate(names, start=16384)
        ),
    )


def plan(**options: TableOptions) -> ApplyJob:
    return ApplyJob(**WHERE, table_options={f"public.{k}": v for k, v in options.items()})


def test_names_that_differ_in_case_are_two_tables() -> None:
    assert len(targets(plan(), manifest("T", "t"))) == 2


def test_where_the_catalog_ignores_case_they_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"is also that of public\.T"):
        targets(plan(), manifest("T", "t"), any_case=True)
    other = plan(T=TableOptions(target="upper_t"))
    assert len(targets(other, manifest("T", "t"), any_case=True)) == 2


def test_one_target_for_two_tables_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"is also that of public\.t"):
        targets(plan(u=TableOptions(target="t")), manifest("t", "u"))


@pytest.mark.parametrize(
    "odd", [{}, {"tenant": "t", "shard": "s"}, {"shard": "s"}], ids=["none", "more", "other"]
)
def test_the_one_of_many_that_has_other_constants_is_named(odd: dict[str, str]) -> None:
    def options(constants: dict[str, str]) -> TableOptions:
        return TableOptions(target="all", shared=bool(constants), constant_columns=constants)

    of_tables = {name: options({"tenant": name}) for name in ("t", "u", "v")}
    assert len(targets(plan(**of_tables), manifest(*of_tables))) == 3
    job = plan(**of_tables, w=options(odd))
    found = every_target(job, manifest("t", "u", "v", "w"))
    named = {error.table: error.message.split()[-1] for _, error in shared(found)}
    assert named == {
        "public.t": "public.w.",
        "public.u": "public.w.",
        "public.v": "public.w.",
        "public.w": "public.t.",
    }


def test_two_tables_with_the_same_constants_stop_no_third_one() -> None:
    texts = {"t": "one", "u": "one", "v": "two"}
    job = plan(
        **{
            name: TableOptions(target="all", shared=True, constant_columns={"tenant": text})
            for name, text in texts.items()
        }
    )
    found = every_target(job, manifest(*texts))
    assert {error.table for _, error in shared(found)} == {"public.t", "public.u"}


def test_the_pattern_of_the_page_makes_partitions_slices_of_one_table() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/shared_tables.md").read_text("utf-8")
    (pattern,) = re.findall(r'`"shared_names": (\{"public.*?\})`', page)
    plan = ApplyJob(**WHERE, shared_names=json.loads(pattern))
    found = targets(plan, manifest("orders_2025", "orders_2026"))
    assert [each.name.name for each in found] == ["orders", "orders"]
    assert [each.constants for each in found] == [{"year": "2025"}, {"year": "2026"}]


def test_a_pattern_that_gives_two_tables_one_name_is_refused() -> None:
    plan = ApplyJob(**WHERE, target_names={r"public\.t.*": "all"})
    with pytest.raises(ConfigurationError, match=r"is also that of public\.t1"):
        targets(plan, manifest("t1", "t2"))
    found = targets(
        ApplyJob(**WHERE, target_names={r"public\.t(.*)": "n{1}"}), manifest("t1", "t2")
    )
    assert [each.name.name for each in found] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("settings", "ignores"),
    [
        ({"type": "hive"}, True),
        ({"type": "glue"}, True),
        ({"catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog"}, True),
        ({"type": "jdbc"}, False),
        ({"type": "rest"}, False),
        ({}, False),
    ],
)
def test_which_catalogs_ignore_case(
    spark: SparkSession, settings: dict[str, str], ignores: bool
) -> None:
    session = spark.newSession()
    for key, value in settings.items():
        session.conf.set(f"spark.sql.catalog.other.{key}", value)
    assert ignores_case(session, "other") is ignores


@pytest.mark.parametrize("lake_type", ["int", "uuid"])
def test_the_name_of_a_view_is_refused_and_given_back(
    spark: SparkSession, source: Source, lake_rows: Callable[..., Any], lake_type: str
) -> None:
    """Before anything is published; and the batch goes on when the name is free, or another one is given."""
    namespace = f"lake.{source.slot_name}"

    def refused(plan: ApplyJob, name: str) -> None:
        for _ in range(2):
            with pytest.raises(TableRefused, match="has a view of this name") as error:
                apply_batch(spark, plan)
            assert error.value.table == f"{source.slot_name}.{name}"
            assert "rename the view" in str(error.value.advice)

    spark.sql(f"CREATE NAMESPACE {namespace}")
    for name in ("t", CHECKPOINT_TABLE, MESSAGES_TABLE):
        spark.sql(f"CREATE VIEW {namespace}.{name} AS SELECT 1 AS a")
    t = source.table("t", (column("a"), column("b", lake_type)), key=("a",))
    other = source.table("other", (column("a"),), key=("a",))
    t.insert(1, None)
    other.insert(1)
    source.message(b"x", transactional=True)
    plan = source.stage()
    for name in (CHECKPOINT_TABLE, MESSAGES_TABLE):
        refused(plan, name)
        spark.sql(f"DROP VIEW {namespace}.{name}")
    refused(plan, "t")
    published = IcebergTable.load(spark, TableName("lake", source.slot_name, "other"))
    assert published is None or published.head is None
    apply_batch(spark, replace(plan, table_options={"public.t": TableOptions(target="t_of_shop")}))
    assert lake_rows(t, target="t_of_shop") == source_rows(t)
    assert lake_rows(other) == source_rows(other)
