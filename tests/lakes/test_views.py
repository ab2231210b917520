"""Views of change logs in catalogs of other makers: a REST catalog, and Hive's metastore.

Whether a view shows the right rows is tried in ``tests/apply/test_current_views.py`` with a SQL catalog.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.views import View
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG
from airflow_provider_pgoutput.errors import TableRefused
from quickstart.jars import spark_home
from tests.apply.build import Source, column, numbered
from tests.apply.conftest import sort, source_rows
from tests.apply.iceberg.test_causes import set_catalog
from tests.apply.shared import region_of, stage, tables
from tests.lakes.programs import Unavailable
from tests.lakes.servers import hive_metastore, rest_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.apply.build import Relation


@contextlib.contextmanager
def _hive(home: Path) -> Iterator[dict[str, str]]:
    warehouse = home / "warehouse"
    warehouse.mkdir()
    with hive_metastore(home, warehouse, spark_home()) as uri:
        yield {"type": "hive", "uri": uri, "warehouse": warehouse.as_uri()}


@contextlib.contextmanager
def _rest(home: Path) -> Iterator[dict[str, str]]:
    with rest_catalog(home, None, spark_home()) as login:
        yield {
            "type": "rest",
            "uri": login.url,
            "oauth2-server-uri": f"{login.url}/v1/oauth/tokens",
            "credential": f"{login.client}:{login.secret}",
            "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
        }


_SERVERS = {"hive": _hive, "rest": _rest}


@pytest.fixture(params=list(_SERVERS))
def catalog(
    request: pytest.FixtureRequest, spark: SparkSession
) -> Iterator[tuple[str, dict[str, str]]]:
    """Name and properties of a catalog that the session knows."""
    name = f"views_{request.param}"
    with contextlib.ExitStack() as stack:
        home = tempfile.TemporaryDirectory(prefix="pgoutput-lakes-", dir="/var/tmp")
        try:
            folder = Path(stack.enter_context(home))
            properties = stack.enter_context(_SERVERS[request.param](folder))
        except Unavailable as error:
            pytest.skip(str(error))
        set_catalog(spark, name, **properties)
        yield name, properties


def _shown(
    spark: SparkSession, catalog: tuple[str, dict[str, str]], log: Relation, *names: str
) -> list[tuple[Any, ...]]:
    """The rows of a view, as a reader sees them, whose session has seen nothing yet."""
    name, properties = catalog
    reader = spark.newSession()
    set_catalog(reader, name, **properties)
    rows = reader.sql(f"SELECT * FROM {name}.{log.source.slot_name}.{log.name}_current").collect()
    return sort(tuple(row[each] for each in names) for row in rows)


def _names(log: Relation) -> tuple[str, ...]:
    return tuple(each.name for each in log.version.columns)


@pytest.mark.further
def test_a_view_follows_its_change_log(
    spark: SparkSession, tmp_path: Path, catalog: tuple[str, dict[str, str]]
) -> None:
    """It is made, replaced after a change of the columns, dropped with its key, and made again by a copy."""
    name, properties = catalog
    source = Source(tmp_path / "staging", "one_log")
    columns = numbered((column("id"), column("body", "string"), column("n")))
    log = source.table("orders", columns, key=("id",), toast=("body",))

    def apply() -> None:
        job = replace(source.stage(), mode=CHANGE_LOG, current_views=True, catalog_name=name)
        apply_batch(spark, job)

    def check() -> None:
        assert _shown(spark, catalog, log, *_names(log)) == source_rows(log)

    for number in range(6):
        log.insert(number, f"body {number}", 0)
    apply()
    check()
    log.update(lambda row: row["id"] == 1, {"n": 1})
    log.update(lambda row: row["id"] == 2, {"id": 20})
    log.delete(lambda row: row["id"] == 3)
    apply()
    check()
    # A reader sees it among the views, and not among the tables.
    where = f"{name}.{source.slot_name}"
    views = spark.sql(f"SHOW VIEWS IN {where}").collect()
    assert [each["viewName"] for each in views] == ["orders_current"]
    made = {each["tableName"] for each in spark.sql(f"SHOW TABLES IN {where}").collect()}
    assert {"orders", "pgoutput_checkpoint"} <= made
    if properties["type"] == "rest":
        # As the worker lists them. The tests' environment has no client for Hive.
        listed = load_catalog(name, **{k: v for k, v in properties.items() if k != "io-impl"})
        found = {table for _, table in listed.list_tables(source.slot_name)}
        assert found == {"orders", "pgoutput_checkpoint"}

    key, body, n = log.version.columns
    log.rows = [{"id": row["id"], "content": row["body"], "n": row["n"]} for row in log.rows]
    log.toast = frozenset({"content"})
    log.alter((key, replace(body, name="content"), n))
    log.update(lambda row: row["id"] == 4, {"n": 4})
    apply()
    assert "content" in _names(log)
    check()
    view = TableName(name, source.slot_name, "orders_current")
    log.alter(key=("id", "content"))
    log.update(lambda row: row["id"] == 5, {"n": 5})
    apply()
    assert View.load(spark, view) is None
    log.update(lambda row: row["id"] == 5, {"n": 6})
    source.copy(log)
    apply()
    check()

    # Somebody drops the change log. The view has nothing to read until a copy brings the table back.
    spark.sql(f"DROP TABLE {where}.orders")
    log.insert(30, "after the drop", 0)
    source.copy(log)
    apply()
    check()
    # Somebody else's view of that name stays.
    spark.sql(f"CREATE OR REPLACE VIEW {view.sql} AS SELECT 2 AS mine")
    log.insert(31, "more", 0)
    with pytest.raises(TableRefused, match="orders_current was changed by somebody else"):
        apply()
    assert spark.table(view.sql).columns == ["mine"]


@pytest.mark.further
def test_a_view_of_a_change_log_that_tables_of_two_pipelines_share(
    spark: SparkSession, tmp_path: Path, catalog: tuple[str, dict[str, str]]
) -> None:
    name, _ = catalog
    first = Source(tmp_path / "first", "shared_log")
    second = Source(tmp_path / "second", "other_slot", system_identifier="7302")
    logs = [*tables(first, "eu", "us"), *tables(second, "eu")]
    how = {"mode": CHANGE_LOG, "current_views": True, "catalog_name": name}

    def run() -> None:
        for job in stage((first, second), how):
            apply_batch(spark, job)
        wanted = [(*row, region_of(each)) for each in logs for row in source_rows(each)]
        assert _shown(spark, catalog, logs[0], "id", "name", "note", "region") == sort(wanted)

    for log in logs:
        for number in range(4):
            log.insert(number, "first", f"note {number}")
    run()
    for log in logs:
        log.update(lambda row: row["id"] == 1, {"id": 11})
        log.update(lambda row: row["id"] == 2, {"name": "new"})
    logs[1].truncate()
    logs[0].delete(lambda row: row["id"] == 3)
    run()
