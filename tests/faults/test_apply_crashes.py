"""F10 to F12: the Spark driver killed between any two of its durable steps, then run again.

The crash points are found in the source. Each kills the driver of a real spark-submit, once in the run
that creates the tables or in a later one, and at the second table where several pass the point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.crash_points import crash_points
from tests.faults.processes import apply_in_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.quickstart.spark import LocalLake
    from tests.faults.conftest import Subject

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.submit]

POINTS = crash_points("apply")


def test_there_are_crash_points() -> None:
    assert len(POINTS) >= 3


@pytest.mark.parametrize("point", POINTS)
def test_killed_apply_is_repeated_without_loss(
    point: str, subject: Callable[[int], Subject], local_lake: LocalLake
) -> None:
    run = subject(100 + POINTS.index(point))
    first = run.stage()
    killed = [apply_in_process(run.pipeline, first, point, local_lake)]
    run.judge.after_any_run()
    run.apply(first)
    run.advance()

    run.work()
    batch = run.stage()
    killed.append(apply_in_process(run.pipeline, batch, f"{point}:2", local_lake))
    run.judge.after_any_run()
    run.apply(batch)
    run.advance()

    run.work()
    run.finish()
    assert any(killed), f"apply does not reach {point}"
