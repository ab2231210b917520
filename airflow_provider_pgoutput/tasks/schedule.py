"""The longest time between two runs of a DAG, as far as its schedule tells it.

Capture compares it with ``idle_replication_slot_timeout``, after which the server gives up an unused slot.
"""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.airflow_versions import schedule_of

if TYPE_CHECKING:
    from datetime import datetime

#: How many runs are looked at. With an hourly schedule that is more than a week, so it includes a weekend.
_RUNS = 200


def longest_seconds_between_runs(dag: Any) -> int | None:
    """The longest time between two runs, in seconds.

    None: people or assets start the DAG, or its kind of schedule is not known here.

    :param dag: an Airflow DAG, or None.
    """
    schedule = schedule_of(getattr(dag, "timetable", None))
    if schedule is None:
        return None
    if isinstance(schedule, timedelta):
        return int(schedule.total_seconds())
    # Airflow computes the times. Only this kind of schedule needs it, so the import is here.
    from airflow.sdk import timezone
    from airflow.timetables.base import TimeRestriction
    from airflow.timetables.trigger import CronTriggerTimetable

    cron = CronTriggerTimetable(schedule.expression, timezone=schedule.timezone)
    since = TimeRestriction(timezone.parse("2026-01-01"), latest=None, catchup=True)
    runs: list[datetime] = []
    interval = None
    for _ in range(_RUNS):
        run = cron.next_dagrun_info(last_automated_data_interval=interval, restriction=since)
        assert run is not None, "a schedule without an end has a next run"
        interval = run.data_interval
        runs.append(run.run_after)
    longest = max(later - earlier for earlier, later in itertools.pairwise(runs))
    return int(longest.total_seconds())
