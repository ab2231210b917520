"""F13: an executor dies while the driver lives on, and another one hangs; tasks may run twice meanwhile.

The cluster is Spark's own of one machine (``local-cluster``): a driver, and two executors that are processes.
What is not here: a driver that dies, see ``test_apply_crashes.py``, and executors of a copy, see
``tests/airflow/test_spark_copy.py``.

Source: https://spark.apache.org/docs/latest/configuration.html#scheduling (speculation)
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.faults.processes import stopped_driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from quickstart.spark import LocalLake
    from tests.faults.conftest import Subject

pytestmark = pytest.mark.submit

_CONF = {
    "spark.master": "local-cluster[2,1,512]",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Both executors are there before the first task.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    # A task that takes longer than the others gets a twin on another executor.
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.task.duration.threshold": "500ms",
}
_HANGS_SECONDS = 3


@pytest.mark.slow
@pytest.mark.parametrize("first_dies", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_f13_an_executor_that_dies_and_one_that_hangs(
    subject: Callable[[int], Subject], local_lake: LocalLake, first_dies: bool
) -> None:
    """What was folded is on an executor when it dies; Spark makes it again from the staged files.

    Few changes are the work of one task, so one of the two has them.
    """
    run = subject(13)
    # Folded rows of one table at a time, so that what the executors hold is known.
    run.pipeline.plan_options["parallel_tables"] = 1
    run.run()
    run.work()
    run.change_each()
    batch = run.stage()
    with stopped_driver(run.pipeline, batch, "apply.after_branch", local_lake, _CONF) as driver:
        one, other = driver.executors()
        doomed, hanging = (one, other) if first_dies else (other, one)
        doomed.kill()
        hanging.send_signal(signal.SIGSTOP)
        driver.go_on()
        time.sleep(_HANGS_SECONDS)
        hanging.send_signal(signal.SIGCONT)
        printed = driver.resume()
    assert "Lost executor" in printed, printed[-4000:]
    run.judge.after_any_run()
    checkpoint = run.pipeline.checkpoint()
    assert checkpoint is not None
    assert checkpoint.end_lsn == batch.manifest.end_lsn, printed[-4000:]
    run.apply(batch)
    run.advance()
    assert not run.left_branches()
    run.work()
    run.finish()
