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

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.request import AFTER_STAGE
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from tests.capture.masked_torture import SECRET
from tests.chaos.in_lake import Way
from tests.conformance.compare import connect
from tests.faults.crash_points import ELSEWHERE, crash_points
from tests.faults.processes import advance_in_process, apply_attached, stage_in_process
from tests.faults.workload import LOG_TABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.conftest import Subject


SEED = int(os.environ.get("PGOUTPUT_SWEEP_SEED", "1"))
#: Crash points of each room that a kind of run is killed at; 0: all.
MOST = int(os.environ.get("PGOUTPUT_SWEEP_POINTS", "1"))
#: A point that a run passes more often than this is passed in a loop that knows no end.
_MOST_TIMES = 12

#: Passed by the very first run only.
FIRST_POINT = "stage.after_slot"
CAPTURE_POINTS = [each for each in crash_points("capture") if each not in {FIRST_POINT, *ELSEWHERE}]
APPLY_POINTS = [each for each in crash_points("apply") if not each.startswith("replay.")]
#: By kind: options of a pipeline's stage tasks, and of its plan.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "merge-on-read": ({}, {}),
    "copy-on-write": ({"transport": "walsender"}, {"write_mode": "copy-on-write"}),
    # Not the change log: what a copy holds of it comes in no other entry, and the judge counts those.
    "copies": ({}, {}),
    "messages": ({"options": StreamOptions(messages=True)}, {"format_version": 3}),
    "after stage": ({"advance": AFTER_STAGE}, {}),
    "small batches": ({"max_changes": 3}, {"parallel_tables": 1}),
    "prepared": ({"options": StreamOptions(two_phase=True, binary=True)}, {}),
    "copies, after stage": ({"advance": AFTER_STAGE}, {"write_mode": "copy-on-write"}),
    "small batches, after stage": (
        {"advance": AFTER_STAGE, "max_changes": 3, "transport": "walsender"},
        {"format_version": 3},
    ),
    "prepared, after stage": (
        {
            "advance": AFTER_STAGE,
            "transport": "walsender",
            "options": StreamOptions(two_phase=True, messages=True),
        },
        {"write_mode": "copy-on-write"},
    ),
    "read again": ({}, {}),
    "left out": ({}, {}),
    "on the way": ({}, {}),
}
#: What happens to the rows of each table in the kind of that name.
_WAYS = {
    "account": Way({"name": "hash", "large": "truncate(2)"}, SECRET),
    "bag": Way({"y": "hash"}, SECRET, "x <> 2"),
    "journal": Way({"v": "hash"}, SECRET),
}
#: Kinds that every test run kills at some points of.
ALWAYS = ("merge-on-read", "after stage")

_passed: dict[str, set[str]] = {}


@dataclass
class Sweep:
    """The kills of one kind of run."""

    run: Subject
    #: Lets the source work; returns options of the stage runs that are killed, and of the ones behind them.
    prepare: Callable[[Sweep], dict[str, Any]]
    #: Crash point and the time that it was passed, of each kill.
    kills: list[str] = field(default_factory=list)
    #: Whether a transaction of the source is prepared.
    _prepared: bool = False

    def work(self) -> None:
        """Let the source change rows, write a message and, with two-phase commit, prepare a transaction."""
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
        pipeline = self.run.pipeline
        options = self.prepare(self)
        moves = pipeline.capture_options["advance"] == AFTER_STAGE
        if moves or not point.startswith("advance."):
            # A sealed batch is found by the next run; the last run here goes to its end.
            self.until_it_ends(
                point, lambda crash_at: stage_in_process(pipeline, crash_at, **options)
            )
        self.run.apply(self.run.stage(**options))
        if point.startswith("advance."):
            self.until_it_ends(point, lambda crash_at: advance_in_process(pipeline, crash_at))
        else:
            self.run.advance()

    def kill_apply(self, point: str) -> None:
        batch = self.run.stage(**self.prepare(self))
        self.until_it_ends(
            point, lambda crash_at: apply_attached(self.run.pipeline, batch, crash_at)
        )
        self.run.applied.append(batch)
        self.run.advance()


def work(sweep: Sweep) -> dict[str, Any]:
    sweep.work()
    return {}


def copy(sweep: Sweep) -> dict[str, Any]:
    sweep.work()
    return {"copy_tables": ("public.account", "public.bag")}


def read_again(sweep: Sweep) -> dict[str, Any]:
    """A batch is applied and the slot not moved: it is read from the end of the one before."""
    checkpoint = sweep.run.pipeline.checkpoint()
    assert checkpoint is not None
    sweep.work()
    sweep.run.apply(sweep.run.stage())
    sweep.work()
    return {"start_lsn": checkpoint.end_lsn}


def leave_out(sweep: Sweep) -> dict[str, Any]:
    """A row comes and goes in two transactions, which are left out."""
    sweep.work()
    run = sweep.run
    with connect(run.pipeline.conninfo) as session:
        session.execute("INSERT INTO journal VALUES (900, 'left out')")
        session.execute("DELETE FROM journal WHERE id = 900")
    (journal,) = [each for each in run.stage().manifest.tables if each.table_name == LOG_TABLE]
    files = [str(run.pipeline.staging / f.path) for v in journal.versions for f in v.files]
    staged = run.pipeline.spark.read.parquet(*files)
    # The newest two transactions.
    newest = staged.select("commit_lsn").distinct().orderBy("commit_lsn", ascending=False).take(2)
    return {"skip_lsns": [Lsn(row.commit_lsn) for row in newest]}


def put_on_the_way(run: Subject) -> None:
    """Mask columns and filter rows, from the first run on."""
    run.pipeline.capture_options.update(
        columns={
            f"public.{table}.{column}": mask
            for table, way in _WAYS.items()
            for column, mask in way.masks.items()
        },
        filters={f"public.{table}": way.condition for table, way in _WAYS.items() if way.condition},
        mask_secret=SECRET.encode(),
    )
    run.judge.ways.update(_WAYS)
    # No state that was remembered before may be in the lake.
    run.judge.states.clear()
    run.judge.remember_source()


#: By kind, where its runs need more than work.
PREPARATIONS: dict[str, Callable[[Sweep], dict[str, Any]]] = {
    "copies": copy,
    "copies, after stage": copy,
    "read again": read_again,
    "left out": leave_out,
}


@pytest.mark.slow
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
    if kind == "on the way":
        put_on_the_way(run)
    # Its applies borrow this JVM, which ends what the other tables' threads began.
    run.judge.writers_live_on = True
    # From its first run on; the judge has to know when the slot moves.
    run.pipeline.capture_options.update(stage_options)
    sweep = Sweep(run, PREPARATIONS.get(kind, work))
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
