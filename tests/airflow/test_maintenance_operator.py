"""The door to maintenance: the plan that Spark gets, and what the operator makes of the answer."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgoutput.batch.jobs import MaintenanceJob, job_from_json
from airflow_provider_pgoutput.errors import LakeUnavailable
from airflow_provider_pgoutput.operators.maintain import PgoutputMaintenanceOperator
from tests.airflow.spark_submit_double import SLOT, Workshop

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.airflow.conftest import TestLake


@pytest.fixture
def workshop(
    tmp_path: Path, lake: TestLake, set_connection: Callable[[str, dict[str, Any]], None]
) -> Workshop:
    set_connection("spark_default", {"conn_type": "spark", "host": "local[2]"})
    made = Workshop(tmp_path, lake)
    tables = {"shop.orders": {"files_replaced": 5}, "shop.idle": {}}
    made.behave(result={"status": "applied", "tables": tables, "busy": ["shop.orders"]})
    return made


def operator(workshop: Workshop, **changed: Any) -> PgoutputMaintenanceOperator:
    arguments = {
        "task_id": "maintain",
        "slot_name": SLOT,
        "staging_uri": workshop.staging_uri,
        "namespace": "shop",
        "spark_binary": str(workshop.binary),
        "name": "test",
    }
    return PgoutputMaintenanceOperator(**(arguments | changed))


def test_the_job_gets_what_was_asked_for(
    workshop: Workshop, task_context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    result = operator(
        workshop,
        tables='["public.orders"]',
        compact="false",
        compact_options='{"min-input-files": "2"}',
        keep_snapshots="3",
        snapshot_retention=timedelta(hours=1),
        orphan_retention=None,
        conf={"spark.mine": "1"},
    ).execute(task_context)
    seen = workshop.seen()
    job = job_from_json(seen["job"])
    assert job == MaintenanceJob(
        catalog_name="iceberg_default",
        namespace="shop",
        staging_uri=job.staging_uri,
        dag_id="tests",
        run_id=job.run_id,
        slot_name=SLOT,
        tables=("public.orders",),
        compact=False,
        compact_options={"min-input-files": "2"},
        keep_snapshots=3,
        snapshot_retention_seconds=3600,
        orphan_retention_seconds=None,
    )
    assert "spark.mine=1" in seen["arguments"]
    assert result == {
        "schema_version": 1,
        "slot_name": SLOT,
        "tables": {"shop.orders": {"files_replaced": 5}, "shop.idle": {}},
        "busy": ["shop.orders"],
    }
    assert re.fullmatch(r"Maintained 2 tables of shop in \d+\.\d s\.", caplog.messages[-1])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"slot_name": ""}, "slot_name"),
        ({"namespace": ""}, "namespace"),
        ({"snapshot_retention": timedelta(seconds=-1)}, "snapshot_retention"),
        ({"orphan_retention": timedelta(hours=1)}, "orphan_retention"),
        ({"keep_snapshots": 0}, "keep_snapshots"),
        ({"compact": "perhaps"}, "compact"),
        ({"compact_options": {"min-input-files": 2}}, "compact_options"),
    ],
)
def test_what_cannot_work_fails_at_once_and_starts_nothing(
    workshop: Workshop, task_context: Any, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(AirflowFailException, match=message):
        operator(workshop, **changed).execute(task_context)
    assert not workshop.was_started


def test_a_job_that_left_no_word_did_not_succeed(workshop: Workshop, task_context: Any) -> None:
    workshop.behave(status=0, result=None)
    with pytest.raises(LakeUnavailable, match="left no result"):
        operator(workshop).execute(task_context)
