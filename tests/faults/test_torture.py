"""Random work, small batches and random kills, all from a seed: the invariants hold throughout.

After each batch a verification (``proof/``) must agree with the judge.

``PGOUTPUT_TORTURE_SEEDS=5`` repeats one run; without it one fixed seed runs, and two more
with ``ALL=1``.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.crash_points import crash_points
from tests.faults.processes import advance_in_process, apply_in_process, stage_in_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from quickstart.spark import LocalLake
    from tests.faults.conftest import Subject

pytestmark = pytest.mark.submit

#: Other seeds, separated by commas: ``PGOUTPUT_TORTURE_SEEDS=7,8,9 pytest ...``.
_GIVEN = os.environ.get("PGOUTPUT_TORTURE_SEEDS")
SEEDS: list[Any] = (
    [int(seed) for seed in _GIVEN.split(",")]
    if _GIVEN
    else [1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (2, 3))]
)
_ROUNDS = 3


@pytest.mark.further
@pytest.mark.parametrize("seed", SEEDS)
def test_random_work_and_random_kills(
    seed: int, subject: Callable[[int], Subject], local_lake: LocalLake
) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)  # noqa: S311 - a test has to repeat itself
    run = subject(seed)
    capture, apply = crash_points("capture"), crash_points("apply")
    kill_apply_in_round = chance.randrange(_ROUNDS)
    for number in range(_ROUNDS):
        transport = chance.choice(("sql", "walsender"))
        limits: dict[str, Any] = {
            "max_changes": chance.choice((1, 5, 20, None)),
            "transport": transport,
        }
        stage_in_process(run.pipeline, chance.choice(capture), **limits)
        run.judge.after_any_run()
        batch = run.stage(**limits)
        if number == kill_apply_in_round:
            apply_in_process(run.pipeline, batch, chance.choice(apply), local_lake)
            run.judge.after_any_run()
        run.apply(batch)
        run.prove()
        if chance.random() < 0.5:
            advance_in_process(
                run.pipeline, chance.choice(("advance.before_move", "advance.after_move"))
            )
            run.judge.after_any_run()
        run.work(chance.randint(3, 8))
    run.finish()
