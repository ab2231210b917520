"""Branches that a killed attempt left, removed by ``pgoutput doctor --repair``.

A branch is dead after a day, so the tests move the table's times back.
``tests/airflow/cli/test_diagnose.py`` has what the doctor says of everything else.
``test_apply_crashes.py`` has that the next apply removes dead branches, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog

from tests.airflow.command_line import run as run_command
from tests.airflow.conftest import connection_json
from tests.conformance.pipeline import CATALOG
from tests.faults.processes import apply_attached
from tests.faults.rest_catalog import RestCatalog
from tests.faults.table_times import shift_times
from tests.faults.workload import LOG_TABLE, UPSERT_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from quickstart.spark import LocalLake
    from tests.faults.conftest import Subject


_DAY_MS = 86_400_000
#: Tables of format version 3, and the one of version 2.
NEWER, OLDER = {"account", "journal"}, "bag"


def branches(run: Subject) -> dict[str, set[str]]:
    """The branches of every table but its own main."""
    catalog = load_catalog(CATALOG, **run.pipeline.catalog_properties)
    found = {}
    for table in (*UPSERT_TABLES, LOG_TABLE):
        references = catalog.load_table((run.pipeline.namespace, table)).metadata.refs
        kinds = {name: each.snapshot_ref_type for name, each in references.items()}
        found[table] = {name for name, kind in kinds.items() if kind == "branch"} - {"main"}
    return found


@dataclass(frozen=True)
class Doctor:
    """``pgoutput doctor`` for a pipeline."""

    run: Subject
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, properties: dict[str, str], *arguments: str) -> dict[str, dict[str, str]]:
        """What is said of branches, by table; the catalog's connection has the properties."""
        given, pipeline = dict(properties), self.run.pipeline
        lake = {"conn_type": "iceberg", "host": given.pop("uri"), "extra": given}
        self.monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(lake))
        source = connection_json(pipeline.reader)
        self.monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", source)
        at: tuple[str, ...] = ("--slot-name", pipeline.slot_name, "--namespace", pipeline.namespace)
        at += ("--catalog-name", CATALOG, "--staging-uri", pipeline.staging.as_uri())
        code, findings = run_command(self.capsys, "doctor", *at, *arguments)
        assert code == 0, findings
        return {
            each["where"].rpartition(".")[2]: each for each in findings if "branch" in each["what"]
        }


@pytest.fixture
def rest_catalog(spark: SparkSession, local_lake: LocalLake) -> Iterator[RestCatalog]:
    catalog = RestCatalog(spark, local_lake)
    yield catalog
    catalog.stop()


def test_the_doctor_removes_branches_that_a_killed_attempt_left(
    subject: Callable[[int], Subject],
    rest_catalog: RestCatalog,
    local_lake: LocalLake,
    airflow_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of format version 3 through a REST catalog only, which writes metadata itself; pyiceberg cannot."""
    run = subject(5)
    run.run()
    spark, namespace = run.pipeline.spark, f"lake.{run.pipeline.namespace}"
    for table in NEWER:
        spark.sql(f"ALTER TABLE {namespace}.{table} SET TBLPROPERTIES ('format-version' = '3')")
    run.change_each()
    batch = run.stage()
    assert apply_attached(run.pipeline, batch, "apply.after_prepare")
    left = branches(run)
    assert all(len(each) == 1 for each in left.values()), left
    spark.sql(f"ALTER TABLE {namespace}.{OLDER} CREATE BRANCH users_own")
    doctor, sql = Doctor(run, monkeypatch, capsys), run.pipeline.catalog_properties

    # The attempt may live.
    assert not doctor(sql, "--repair")
    assert branches(run) == {**left, OLDER: left[OLDER] | {"users_own"}}
    for table in left:
        shift_times(local_lake, run.pipeline.namespace, table, -2 * _DAY_MS)
    found = doctor(sql)
    assert found.keys() == left.keys()
    for table, (name,) in left.items():
        said = f"1 branches of attempts that died are left: {name}."
        assert found[table]["what"] == said
        assert ("--repair cannot" in found[table]["do"]) == (table in NEWER)
    before = run.table_snapshots()
    assert doctor(sql, "--repair").keys() == NEWER
    assert branches(run) == {**left, OLDER: {"users_own"}}
    assert not doctor(rest_catalog.properties, "--repair")
    assert branches(run) == {**{table: set() for table in left}, OLDER: {"users_own"}}
    assert run.table_snapshots() == before
    run.judge.after_any_run()
    run.apply(batch)
    run.advance()
    run.work()
    run.finish()
