"""A catalog answers yes and keeps no branches, tags or format 3: it is found out before a row is written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT_TABLE
from airflow_provider_pgoutput.errors import ConfigurationError, PublishRefused
from tests.apply.build import replay_of
from tests.faults.rest_catalog import Pretence, RestCatalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob
    from quickstart.spark import LocalLake
    from tests.apply.build import Relation, Source

_REST = "pretender"


@pytest.fixture
def catalog(spark: SparkSession, local_lake: LocalLake) -> Iterator[RestCatalog]:
    """The tests' catalog over HTTP."""
    made = RestCatalog(spark, local_lake)
    for name, value in made.spark_conf(_REST).items():
        spark.conf.set(name, value)
    yield made
    made.stop()


@pytest.fixture
def job(source: Source, table: Relation) -> ApplyJob:
    """A first batch: a copy of three rows."""
    source.pending.clear()
    source.copy(table)
    return replace(source.stage(), catalog_name=_REST)


def tables(spark: SparkSession, job: ApplyJob) -> set[str]:
    """The tables of the namespace."""
    name = TableName("lake", job.namespace, "").namespace_sql
    return {row["tableName"] for row in spark.sql(f"SHOW TABLES IN {name}").collect()}


def data_files(spark: SparkSession, job: ApplyJob, name: str) -> int:
    """How many data files any snapshot of a table has."""
    at = TableName("lake", job.namespace, name)
    spark.catalog.refreshTable(at.sql)
    return spark.table(f"{at.sql}.all_data_files").count()


@pytest.mark.parametrize(
    ("pretence", "what"),
    [
        (Pretence.BRANCHES_ARE_MAIN, "branch"),
        (Pretence.BRANCHES_MOVE_MAIN_TOO, "branch"),
        (Pretence.NO_TAGS, "tag"),
    ],
)
def test_a_catalog_that_keeps_no_references(
    spark: SparkSession, catalog: RestCatalog, job: ApplyJob, pretence: Pretence, what: str
) -> None:
    catalog.pretends = pretence
    # A second try meets the same: the first one did not leave a lake that looks as if it had been tried out.
    for _ in range(2):
        with pytest.raises(
            ConfigurationError, match=f"A {what} was made on a table, and the catalog"
        ):
            apply_batch(spark, job)
        assert tables(spark, job) == {CHECKPOINT_TABLE}
        assert data_files(spark, job, CHECKPOINT_TABLE) == 0
    with pytest.raises(ConfigurationError, match=f"A {what} was made"):
        replay(spark, replay_of(job, [job.manifest_uri], namespace=f"{job.namespace}_again"))
    catalog.pretends = None
    assert apply_batch(spark, job).published


def test_only_the_first_run_of_a_namespace_looks(
    spark: SparkSession, catalog: RestCatalog, job: ApplyJob, source: Source, table: Relation
) -> None:
    apply_batch(spark, job)
    looks = [each for each in catalog.commits if each.table == CHECKPOINT_TABLE]
    made, removed, recorded = looks
    assert set(made.set_references) == set(removed.removed_references)
    assert {each.rpartition("_")[0] for each in made.set_references} == {
        "pgoutput_look",
        "pgoutput_look_tag",
    }
    assert recorded.set_references == ("main",)
    checkpoint = IcebergTable.load(spark, TableName("lake", job.namespace, CHECKPOINT_TABLE))
    assert checkpoint is not None
    assert list(checkpoint.java.refs()) == ["main"]
    catalog.commits.clear()
    table.insert(4, "b4", 0)
    apply_batch(spark, replace(source.stage(), catalog_name=_REST))
    assert [each for each in catalog.commits if each.table == CHECKPOINT_TABLE] == [recorded]


def test_a_catalog_that_makes_version_2_of_3(
    spark: SparkSession, catalog: RestCatalog, job: ApplyJob
) -> None:
    catalog.pretends = Pretence.NO_VERSION_3
    with pytest.raises(ConfigurationError, match="made the table in Iceberg's format version 2"):
        apply_batch(spark, replace(job, format_version=3))
    assert data_files(spark, job, "t") == 0
    # As its advice says.
    assert apply_batch(spark, replace(job, format_version=2)).published


def test_a_branch_that_is_lost_later_gets_no_row(
    spark: SparkSession, catalog: RestCatalog, job: ApplyJob, source: Source, table: Relation
) -> None:
    """The catalog changed after the first run. The guard at each branch costs no request."""
    apply_batch(spark, job)
    catalog.pretends = Pretence.BRANCHES_ARE_MAIN
    table.insert(4, "b4", 0)
    before = data_files(spark, job, "t")
    with pytest.raises(PublishRefused, match="A branch of it was made and is not there"):
        apply_batch(spark, replace(source.stage(), catalog_name=_REST))
    assert data_files(spark, job, "t") == before
