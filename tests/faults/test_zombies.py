"""F14: a Spark driver lives on without Airflow's knowledge, while its retry and newer batches go through.

It is stopped with SIGSTOP between two durable steps and continued when the lake has moved on. What is not
here: a driver that is killed, see ``test_apply_crashes.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.processes import stopped_attached, stopped_driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.quickstart.spark import LocalLake
    from tests.faults.conftest import Subject

pytestmark = [pytest.mark.postgres, pytest.mark.spark]


def test_f14_a_driver_that_comes_back_changes_nothing(subject: Callable[[int], Subject]) -> None:
    run = subject(14)
    run.run()
    # In the middle of writing branches, with everything prepared, and with some tables published.
    for point, newer in (
        ("apply.after_delete", 1),
        ("apply.after_prepare", 0),
        ("apply.between_publishes", 1),
    ):
        run.change_each()
        batch = run.stage()
        with stopped_attached(run.pipeline, batch, point) as zombie:
            assert run.left_branches()
            run.apply(batch)
            run.advance()
            for _ in range(newer):
                run.work()
                run.run()
            before = run.table_snapshots()
            printed = zombie.resume()
        assert run.table_snapshots() == before, printed[-4000:]
        assert not run.left_branches(), printed[-4000:]
        run.judge.after_any_run()
    run.work()
    run.finish()


@pytest.mark.submit
def test_f14_a_driver_ends_when_its_worker_dies(
    subject: Callable[[int], Subject], local_lake: LocalLake
) -> None:
    """What it did until then is found; what it left is removed."""
    run = subject(141)
    first = run.stage()
    with stopped_driver(run.pipeline, first, "apply.after_prepare", local_lake) as driver:
        driver.started.kill()
        printed = driver.resume()
        assert "The process that started this driver is gone" in printed, printed[-4000:]
    run.judge.after_any_run()
    run.apply(first)
    run.advance()
    assert not run.left_branches()
    run.work()
    run.finish()
