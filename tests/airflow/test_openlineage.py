"""What a run tells OpenLineage, by Airflow's own provider and its transport to a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jsonschema
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgoutput.tasks.lineage import FACET, SCHEMA_URL, catalog_namespace
from tests.lakes.programs import Unavailable, python_with

if TYPE_CHECKING:
    from tests.airflow.example_pipeline import Pipeline

_ROOT = Path(__file__).parents[2]
_SCHEMA = json.loads((_ROOT / "docs/openlineage/PgoutputBatchRunFacet.json").read_text())
#: Only what is not in this environment already.
_PACKAGES = (
    "apache-airflow-providers-openlineage==2.20.3",
    "openlineage-python==1.54.0",
    "openlineage-integration-common==1.54.0",
    "openlineage-sql==1.54.0",
    "httpx2",
    "httpcore2",
)


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file into which Airflow's OpenLineage provider writes its events."""
    try:
        binaries = python_with("openlineage", "--no-deps", *_PACKAGES)
    except Unavailable as error:
        pytest.skip(str(error))
    (packages,) = (binaries.parent / "lib").glob("python3*/site-packages")
    path = tmp_path / "lineage.jsonl"
    transport = {"type": "file", "log_file_path": str(path), "append": True}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__NAMESPACE", "tests")
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(packages), before))))
    return path


@pytest.mark.submit
def test_a_run_tells_its_datasets_its_columns_and_its_batch(
    pipeline: Pipeline, events: Path
) -> None:
    pipeline.run()
    with psycopg.connect(pipeline.conninfo, autocommit=True) as session:
        session.execute("UPDATE orders SET price = price + 1 WHERE id <= 7")
    second = pipeline.run()
    told = [json.loads(line) for line in events.read_text().splitlines()]
    stage, apply = (newest(told, task) for task in ("stage", "apply"))
    given = conninfo_to_dict(pipeline.conninfo)
    source = {
        "namespace": f"postgres://{given['host']}:{given['port']}",
        "name": f"{given['dbname']}.public.orders",
    }
    staging = {
        "namespace": "file",
        "name": pipeline.staging_uri.removeprefix("file://") + "/shop",
    }
    table = pipeline.lake_catalog().load_table("shop.orders")
    target = {"namespace": "file", "name": table.location().removeprefix("file://")}
    assert [named(each) for each in stage["inputs"]] == [source]
    assert [named(each) for each in stage["outputs"]] == [staging]
    assert [named(each) for each in apply["inputs"]] == [source, staging]
    assert [named(each) for each in apply["outputs"]] == [target]

    fields = stage["inputs"][0]["facets"]["schema"]["fields"]
    assert [(each["name"], each["type"]) for each in fields] == [
        ("id", "integer"),
        ("customer", "text"),
        ("price", "numeric(12,2)"),
    ]
    (output,) = apply["outputs"]
    lineage = output["facets"]["columnLineage"]["fields"]
    origins = {name: each["inputFields"] for name, each in lineage.items()}
    assert {
        name: [(named(each), each["field"]) for each in fields] for name, fields in origins.items()
    } == {name: [(source, name)] for name in ("id", "customer", "price")}
    (symlink,) = output["facets"]["symlinks"]["identifiers"]
    assert (symlink["name"], symlink["type"]) == ("shop.orders", "TABLE")
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 7

    for event in (stage, apply):
        facet = event["run"]["facets"][FACET]
        jsonschema.Draft202012Validator(_SCHEMA).validate({FACET: facet})
        assert facet["_schemaURL"] == SCHEMA_URL == _SCHEMA["$id"]
        told_range = facet["startLsn"], facet["endLsn"], facet["changes"]
        assert told_range == (second["stage"]["start_lsn"], second["stage"]["end_lsn"], 7)


@pytest.mark.parametrize(
    ("properties", "namespace"),
    [
        (
            {"type": "rest", "uri": "https://user:secret@lake.example.com/v1/?key=secret"},
            "https://lake.example.com/v1",
        ),
        ({"type": "hive", "uri": "thrift://metastore:9083"}, "hive://metastore:9083"),
        (
            {"type": "sql", "uri": "postgresql://u:secret@h/d", "warehouse": "s3://lake/tables/"},
            "s3://lake/tables",
        ),
        ({"type": "sql", "uri": "sqlite:///c.db", "warehouse": "file:///lake"}, "file:/lake"),
        ({"type": "glue"}, "iceberg://lake"),
    ],
)
def test_a_catalogs_name_has_no_secret(properties: dict[str, str], namespace: str) -> None:
    catalog: Any = SimpleNamespace(name="lake", pyiceberg_properties=properties)
    assert catalog_namespace(catalog) == namespace


def newest(told: list[dict[str, Any]], task: str) -> dict[str, Any]:
    """The newest event of a task that says that it has ended."""
    return [
        each
        for each in told
        if each["eventType"] == "COMPLETE" and each["job"]["name"].rpartition(".")[2] == task
    ][-1]


def named(dataset: dict[str, Any]) -> dict[str, str]:
    return {"namespace": dataset["namespace"], "name": dataset["name"]}
