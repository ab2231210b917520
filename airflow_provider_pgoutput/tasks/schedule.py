"""How long a slot may wait between two runs, as far as the DAG's schedule says it.

What is not here: what is done with it; capture compares it with the server's patience.
"""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

#: Runs that are looked ahead: a week of every hour, weekends among them.
_RUNS = 200


def longest_seconds_between_runs(dag: Any) -> int | None:
    """The longest wait between two runs; None: the schedule is by hand, by assets, or an unknown one.

    :param dag: an Airflow DAG, or None.
    """
    timetable = getattr(dag, "timetable", None)
    delta = getattr(timetable, "delta", None)
    if isinstance(delta, timedelta):
        return int(delta.total_seconds())
    expression = getattr(timetable, "expression", None)
    if not isinstance(expression, str):
        return None
    # Airflow's own reckoning; imported here, because only schedules of this kind need it.
    from airflow.sdk import timezone
    from airflow.timetables.base import TimeRestriction
    from airflow.timetables.trigger import CronTriggerTimetable

    cron = CronTriggerTimetable(expression, timezone=getattr(timetable, "timezone", "UTC"))
    since = TimeRestriction(timezone.parse("2026-01-01"), latest=None, catchup=True)
    runs: list[datetime] = []
    interval = None
    for _ in range(_RUNS):
        run = cron.next_dagrun_info(last_automated_data_interval=interval, restriction=since)
        assert run is not None, "nothing says that the schedule ends"
        interval = run.data_interval
        runs.append(run.run_after)
    longest = max(later - earlier for earlier, later in itertools.pairwise(runs))
    return int(longest.total_seconds())
