"""Runs of the example DAG that fail, in stage and in apply: they tell no secret that they were given.

Errors are where secrets get out: a client's message quotes its address, a driver prints its configuration, a
task logs the command that failed. Airflow logs all that it can (DEBUG). What is not here: runs that succeed
(``test_end_to_end.py``), and what a failed run does to the tables (``tests/faults``).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.airflow.canaries import ProcessWatch, files_below, leaks
from tests.airflow.example_pipeline import airflow_files, kept_rows, metadata_database, newest_run

if TYPE_CHECKING:
    from tests.airflow.example_pipeline import Pipeline


PROGRAM = str(Path(__file__).with_name("patient_run.py"))
NOT_BEGUN = ("upstream_failed", 0)
#: What ``dags test`` alone logs at that level: each secret that a task asks Airflow to mask.
AIRFLOWS_OWN = "msg=MaskSecret("


def failed_run(pipeline: Pipeline, **changed: object) -> dict[str, tuple[str | None, int]]:
    """Run the DAG, each task once, and look for secrets; states and tries of its tasks."""
    pipeline.log = ""
    with ProcessWatch() as processes:
        status = pipeline.python(PROGRAM, pipeline.conf(**changed), "0")
    assert status == 1, pipeline.log[-5000:]
    nothing_leaked(pipeline, processes)
    return newest_run().tasks


def nothing_leaked(pipeline: Pipeline, processes: ProcessWatch) -> None:
    """No planted secret is anywhere, and each place holds what belongs there."""
    tasks = newest_run().tasks
    begun = [task for task, state in tasks.items() if state != NOT_BEGUN]
    rendered = kept_rows("rendered_task_instance_fields")
    told = kept_rows("xcom")
    assert len(rendered) == len(begun)
    for task in begun:
        (row,) = (each for each in rendered if f"pgoutput_to_iceberg.{task}'" in each)
        assert pipeline.staging_uri in row
    assert ("end_lsn" in "".join(told)) == ("apply" in begun)
    log = "".join(each for each in pipeline.log.splitlines(True) if AIRFLOWS_OWN not in each)
    assert len(log) < len(pipeline.log), "Airflow does not log all that it can"
    assert "Traceback" in log

    with metadata_database() as database:
        kept = "\n".join(line for line in database.iterdump() if not line.startswith("CREATE"))
    places: dict[str, str | bytes] = {
        "log": log,
        "rendered": "".join(rendered),
        "XCom": "".join(told),
        "database": kept,
    }
    places |= processes.seen
    places |= airflow_files()
    places |= files_below(Path(pipeline.staging_uri.removeprefix("file://")))
    places |= files_below(pipeline.event_logs)
    places |= files_below(Path(pipeline.lake.home))
    assert not leaks(places)
    assert "customer 3" not in log


def what_is_said_before_the_traceback(log: str) -> list[str]:
    """The short lines of an error: what happened, where, what to do, and the link. They are there once."""
    lines = log.splitlines()
    (link,) = (i for i, line in enumerate(lines) if "More about it: https://" in line)
    traceback = next(i for i, line in enumerate(lines) if "Traceback (most recent" in line)
    assert link < traceback
    return lines[link - 3 : link + 1]


def test_a_stage_that_fails_tells_no_secret(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right is missing; the server does not take the password; the catalog is no database."""
    monkeypatch.setenv("AIRFLOW__LOGGING__LOGGING_LEVEL", "DEBUG")
    failed = {"stage": ("failed", 1), "apply": NOT_BEGUN, "advance": NOT_BEGUN}
    with psycopg.connect(pipeline.conninfo, autocommit=True) as session:
        # If the role may still read some tables, the run goes on with these.
        session.execute("REVOKE SELECT ON ALL TABLES IN SCHEMA public, sales FROM cdc_reader")
        assert failed_run(pipeline) == failed
        happened, where, advice, link = what_is_said_before_the_traceback(pipeline.log)
        assert "MissingPrivilege: " in happened
        assert "Where: " in where
        assert "What to do: " in advice
        assert "/docs/reference/errors.md#" in link
        session.execute("ALTER ROLE cdc_reader PASSWORD 'another'")
        assert failed_run(pipeline) == failed
        assert "password authentication failed" in pipeline.log
    pipeline.lake.catalog_file.write_bytes(b"no database" * 1000)
    assert failed_run(pipeline) == failed
    assert "LakeUnavailable: " in pipeline.log


@pytest.mark.submit
def test_an_apply_that_fails_tells_no_secret(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog takes no commit; Spark does not come as far as the catalog."""
    monkeypatch.setenv("AIRFLOW__LOGGING__LOGGING_LEVEL", "DEBUG")
    failed = {"stage": ("success", 1), "apply": ("failed", 1), "advance": NOT_BEGUN}
    with closing(sqlite3.connect(pipeline.lake.catalog_file)) as catalog:
        catalog.execute(
            "CREATE TRIGGER read_only BEFORE INSERT ON iceberg_tables"
            " BEGIN SELECT RAISE(ABORT, 'nothing is written here'); END"
        )
    assert failed_run(pipeline, spark_conf={"spark.log.level": "INFO"}) == failed
    assert "CommitStateUnknown: " in pipeline.log
    assert "INFO SparkContext: Running Spark version" in pipeline.log, "the driver's own output"
    staged = files_below(Path(pipeline.staging_uri.removeprefix("file://")))
    assert any(path.endswith(".result.json") for path in staged)
    unknown = {"spark.sql.catalog.lake.io-impl": "no.such.FileIO"}
    assert failed_run(pipeline, spark_conf=unknown) == failed
    assert "Cannot execute: spark-submit" in pipeline.log
    assert len(files_below(pipeline.event_logs)) == 2
