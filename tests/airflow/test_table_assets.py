"""A DAG that waits for a table's asset, in an Airflow with a scheduler: that of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.docs.test_python_blocks import BLOCKS
from tests.scheduled_airflow import ScheduledAirflow

if TYPE_CHECKING:
    from pathlib import Path

    from tests.airflow.example_pipeline import Pipeline

_BLOCK = BLOCKS["docs/reference/events.md:2"]
_ENDED = "SELECT count(*) FROM dag_run WHERE dag_id = '{}' AND state IN ('success', 'failed')"


@pytest.mark.submit
@pytest.mark.slow
def test_a_dag_runs_after_each_batch_that_changed_its_table(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    block = _BLOCK
    # Nothing but this test starts a run of the pipeline.
    for page, here in (
        ("s3://bucket/staging", pipeline.staging_uri),
        ("timedelta(minutes=5)", "None"),
    ):
        assert page in block
        block = block.replace(page, here)
    home = tmp_path / "airflow"
    home.mkdir()
    more = {"AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False"}
    airflow = ScheduledAirflow(home, more=more)
    airflow.prepare(block)
    with airflow.api_server(), airflow.scheduler():
        _run(airflow, 1)
        airflow.wait_for(_ENDED.format("orders_report"), 1)
        with psycopg.connect(pipeline.conninfo, autocommit=True) as session:
            session.execute("UPDATE orders SET price = 0 WHERE id = 7")
        _run(airflow, 2)
        airflow.wait_for(_ENDED.format("orders_report"), 2)
    assert airflow.rows("SELECT DISTINCT state FROM dag_run") == [("success",)]
    # A table that a batch leaves alone has no event, so no DAG that waits for it runs.
    made = dict(
        airflow.rows(
            "SELECT a.uri, count(*) FROM asset_event e JOIN asset a ON a.id = e.asset_id"
            " WHERE a.uri LIKE 'iceberg://%' GROUP BY a.uri"
        )
    )
    assert made == {
        "iceberg://lake/shop/orders": 2,
        "iceberg://lake/shop/customers": 1,
        "iceberg://lake/shop/sales__lines": 1,
    }
    ends = airflow.rows(
        "SELECT json_extract(e.extra, '$.pgoutput.end_lsn') FROM asset_event e"
        " JOIN asset a ON a.id = e.asset_id WHERE a.uri LIKE 'pgoutput://%' ORDER BY e.id"
    )
    assert len(ends) == 2
    logs = sorted(home.glob("logs/dag_id=orders_report/run_id=*/task_id=report/*.log"))
    said = [path.read_text(encoding="utf-8") for path in logs]
    assert len(said) == 2
    for (end,), text in zip(ends, said, strict=True):
        assert f"The table orders has all changes before LSN {end}" in text


def _run(airflow: ScheduledAirflow, number: int) -> None:
    """Let the pipeline run once more, and wait until it ended."""
    airflow.run("-m", "airflow", "dags", "trigger", "shop")
    airflow.wait_for(_ENDED.format("shop"), number)
