"""The example DAG as it is, against a real server, a real spark-submit and a real lake.

One test follows one pipeline through its life, because every apply costs a start of Spark.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.operators.advance import PgoutputAdvanceSlotOperator
from airflow_provider_pgoutput.operators.apply import PgoutputApplyOperator
from tests.airflow.example_pipeline import CANARY, metadata_database

if TYPE_CHECKING:
    from tests.airflow.example_pipeline import Pipeline

    Session = psycopg.Connection[tuple[Any, ...]]

pytestmark = [pytest.mark.submit, pytest.mark.postgres, pytest.mark.airflow]


def test_a_pipeline_from_its_first_run_to_a_cleared_old_one(pipeline: Pipeline) -> None:
    with psycopg.connect(pipeline.conninfo, autocommit=True) as session:
        first = pipeline.run()
        assert first["stage"]["tables"]["public.orders"]["copied"] == 500
        pipeline.assert_equal()

        session.execute("UPDATE orders SET price = price + 1 WHERE id % 7 = 0")
        session.execute("UPDATE orders SET id = id + 10000 WHERE id % 11 = 0")
        session.execute("DELETE FROM sales.lines WHERE a = 3")
        session.execute("INSERT INTO customers VALUES ('new', 'epoch', NULL)")
        second = pipeline.run()
        assert second["stage"]["start_lsn"] == first["stage"]["end_lsn"]
        assert second["apply"]["applied"] is True
        assert second["apply"]["changes"] == second["stage"]["changes"] > 0
        assert second["advance"]["confirmed_flush_lsn"] == second["stage"]["end_lsn"]
        pipeline.assert_equal()

        again = pipeline.replay(from_lsn=first["stage"]["start_lsn"], target_namespace="again")
        assert (again["batches"], again["end_lsn"]) == (2, second["stage"]["end_lsn"])
        assert pipeline.lake_rows("again") == pipeline.source_rows()

        cleared_old_run_is_a_no_op(pipeline, first["stage"])
        pipeline.assert_equal()
        assert confirmed(session) == second["advance"]["confirmed_flush_lsn"]

        idle = pipeline.run(transport="walsender")
        assert idle["stage"]["changes"] == 0
        assert idle["advance"]["confirmed_flush_lsn"] == idle["stage"]["end_lsn"]

    assert "public.orders: 500 copied" in pipeline.log
    assert "::group::Stage slot shop" in pipeline.log
    nothing_leaked(pipeline)


def cleared_old_run_is_a_no_op(pipeline: Pipeline, old_batch: dict[str, Any]) -> None:
    """F16: the apply and advance tasks of the first run again, after the second; no staging is left."""
    shutil.rmtree(Path(pipeline.staging_uri.removeprefix("file://")) / "shop" / "data")
    context: Any = {
        "ti": SimpleNamespace(try_number=2),
        "dag_run": SimpleNamespace(dag_id="d", run_id="r", run_type="manual"),
    }
    common: dict[str, Any] = {"batch": old_batch, "slot_name": "shop", "namespace": "shop"}
    apply = PgoutputApplyOperator(task_id="apply", staging_uri=pipeline.staging_uri, **common)
    assert apply.execute(context)["applied"] is False
    PgoutputAdvanceSlotOperator(task_id="advance", **common).execute(context)


def confirmed(session: Session) -> str:
    row = session.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'shop'"
    ).fetchone()
    assert row is not None
    return str(row[0])


def nothing_leaked(pipeline: Pipeline) -> None:
    """No password and no value of a row is in a log, an XCom, a rendered template or the staging."""
    assert CANARY not in pipeline.log
    assert "customer 3" not in pipeline.log
    with metadata_database() as database:
        kept = "\n".join(line for line in database.iterdump() if not line.startswith("CREATE"))
    assert "pgoutput_to_iceberg" in kept
    assert CANARY not in kept
    assert "customer 3" not in kept
    staging = Path(pipeline.staging_uri.removeprefix("file://"))
    texts = [path.read_text() for path in staging.rglob("*.json")]
    assert texts
    assert all(CANARY not in text for text in texts)
