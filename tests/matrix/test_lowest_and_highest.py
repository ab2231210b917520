"""A pipeline lives with the lowest versions of everything, and begins with the versions of these tests.

``make matrix`` runs the whole life, also with the versions in between.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quickstart.place import DemoPlace
from quickstart.spark import site_conf
from tests.matrix.cells import CELLS, LOWEST, Cell
from tests.matrix.environments import ROOT, Environments, has_python
from tests.matrix.life import Part, Place, live

if TYPE_CHECKING:
    from quickstart.postgres import EmbeddedPostgres

_LOOK = """
import importlib, json, pkgutil, sys
from datetime import timedelta
import airflow_provider_pgoutput as package
from airflow.models import Connection
from airflow.models.dagbag import DagBag
from airflow.sdk import DAG
from airflow.utils import db
from airflow.utils.session import create_session
from airflow_provider_pgoutput.tasks.schedule import longest_seconds_between_runs

modules = [each.name for each in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
# What travels to Spark imports pyspark, which this environment does not have.
with_spark = ("apply", "spark_copy", "spark_driver", "spark_proof")
ours = [each for each in modules if each.split(".")[1] not in with_spark]
for each in ours:
    importlib.import_module(each)
bag = DagBag(sys.argv[1])
waits = [
    longest_seconds_between_runs(DAG("any", schedule=schedule))
    for schedule in ("@hourly", timedelta(minutes=5), None)
]
db.initdb()
with create_session() as session:
    session.add(Connection(conn_id="iceberg_default", conn_type="iceberg", extra=sys.argv[2]))
found = {"dags": sorted(bag.dags), "errors": bag.import_errors, "waits": waits}
print(json.dumps({"modules": len(ours), **found}))
"""


@dataclass(frozen=True)
class _WithSparkOfTests(Place):
    """A pipeline with the cell's Airflow and the Spark of these tests."""

    def environment(self, server: EmbeddedPostgres) -> dict[str, str]:
        found = DemoPlace.environment(self, server)
        path = f"{self.environments.airflow / 'bin'}{os.pathsep}{found['PATH']}"
        # Else the package would be that of the current folder, and not the wheel.
        return found | {"PATH": path, "PYTHONSAFEPATH": "1"}

    def spark_conf(self) -> dict[str, str]:
        return site_conf(driver_memory="1g")


@pytest.fixture(scope="module")
def lowest() -> Environments:
    if not has_python(LOWEST.python):
        pytest.skip(f"There is no Python {LOWEST.python} on this machine.")
    return Environments.make(LOWEST)


@pytest.mark.slow
def test_the_example_dags_with_the_lowest_versions(lowest: Environments) -> None:
    """A copy, changes of rows, keys and columns, a TRUNCATE, a verification, a replay, and maintenance.

    Every row is compared after each step.
    """
    live(Place(ROOT, lowest), Part.MAIN)


@pytest.mark.slow
def test_the_example_dag_with_the_highest_versions() -> None:
    """Copies, changes of rows, keys and columns, and a TRUNCATE, in the environment of these tests."""
    airflow = importlib.metadata.version("apache-airflow")
    python = ".".join(platform.python_version_tuple()[:2])
    cell = Cell("highest", airflow, python, max(each.postgres for each in CELLS))
    here = Environments(cell, airflow=Path(sys.prefix), spark=Path(sys.prefix))
    live(_WithSparkOfTests(ROOT, here), Part.BEGINNING)


@pytest.mark.slow
def test_the_oldest_airflow_imports_parses_and_runs_the_package(
    lowest: Environments, tmp_path: Path
) -> None:
    assert lowest.versions()["apache-airflow"].startswith(LOWEST.airflow.removesuffix("*"))
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }

    def printed(*command: str) -> str:
        result = subprocess.run(
            command, check=True, capture_output=True, text=True, env=variables, cwd=tmp_path
        )
        return result.stdout

    folder = str(ROOT / "dags_examples")
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path)}
    look = [str(lowest.python), "-c", _LOOK, folder, json.dumps(catalog)]
    found = json.loads(printed(*look).splitlines()[-1])
    assert found["errors"] == {}
    assert found["dags"] == [
        "pgoutput_maintenance",
        "pgoutput_repair",
        "pgoutput_replay",
        "pgoutput_to_iceberg",
        "pgoutput_verify",
    ]
    assert found["modules"] > 150
    assert found["waits"] == [3600, 300, None]
    # It needs the connection of the catalog. Airflow 3.1.0 would not look into the database for it.
    program = str(lowest.airflow / "bin" / "pgoutput")
    given = ["status", "--slot-name", "lake", "--namespace", "shop", "--output", "json"]
    assert json.loads(printed(program, *given)) == []
