"""Two tables of the source never share a table of the lake, whatever the catalog does with case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.apply.target import ignores_case, targets
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Column, Manifest, Table, TableVersion
from airflow_provider_pgoutput.batch.plan import Plan, TableOptions
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def plan(**options: TableOptions) -> Plan:
    return Plan("m", "s", "lake", "shop", tables={f"public.{k}": v for k, v in options.items()})


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
