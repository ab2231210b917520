"""Runs seeds; of a run that breaks an invariant it finds a short one that breaks it, too.

What is not here: one run (``run.py``), and how its schedule is chosen (``schedule.py``).
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput import crash_points
from tests.simulation.judge import Violation
from tests.simulation.run import Run
from tests.simulation.schedule import Chance

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.simulation.run import Action

#: Attempts to leave something out of a schedule.
_MOST_TRIES = 400


@dataclass(frozen=True)
class Failure:
    """A seed that breaks an invariant, made small."""

    seed: int
    what: str
    schedule: tuple[Action, ...]
    steps: tuple[str, ...]

    def __str__(self) -> str:
        actions = "\n".join(f"  {each}" for each in self.schedule)
        steps = "\n".join(f"  {each}" for each in self.steps)
        return f"seed {self.seed}: {self.what}\nschedule:\n{actions}\nhistory:\n{steps}"


def run_seed(seed: int) -> tuple[Counter[str], Failure | None]:
    """Run one seed: what happened how often, and the violation if there was one."""
    chance = Chance(seed)
    with _running() as run:
        try:
            with _named():
                for _ in range(chance.length):
                    run.act(chance.next(run))
                run.finish()
        except Violation as violation:
            chosen = [each for each in run.done if len(each) < 2 or not _is_of_the_end(each)]
            return run.counts, _small(seed, chosen, violation)
        return run.counts, None


def run_seeds(seeds: Iterable[int]) -> tuple[Counter[str], list[Failure]]:
    """Run many; stops at the third failure."""
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    for seed in seeds:
        found, failure = run_seed(seed)
        counts += found
        counts["seeds"] += 1
        if failure is not None:
            failures.append(failure)
            if len(failures) == 3:
                break
    return counts, failures


def _is_of_the_end(action: Action) -> bool:
    return isinstance(action[1], int) and action[0] in {"start", "go"} and action[1] > 1000


def follow(schedule: Sequence[Action]) -> tuple[Violation | None, list[str]]:
    """Follow a schedule: what it violates, and all steps that were done."""
    with _running() as run:
        violation = None
        try:
            with _named():
                for action in schedule:
                    run.act(action)
                run.finish()
        except Violation as found:
            violation = found
        return violation, [f"{name}: {what}" for name, what in run.world.scheduler.steps]


def _small(seed: int, schedule: Sequence[Action], violation: Violation) -> Failure:
    """Leave out what the violation of the same invariant does not need."""
    kind, tries = str(violation)[:2], 0
    kept = list(schedule)
    size = max(1, len(kept) // 2)
    while tries < _MOST_TRIES:
        start, shorter = 0, False
        while start < len(kept) and tries < _MOST_TRIES:
            tries += 1
            without = kept[:start] + kept[start + size :]
            found, _ = follow(without)
            if found is not None and str(found)[:2] == kind:
                kept, shorter = without, True
            else:
                start += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    found, steps = follow(kept)
    return Failure(seed, str(found or violation), tuple(kept), tuple(steps))


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Whatever else goes wrong is a violation, too: it needs its seed and its history as much."""
    try:
        yield
    except Violation:
        raise
    except Exception as error:
        raise Violation(f"XX: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _running() -> Iterator[Run]:
    run = Run()
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with crash_points.watched(run.world.step):
            yield run
            run.close()
    finally:
        logging.disable(disabled)
