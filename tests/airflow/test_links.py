"""The links on tasks: where they lead, and what Airflow's API says of them after a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyspark
import pytest

from airflow_provider_pgoutput.links.pipeline import ManifestLink, PageLink, console_url
from tests.airflow.example_pipeline import newest_run
from tests.lakes.programs import free_port, running

if TYPE_CHECKING:
    from tests.airflow.example_pipeline import Pipeline


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        (
            "s3://bucket/a b/batch.json",
            "https://console.aws.amazon.com/s3/object/bucket?prefix=a%20b/batch.json",
        ),
        (
            "gs://bucket/a/batch.json",
            "https://console.cloud.google.com/storage/browser/_details/bucket/a/batch.json",
        ),
        ("s3://bucket/batch.json?endpoint_override=minio:9000", ""),
        ("file:///staging/batch.json", ""),
        ("abfss://container@account.dfs.core.windows.net/batch.json", ""),
        ("", ""),
    ],
)
def test_the_console_of_an_object_store(uri: str, address: str) -> None:
    assert console_url(uri) == address


def test_another_store_than_amazons_has_no_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    assert console_url("s3://bucket/batch.json") == ""


def test_before_a_batch_is_sealed_there_is_no_manifest() -> None:
    operator: Any = SimpleNamespace(manifest_uri=None)
    key: Any = SimpleNamespace(dag_id="shop")
    assert ManifestLink().get_link(operator, ti_key=key) == ""


def test_the_page_has_no_link_where_it_is_taken_out(
    monkeypatch: pytest.MonkeyPatch, airflow_home: Path
) -> None:
    operator: Any = SimpleNamespace()
    key: Any = SimpleNamespace(dag_id="a shop")
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.com/airflow")
    found = PageLink().get_link(operator, ti_key=key)
    assert found == "/airflow/dags/a%20shop/plugin/pgoutput_pipeline"
    monkeypatch.setenv("AIRFLOW__PGOUTPUT__PAGE", "False")
    assert PageLink().get_link(operator, ti_key=key) == ""


@pytest.mark.submit
@pytest.mark.exhaustive
def test_airflow_has_the_links_of_a_run_and_spark_knows_its_application(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    port = free_port()
    pipeline.run(spark_conf={"spark.yarn.historyServer.address": f"127.0.0.1:{port}"})
    page = "/dags/pgoutput_to_iceberg/plugin/pgoutput_pipeline"
    assert links("stage") == {"Manifest": None, "PostgreSQL to Iceberg": page}
    assert links("advance") == {"PostgreSQL to Iceberg": page}
    of_apply = links("apply")
    application = of_apply.pop("Spark application")
    assert of_apply == {"Manifest": None, "PostgreSQL to Iceberg": page}
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    command = [str(spark_class), "org.apache.spark.deploy.history.HistoryServer"]
    options = {
        "spark.history.fs.logDirectory": pipeline.event_logs.as_uri(),
        "spark.history.ui.port": port,
    }
    given = " ".join(f"-D{name}={value}" for name, value in options.items())
    log = tmp_path / "history-server.log"
    with running(command, port, log, environment={"SPARK_HISTORY_OPTS": given}):
        wait_for("airflow-provider-pgoutput apply", str(application))


def links(task: str) -> dict[str, str | None]:
    """What Airflow's API says of the links of a task of the newest run."""
    run_id = quote(newest_run().run_id, safe="")
    path = f"/api/v2/dags/pgoutput_to_iceberg/dagRuns/{run_id}/taskInstances"
    program = f"""
from fastapi.testclient import TestClient
from airflow.api_fastapi.app import create_app
client = TestClient(create_app())
token = client.get("/auth/token").json()["access_token"]
ask = lambda path: client.get(path, headers={{"Authorization": "Bearer " + token}}).json()
tasks = [each["task_id"] for each in ask({path!r})["task_instances"]]
(task,) = [each for each in tasks if each.rpartition(".")[2] == {task!r}]
import json
print("links", json.dumps(ask({path!r} + "/" + task + "/links")["extra_links"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (each for each in done.stdout.splitlines() if each.startswith("links "))
    found: dict[str, str | None] = json.loads(line.removeprefix("links "))
    return found


def wait_for(text: str, address: str) -> None:
    """Wait until a page has a text: the history server first reads its logs."""
    # Not through a proxy that the environment names.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 90
    while True:
        try:
            with opener.open(address, timeout=30) as answer:
                found = str(answer.read().decode())
        except urllib.error.HTTPError as error:
            found = str(error)
        if text in found:
            return
        assert time.monotonic() < deadline, found[:2000]
        time.sleep(1)
