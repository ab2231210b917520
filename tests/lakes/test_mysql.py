"""A SQL catalog in MariaDB: Spark applies a batch by MySQL's driver, and the worker reads how far it is."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch.exit_status import OK
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.batch.spark_packages import MYSQL
from tests.apply.build import Source, column
from tests.lakes.lakes import CATALOG, sql_mysql
from tests.lakes.programs import ROOT, Unavailable, jars, python_with
from tests.lakes.submit import submit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lakes.lakes import Lake

_READ = """
import json, sys
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
name, properties, namespace, slot = json.load(sys.stdin)
print(read_checkpoint(name, properties, namespace, slot).end_lsn)
"""


@pytest.fixture
def lake() -> Iterator[Lake]:
    with tempfile.TemporaryDirectory(prefix="pgoutput-lakes-", dir="/var/tmp") as folder:
        try:
            with sql_mysql(Path(folder), Path(folder)) as found:
                yield found
        except Unavailable as error:
            pytest.skip(str(error))


@pytest.mark.exhaustive
@pytest.mark.submit
def test_spark_applies_a_batch_and_the_worker_reads_how_far_it_is(
    lake: Lake, tmp_path: Path
) -> None:
    source = Source(tmp_path / "staging", CATALOG)
    table = source.table("t", (column("a"), column("b")), key=("a",))
    table.insert(1, 1)
    table.insert(2, 2)
    job = source.stage()
    manifest = Manifest.from_json(Path(job.manifest_uri.removeprefix("file://")).read_bytes())
    file = tmp_path / "job.json"
    driver = jars("mysql", *MYSQL.coordinates, alone=True)
    done = submit(job, file, lake.properties, driver)
    assert done.returncode == OK, done.stdout[-3000:] + done.stderr[-3000:]
    version = importlib.metadata.version("pyiceberg")
    python = python_with("mysql", f"pyiceberg[pyarrow,sql-sqlite]=={version}", "pymysql") / "python"
    asked = (CATALOG, lake.properties, job.namespace, manifest.slot_name)
    read = subprocess.run(
        [python, "-c", _READ],
        input=json.dumps(asked),
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert read.stdout.strip() == str(manifest.end_lsn)
