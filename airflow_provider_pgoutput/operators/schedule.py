"""How long a slot may wait between two runs, as far as the DAG's schedule says it.

What is not here: what is done with it; capture compares it with the server's patience.
"""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any

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
    # Airflow's own; imported here, because only schedules of this kind need it.
    from croniter import croniter  # type: ignore[import-untyped]

    times = croniter(expression, datetime(2026, 1, 1))
    runs = [times.get_next(float) for _ in range(_RUNS)]
    return int(max(later - earlier for earlier, later in itertools.pairwise(runs)))
