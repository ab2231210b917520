"""F49: kill -9 at every crash point, at every time that a run passes it, in several kinds of runs.

``make torture FAULTS=1 SEED=1`` kills at all of them and says at how many; a test run at a few of each kind,
drawn from the seed. Killed is the task's Python process: with ``test_apply_crashes.py``, which kills whole
drivers, both halves of a driver die.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.capture.request import AFTER_STAGE
from airflow_provider_pgoutput.capture.source.plugin_options import StreamOptions
from tests.conformance.compare import connect
from tests.faults.crash_points import ELSEWHERE, crash_points
from tests.faults.processes import advance_in_process, apply_attached, stage_in_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.conftest import Subject

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

SEED = int(os.environ.get("PGOUTPUT_SWEEP_SEED", "1"))
#: Crash points of each room that a kind of run is killed at; 0: all.
MOST = int(os.environ.get("PGOUTPUT_SWEEP_POINTS", "1"))
#: A point that a run passes more often than this is passed in a loop that knows no end.
_MOST_TIMES = 12

#: Passed by the very first run only.
FIRST_POINT = "stage.after_slot"
CAPTURE_POINTS = [each for each in crash_points("capture") if each not in {FIRST_POINT, *ELSEWHERE}]
APPLY_POINTS = [each for each in crash_points("apply") if not each.startswith("replay.")]
#: By kind: options of the stage task, and of the plan.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "merge-on-read": ({}, {}),
    "copy-on-write": ({"transport": "walsender"}, {"write_mode": "copy-on-write"}),
    # Not the change log: what a copy holds of it comes in no other entry, and the judge counts those.
    "copies": ({"copy_tables": ("public.account", "public.bag")}, {}),
    "messages": ({"options": StreamOptions(messages=True)}, {"format_version": 2}),
    "after stage": ({"advance": AFTER_STAGE}, {}),
    "small batches": ({"max_changes": 3}, {"parallel_tables": 1}),
    "prepared": ({"options": StreamOptions(two_phase=True, binary=True)}, {}),
    "copies, after stage": (
        {"advance": AFTER_STAGE, "copy_tables": ("public.account", "public.bag")},
        {"write_mode": "copy-on-write"},
    ),
    "small batches, after stage": (
        {"advance": AFTER_STAGE, "max_changes": 3, "transport": "walsender"},
        {"format_version": 2},
    ),
    "prepared, after stage": (
        {
            "advance": AFTER_STAGE,
            "transport": "walsender",
            "options": StreamOptions(two_phase=True, messages=True),
        },
        {"write_mode": "copy-on-write"},
    ),
}
#: Kinds that every test run kills at some points of.
ALWAYS = ("merge-on-read", "after stage")

_passed: dict[str, set[str]] = {}


@dataclass
class Sweep:
    """The kills of one kind of run."""

    run: Subject
    #: What only those stage runs have that are killed, and the ones behind them.
    stage_options: dict[str, Any]
    #: Crash point and the time that it was passed, of each kill.
    kills: list[str] = field(default_factory=list)
    #: Whether a transaction of the source is prepared.
    _prepared: bool = False

    def work(self) -> None:
        self.end_prepared()
        self.run.work(3)
        options = self.run.pipeline.capture_options.get("options", StreamOptions())
        with connect(self.run.pipeline.conninfo) as session:
            session.execute("SELECT pg_logical_emit_message(true, 'sweep', 'x')")
            if options.two_phase:
                session.execute("BEGIN")
                session.execute("INSERT INTO bag VALUES (100, 'prepared')")
                session.execute(f"PREPARE TRANSACTION '{self._gid}'")
                self._prepared = True

    def end_prepared(self) -> None:
        """Let what was prepared before the batches of before be committed after them."""
        if self._prepared:
            with connect(self.run.pipeline.conninfo) as session:
                session.execute(f"COMMIT PREPARED '{self._gid}'")
            self.run.judge.remember_source()
        self._prepared = False

    @property
    def _gid(self) -> str:
        return f"sweep of {self.run.pipeline.slot_name}"

    def until_it_ends(self, point: str, task: Callable[[str], bool]) -> None:
        """Run a task until it is not killed any more, killed once at each time that it passes the point."""
        for times in itertools.count(1):
            assert times <= _MOST_TIMES, f"{point} is passed more than {_MOST_TIMES} times"
            crash_at = f"{point}:{times}"
            killed = task(crash_at)
            self.run.judge.after_any_run()
            if not killed:
                return
            self.kills.append(crash_at)

    def kill_at(self, kind: str, points: list[str], kill: Callable[[str], None]) -> None:
        """Kill at all points, or at the first few that this kind of run passes, in an order of chance."""
        chance = random.Random(f"{SEED} {kind}")  # noqa: S311 - a test has to repeat itself
        passed = 0
        for point in chance.sample(points, len(points)):
            before = len(self.kills)
            kill(point)
            passed += len(self.kills) > before
            if MOST and passed == MOST:
                return

    def kill_first_stage(self) -> None:
        """The task that makes the slot is killed when it has, and run again."""
        pipeline = self.run.pipeline
        self.until_it_ends(FIRST_POINT, lambda crash_at: stage_in_process(pipeline, crash_at))

    def kill_capture(self, point: str) -> None:
        self.work()
        pipeline = self.run.pipeline
        moves = pipeline.capture_options["advance"] == AFTER_STAGE
        if moves or not point.startswith("advance."):
            # A sealed batch is found by the next run; the last run here goes to its end.
            self.until_it_ends(
                point, lambda crash_at: stage_in_process(pipeline, crash_at, **self.stage_options)
            )
        self.run.apply(self.run.stage(**self.stage_options))
        if point.startswith("advance."):
            self.until_it_ends(point, lambda crash_at: advance_in_process(pipeline, crash_at))

    def kill_apply(self, point: str) -> None:
        self.work()
        batch = self.run.stage(**self.stage_options)
        self.until_it_ends(
            point, lambda crash_at: apply_attached(self.run.pipeline, batch, crash_at)
        )
        self.run.applied.append(batch)
        self.run.advance()


@pytest.mark.parametrize(
    "kind",
    [
        each if each in ALWAYS else pytest.param(each, marks=pytest.mark.exhaustive)
        for each in KINDS
    ],
)
def test_f49_killed_at_every_point_nothing_is_lost_or_doubled(
    kind: str, subject: Callable[..., Subject], capsys: pytest.CaptureFixture[str]
) -> None:
    stage_options, plan_options = KINDS[kind]
    run = subject(SEED * 100 + list(KINDS).index(kind))
    run.pipeline.plan_options.update(plan_options)
    # Its applies borrow this JVM, which ends what the other tables' threads began.
    run.judge.writers_live_on = True
    copied = {name: value for name, value in stage_options.items() if name == "copy_tables"}
    # All else is of a pipeline, from its first run on; the judge has to know when the slot moves.
    run.pipeline.capture_options.update(
        {name: value for name, value in stage_options.items() if name not in copied}
    )
    sweep = Sweep(run, copied)
    if MOST == 0:
        sweep.kill_first_stage()
    run.run()
    sweep.kill_at(kind, CAPTURE_POINTS, sweep.kill_capture)
    sweep.kill_at(kind, APPLY_POINTS, sweep.kill_apply)
    sweep.end_prepared()
    run.finish()
    with capsys.disabled():
        print(f"\n{kind}, seed {SEED}: {len(sweep.kills)} kills: {', '.join(sweep.kills)}")
    assert sweep.kills
    _passed[kind] = {each.partition(":")[0] for each in sweep.kills}


def test_every_point_was_passed_by_some_kind_of_run() -> None:
    passed = set().union(*_passed.values())
    if MOST == 0 and set(_passed) == set(KINDS):
        assert passed == {*CAPTURE_POINTS, FIRST_POINT, *APPLY_POINTS}
    else:
        assert passed <= {*CAPTURE_POINTS, FIRST_POINT, *APPLY_POINTS}
