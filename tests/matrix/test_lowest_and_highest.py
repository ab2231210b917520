"""The oldest Airflow of the matrix imports the package, parses the example DAGs and runs a command."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.matrix.cells import LOWEST
from tests.matrix.environments import ROOT, Environments

if TYPE_CHECKING:
    from pathlib import Path

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
ours = [each for each in modules if each.split(".")[1] not in ("apply", "spark_copy")]
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


@pytest.mark.slow
def test_the_oldest_airflow_imports_parses_and_runs_the_package(tmp_path: Path) -> None:
    # The Python of this run is there; another one may not be.
    cell = replace(LOWEST, python=".".join(platform.python_version_tuple()[:2]))
    environments = Environments.make(cell, with_spark=False)
    assert environments.versions()["apache-airflow"].startswith(LOWEST.airflow.removesuffix("*"))
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
    look = [str(environments.python), "-c", _LOOK, folder, json.dumps(catalog)]
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
    program = str(environments.airflow / "bin" / "pgoutput")
    given = ["status", "--slot-name", "lake", "--namespace", "shop", "--output", "json"]
    assert json.loads(printed(program, *given)) == []
