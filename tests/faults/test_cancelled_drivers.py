"""F50: a real spark-submit gets SIGTERM at a random time, as it does when the apply task is cancelled.

Only spark-submit does, which is the JVM: what it began beside itself has to end without being told.
``PGOUTPUT_DRIVER_CANCELLATIONS=20`` cancels as many, ``PGOUTPUT_CANCELLATIONS_SEED`` at other times. What is
not here: a stage run (``test_cancelled_runs.py``), SIGKILL at named points (``test_apply_crashes.py``), and
what the operator does beside sending the signal (``tests/airflow/test_apply_operator.py``).
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

import pytest

from tests.faults.processes import CancelledApply, cancelled_apply

if TYPE_CHECKING:
    from collections.abc import Callable

    from quickstart.spark import LocalLake
    from tests.faults.conftest import Subject

pytestmark = pytest.mark.submit

#: How many drivers are cancelled.
CANCELLATIONS = int(os.environ.get("PGOUTPUT_DRIVER_CANCELLATIONS", "1"))
SEED = int(os.environ.get("PGOUTPUT_CANCELLATIONS_SEED", "50"))


@pytest.mark.slow
def test_f50_a_driver_that_is_cancelled_at_any_time_is_gone_and_repeated(
    subject: Callable[[int], Subject], local_lake: LocalLake
) -> None:
    chance = random.Random(SEED)  # noqa: S311 - a test has to repeat itself
    run = subject(SEED)
    batch = run.stage()
    began = time.monotonic()
    assert cancelled_apply(run.pipeline, batch, None, local_lake) == CancelledApply.FINISHED
    usual_seconds = time.monotonic() - began
    run.apply(batch)
    run.advance()
    cancelled = 0
    while cancelled < CANCELLATIONS:
        run.change_each()
        batch = run.stage()
        began = time.monotonic()
        after_seconds = chance.random() * usual_seconds
        outcome = cancelled_apply(run.pipeline, batch, after_seconds, local_lake)
        where = f"seed {SEED}, driver {cancelled}, after {after_seconds:.2f} s"
        print(where, outcome.name)
        if outcome == CancelledApply.FINISHED:
            # It was faster than the others: the next one is cancelled earlier.
            usual_seconds = time.monotonic() - began
        cancelled += outcome == CancelledApply.CANCELLED
        run.judge.after_any_run()
        run.apply(batch)
        run.advance()
        assert not run.left_branches(), where
    run.work()
    run.finish()
