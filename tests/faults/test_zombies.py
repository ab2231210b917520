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

    from quickstart.spark import LocalLake
    from tests.faults.conftest import Subject
    from tests.faults.processes import StoppedApply


#: The last line of a driver that is refused while it prepares.
_REFUSED = "airflow_provider_pgoutput.errors.PublishRefused: "
#: What a driver says of each table whose publishing is refused, before it finds the batch in the table.
_FENCED = "Main moved since the branch was made. "


@pytest.mark.slow
def test_f14_a_driver_that_comes_back_changes_nothing(subject: Callable[[int], Subject]) -> None:
    run = subject(14)
    run.run()
    # In the middle of writing branches, with everything prepared, and with some tables published; then how
    # many tables are left to publish.
    for point, newer, unpublished in (
        ("apply.after_delete", 1, None),
        ("apply.before_row_delta", 1, None),
        ("apply.after_row_delta", 0, None),
        ("apply.after_prepare", 0, 3),
        ("apply.between_publishes", 1, 2),
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
        assert_was_refused(zombie, printed, unpublished)
    run.work()
    run.finish()


def assert_was_refused(zombie: StoppedApply, printed: str, unpublished: int | None) -> None:
    """One that ended for any other reason shows nothing of the fence.

    :param unpublished: tables that it had prepared and not published; None: it was preparing.
    """
    status = zombie.started.returncode
    if unpublished is None:
        assert printed.splitlines()[-1].startswith(_REFUSED), printed[-4000:]
        assert "Another driver applied the batch meanwhile." in printed, printed[-4000:]
        assert status == 1, printed[-4000:]
        return
    # Each table refuses it, and then says that it has the batch: nothing is left to do.
    assert printed.count(_FENCED) == unpublished, printed[-4000:]
    assert "Traceback" not in printed, printed[-4000:]
    assert status == 0, printed[-4000:]


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
