"""F01 to F05 and F19: capture killed between any two of its durable steps, then run again.

The crash points are found in the source. Each is tried in the first run, which creates the slot and
copies the tables, in a later run, and in the task that advances the slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.crash_points import ELSEWHERE, crash_points
from tests.faults.processes import advance_in_process, stage_in_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.conftest import Subject


POINTS = [each for each in crash_points("capture") if each not in ELSEWHERE]
#: F01 to F05 and F19; copies have ``test_copy_crashes.py``, and ``make test ALL=1`` kills at the others, too.
ALWAYS = {
    "stage.before_read",
    "stage.after_chunk",
    "stage.after_files",
    "stage.after_manifest",
    "advance.before_move",
}


def test_there_are_crash_points() -> None:
    assert set(POINTS) > ALWAYS


@pytest.mark.parametrize(
    "point",
    [
        each if each in ALWAYS else pytest.param(each, marks=pytest.mark.exhaustive)
        for each in POINTS
    ],
)
def test_killed_capture_is_repeated_without_loss(
    point: str, subject: Callable[[int], Subject]
) -> None:
    run = subject(POINTS.index(point))
    killed = [stage_in_process(run.pipeline, point)]
    run.judge.after_any_run()
    run.catch_up()

    run.work()
    killed.append(stage_in_process(run.pipeline, point))
    run.judge.after_any_run()
    batch = run.stage()
    run.apply(batch)
    killed.append(advance_in_process(run.pipeline, point))
    run.judge.after_any_run()

    run.work()
    killed.append(stage_in_process(run.pipeline, f"{point}:2", transport="walsender"))
    run.judge.after_any_run()
    run.finish()
    assert any(killed), f"no task reaches {point}"
