"""The longest wait between two runs, read from a DAG's schedule."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
import pytest
from airflow.sdk import DAG, Asset, CronTriggerTimetable, DeltaTriggerTimetable
from airflow.timetables import interval, trigger
from dateutil.relativedelta import relativedelta

from airflow_provider_pgoutput.tasks.schedule import longest_seconds_between_runs


@pytest.mark.parametrize(
    ("schedule", "seconds"),
    [
        (timedelta(minutes=5), 300),
        ("*/5 * * * *", 300),
        ("@hourly", 3600),
        # From Friday evening to Monday morning.
        ("0 8-18 * * 1-5", (2 * 24 + 14) * 3600),
        # The last Sunday of March and that of October change the clock in between.
        (CronTriggerTimetable("30 5 * * 1", timezone="Europe/Berlin"), (7 * 24 + 1) * 3600),
        (DeltaTriggerTimetable(timedelta(hours=2)), 7200),
        # A DAG of Airflow 3.1 has the scheduler's timetables.
        (trigger.CronTriggerTimetable("@hourly", timezone="UTC"), 3600),
        (trigger.CronTriggerTimetable("30 5 * * 1", timezone="Europe/Berlin"), (7 * 24 + 1) * 3600),
        (trigger.CronTriggerTimetable("5 * * * *", timezone=pendulum.timezone(3600)), 3600),
        (interval.CronDataIntervalTimetable("*/5 * * * *", timezone="UTC"), 300),
        (trigger.DeltaTriggerTimetable(timedelta(hours=2)), 7200),
        (interval.DeltaDataIntervalTimetable(timedelta(minutes=5)), 300),
        (interval.DeltaDataIntervalTimetable(relativedelta(months=1)), None),
        (None, None),
        ("@continuous", None),
        ([Asset("shop")], None),
    ],
)
def test_the_longest_wait_of_a_schedule(schedule: Any, seconds: int | None) -> None:
    dag = DAG("any", schedule=schedule, max_active_runs=1)
    assert longest_seconds_between_runs(dag) == seconds


def test_an_operator_without_a_dag_has_no_schedule() -> None:
    assert longest_seconds_between_runs(None) is None
