"""The example DAG as it is, against a real server, a real spark-submit and a real lake.

One test follows one pipeline through its life, because every apply costs a start of Spark.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.operators.advance import PgoutputAdvanceSlotOperator
from airflow_provider_pgoutput.operators.apply import PgoutputApplyOperator
from tests.airflow.canaries import CANARIES, ProcessWatch, files_below, leaks
from tests.airflow.example_pipeline import airflow_files, kept_rows, metadata_database
from tests.spark_log import spark_lines

if TYPE_CHECKING:
    from tests.airflow.example_pipeline import Pipeline

    Session = psycopg.Connection[tuple[Any, ...]]


@pytest.mark.submit
def test_a_pipeline_from_its_first_run_to_a_cleared_old_one(
    pipeline: Pipeline, task_context: Any
) -> None:
    with psycopg.connect(pipeline.conninfo, autocommit=True) as session:
        with ProcessWatch() as processes:
            first = pipeline.run()
        assert first["stage"]["tables"]["public.orders"]["copied"] == 500
        pipeline.assert_equal()

        session.execute("UPDATE orders SET price = price + 1 WHERE id % 7 = 0")
        session.execute("UPDATE orders SET id = id + 10000 WHERE id % 11 = 0")
        session.execute("DELETE FROM sales.lines WHERE a = 3")
        # Nobody sends what is written meanwhile, so only the copy that is asked for brings it.
        session.execute("ALTER TABLE customers SET UNLOGGED")
        session.execute("INSERT INTO customers VALUES ('new', 'epoch', NULL)")
        session.execute("ALTER TABLE customers SET LOGGED")
        second = pipeline.run(copy_tables=["public.customers"])
        assert second["stage"]["tables"]["public.customers"]["copied"] == 11
        assert second["stage"]["start_lsn"] == first["stage"]["end_lsn"]
        assert second["apply"]["applied"] is True
        assert second["apply"]["changes"] == second["stage"]["changes"] > 0
        assert second["advance"]["confirmed_flush_lsn"] == second["stage"]["end_lsn"]
        pipeline.assert_equal()

        again = pipeline.replay(from_lsn=first["stage"]["start_lsn"], target_namespace="again")
        assert (again["batches"], again["end_lsn"]) == (2, second["stage"]["end_lsn"])
        assert pipeline.lake_rows("again") == pipeline.source_rows()

        cleared_old_run_is_a_no_op(pipeline, first["stage"], task_context)
        pipeline.assert_equal()
        assert confirmed(session) == second["advance"]["confirmed_flush_lsn"]

        idle = pipeline.run(transport="walsender")
        assert idle["stage"]["changes"] == 0
        assert idle["advance"]["confirmed_flush_lsn"] == idle["stage"]["end_lsn"]

    told = [each["pgoutput"] for each in events_of(first["stage"]["asset_uri"])]
    assert [each["end_lsn"] for each in told] == [
        run["stage"]["end_lsn"] for run in (first, second, idle)
    ]
    assert [each["changes"] for each in told] == [0, second["stage"]["changes"], 0]
    assert told[0]["tables"]["public.orders"] == {"copied": 500}
    assert told[1]["slot"]["retained_bytes"] > 0
    # It left its name to the asset that the DAG file names.
    # Other tests ran the same DAG before.
    assert events_of("pgoutput_to_iceberg")[-3:] == [{"pgoutput": each} for each in told]

    assert "public.orders: 500 copied" in pipeline.log
    assert "::group::Stage slot shop" in pipeline.log
    assert pipeline.log.count(" INFO Applied ") == 2, "and one run had nothing to apply"
    assert spark_lines(pipeline.log) == []
    nothing_leaked(pipeline, processes)


def cleared_old_run_is_a_no_op(
    pipeline: Pipeline, old_batch: dict[str, Any], task_context: Any
) -> None:
    """F16: the apply and advance tasks of the first run again, after the second; no staging is left."""
    shutil.rmtree(Path(pipeline.staging_uri.removeprefix("file://")) / "shop" / "data")
    common: dict[str, Any] = {"batch": old_batch, "slot_name": "shop", "namespace": "shop"}
    apply = PgoutputApplyOperator(task_id="apply", staging_uri=pipeline.staging_uri, **common)
    assert apply.execute(task_context)["applied"] is False
    PgoutputAdvanceSlotOperator(task_id="advance", **common).execute(task_context)


def events_of(asset_name: str) -> list[dict[str, Any]]:
    """What the events of an asset tell, the oldest first."""
    with metadata_database() as database:
        rows = database.execute(
            "SELECT e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id WHERE a.name = ?"
            " ORDER BY e.timestamp, e.id",
            (asset_name,),
        ).fetchall()
    return [json.loads(extra) for (extra,) in rows]


def confirmed(session: Session) -> str:
    row = session.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'shop'"
    ).fetchone()
    assert row is not None
    return str(row[0])


def nothing_leaked(pipeline: Pipeline, processes: ProcessWatch) -> None:
    """No planted secret and no value of a row is anywhere where others may look.

    Each place is one that was really looked at: it holds something that belongs there.
    """
    with metadata_database() as database:
        kept = "\n".join(line for line in database.iterdump() if not line.startswith("CREATE"))
    staged = files_below(Path(pipeline.staging_uri.removeprefix("file://")))
    logs = {f"event log {path}": text for path, text in files_below(pipeline.event_logs).items()}
    commands = {at: text for at, text in processes.seen.items() if at.startswith("command")}
    environments = {at: text for at, text in processes.seen.items() if at.startswith("env")}

    rendered = kept_rows("rendered_task_instance_fields")
    assert len(rendered) == 3, "one for each task"
    assert all(pipeline.staging_uri in row for row in rendered if ".advance'" not in row)
    assert len(logs) == 3, "an event log for each job"
    assert all(b"spark.sql.catalog.lake.s3.secret-access-key" in text for text in logs.values())
    assert all(b"*********(redacted)" in text for text in logs.values())
    assert any(path.endswith(".result.json") for path in staged)
    assert any("org.apache.spark.deploy.SparkSubmit" in text for text in commands.values())
    assert any("spark.properties" in text for text in commands.values())
    assert any("PYSPARK_GATEWAY" in text for text in environments.values()), "the driver's"

    places: dict[str, str | bytes] = {
        "log": pipeline.log,
        "Airflow's database": kept,
        **staged,
        **logs,
        **processes.seen,
    }
    places |= files_below(Path(pipeline.lake.home))
    places |= airflow_files()
    assert not leaks(places)
    for place in (pipeline.log, kept, *(str(text) for text in logs.values())):
        assert "customer 3" not in place


def test_a_canary_would_be_found_wherever_it_is(tmp_path: Path) -> None:
    for name, canary in CANARIES.items():
        assert leaks({"a log": f"password={canary}\n"}) == [(name, "a log")]
        header = base64.b64encode(f"client:{canary}".encode())
        assert leaks({"a header": b"Basic " + header}) == [(name, "a header")]
        (tmp_path / "file").write_bytes(b"PAR1" + canary.encode())
        assert leaks(files_below(tmp_path)) == [(name, str(tmp_path / "file"))]
    canary = CANARIES["postgres password"]
    with ProcessWatch() as processes:
        words = [sys.executable, "-c", "import time; time.sleep(2)", canary]
        subprocess.run(words, check=True, env={"PGPASSWORD": canary})
    assert {where.split()[0] for _, where in leaks(processes.seen)} == {"command", "environment"}
    assert not leaks({"a log": "canary"})
