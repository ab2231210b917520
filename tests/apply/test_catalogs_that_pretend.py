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
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.errors import ConfigurationError, PublishRefused
from tests.apply.build import column, replay_of
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
    made.attach(_REST)
    yield made
    made.stop()


@pytest.fixture
def job(source: Source, table: Relation) -> ApplyJob:
    """A first batch: a copy of three rows."""
    source.pending.clear()
    source.copy(table)
    return replace(source.stage(), catalog_name=_REST)


def is_there(spark: SparkSession, job: ApplyJob) -> bool:
    """Whether the lake has the job's namespace."""
    found = spark.sql("SHOW NAMESPACES IN lake").collect()
    return job.namespace in {row["namespace"] for row in found}


def tables(spark: SparkSession, job: ApplyJob) -> set[str]:
    """The tables of the namespace."""
    name = TableName("lake", job.namespace, "").namespace_sql
    return {row["tableName"] for row in spark.sql(f"SHOW TABLES IN {name}").collect()}


def data_files(spark: SparkSession, job: ApplyJob, name: str) -> int:
    """How many data files any snapshot of a table has."""
    at = TableName("lake", job.namespace, name)
    spark.catalog.refreshTable(at.sql)
    return spark.table(f"{at.sql}.all_data_files").count()


@pytest.mark.slow
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
        assert not is_there(spark, job)
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
    of_table = TableOptions(properties={"format-version": "3"})
    for asked_for in ({"format_version": 3}, {"table_options": {"public.t": of_table}}):
        with pytest.raises(ConfigurationError, match="made a table in Iceberg's format version 2"):
            apply_batch(spark, replace(job, **asked_for))
        assert not is_there(spark, job)
    # As its advice says.
    assert apply_batch(spark, replace(job, format_version=2)).published


def test_a_catalog_that_has_version_3_keeps_nothing_of_the_look(
    spark: SparkSession, catalog: RestCatalog, job: ApplyJob
) -> None:
    assert apply_batch(spark, replace(job, format_version=3)).published
    assert tables(spark, job) == {CHECKPOINT_TABLE, "t"}
    made = IcebergTable.load(spark, TableName("lake", job.namespace, "t"))
    assert made is not None
    assert made.format_version == 3


def test_a_table_that_is_made_later_in_an_older_version_is_removed(
    spark: SparkSession, catalog: RestCatalog, job: ApplyJob, source: Source
) -> None:
    """The namespace was looked at. A new table asks for a version that the catalog does not make."""
    apply_batch(spark, job)
    other = source.table("other", (column("a"),), key=("a",))
    other.insert(1)
    source.pending.clear()
    source.copy(other)
    catalog.pretends = Pretence.NO_VERSION_3
    later = replace(source.stage(), catalog_name=_REST)
    with pytest.raises(ConfigurationError, match="No table was left"):
        apply_batch(spark, replace(later, format_version=3))
    assert tables(spark, job) == {CHECKPOINT_TABLE, "t"}
    assert apply_batch(spark, later).published
    assert tables(spark, job) == {CHECKPOINT_TABLE, "t", "other"}


def test_a_namespace_that_was_there_stays(
    spark: SparkSession, catalog: RestCatalog, job: ApplyJob
) -> None:
    spark.sql(f"CREATE NAMESPACE {TableName('lake', job.namespace, '').namespace_sql}")
    catalog.pretends = Pretence.NO_TAGS
    with pytest.raises(ConfigurationError, match="A tag was made"):
        apply_batch(spark, job)
    assert is_there(spark, job)
    assert tables(spark, job) == set()


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
