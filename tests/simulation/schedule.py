"""Schedules out of a seed: who goes on, who is killed, what the world does meanwhile.

Each seed has its own temper: how often there are kills, zombies, faults, other writers. What is not here:
what the actions do (``run.py``).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.answers import QUARANTINE, SET_ASIDE
from tests.simulation.source import ACCOUNTS, EVENTS, JOURNAL, RIGHT, TABLES, VALUE
from tests.simulation.world import FAULTS

if TYPE_CHECKING:
    from tests.simulation.run import Action, Run

_TASKS = ("stage", "apply", "advance")
_TABLES = ("accounts", "journal", "events")

#: Trouble of one table: when it is staged, when it is copied, when apply looks at it, when rows are written.
TROUBLES = (VALUE, RIGHT, "mode", "row")

#: Steps that a process takes before somebody else may.
_STRIDES = (1, 1, 2, 3, 5, 8, 20, 100, 300)


class Chance:
    """Chooses the next action of a run, from the seed and from how the run stands."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a run has to repeat itself
        choice, share = self._random.choice, self._random.random
        self.length = choice((20, 40, 60, 90))
        self._kills = choice((0.0, 0.05, 0.15))
        self._faults = choice((0.0, 0.05, 0.15))
        self._zombies = choice((0.0, 0.1, 0.3))
        self._twins = choice((0.0, 0.0, 0.4))  # DAG runs that stage at the same time.
        self._writers = choice((0.0, 0.05))
        self._crashes = choice((0.0, 0.03))
        self._misrule = share() < 0.3  # Tasks out of order, runs with the batch of another.
        self._loses_slot = share() < 0.15
        self._rolls_back = share() < 0.15
        self._after_stage = choice((0.0, 0.0, 1.0, 0.5))  # Stage runs that move the slot.
        # What the tasks say about trouble of one table, and of one row, and how often there is some.
        self._sets_aside = choice((0.0, 1.0, 1.0, 0.8))
        self._quarantines = choice((0.0, 1.0, 0.7))
        self._troubles = choice((0.0, 0.15, 0.3)) if self._sets_aside else choice((0.0, 0.1))
        self._deletes_rows = choice((0.0, 0.4, 0.8)) if self._sets_aside else 0.0
        self._expires = share() < 0.2
        self._numbers = 0
        self._dag_runs = 0

    def next(self, run: Run) -> Action:
        """The next action."""
        chance, draw = self._random, self._random.random()
        living = [number for number, each in run.processes.items() if each.lives]
        if draw < 0.25:
            return (chance.random() < self._troubles and self._trouble(run)) or self._of_source()
        if draw < 0.25 + self._writers:
            return chance.choice(("compact", "expire")), chance.choice(_TABLES)
        if draw < 0.33 and (disaster := self._disaster()):
            return disaster
        if living and draw < 0.42 and (harm := self._harm(draw < 0.36, living)):
            return harm
        starts = not living or chance.random() < max(self._zombies, self._twins / 2)
        if starts and len(living) < 4:
            return self._start(run)
        return "go", chance.choice(living), chance.choice(_STRIDES)

    def _harm(self, may_kill: bool, living: list[int]) -> Action | None:
        chance = self._random
        if may_kill and chance.random() < 4 * self._kills:
            return "kill", chance.choice(living)
        if chance.random() < 4 * self._faults:
            return "fault", chance.choice(living), chance.choice(FAULTS)
        return None

    def _trouble(self, run: Run) -> Action:
        """Trouble of one table or of one row, or its end."""
        chance, world = self._random, run.world
        accounts = world.catalog.tables.get(world.targets["accounts"])
        held = sorted(accounts.main.rows or ()) if accounts and accounts.main else []
        if held and chance.random() < self._deletes_rows:
            return "delete_row", chance.choice(held)
        table = chance.choice(_TABLES)
        if chance.random() < 0.5:
            return "mend", table
        return "trouble", table, chance.choice(TROUBLES)

    def _disaster(self) -> Action | None:
        chance = self._random
        if self._loses_slot and chance.random() < 0.2:
            self._loses_slot = False
            return "lose_slot", chance.choice(("invalidated", "dropped", "made again"))
        if self._rolls_back and chance.random() < 0.3:
            return chance.choice(("roll_back", "bring_back")), chance.choice(_TABLES)
        return None

    def _of_source(self) -> Action:
        chance, draw = self._random, self._random.random()
        if draw < self._crashes:
            return ("crash",)
        if draw < 0.1:
            return ("checkpoint",)
        if draw < 0.2:
            return "noise", 8 * chance.randint(1, 50)
        if draw < 0.22:
            return ("publish",)
        # An update that leaves values out shows that a row is missing.
        operations = "IUPPPD" if self._deletes_rows else "IIUPD"
        changes = tuple(
            (
                chance.choice((ACCOUNTS, JOURNAL, EVENTS)),
                chance.choice("IIIUUPPDDT" if chance.random() < 0.3 else operations),
                chance.randint(1, 6),
                chance.randint(1, 10**6),
            )
            for _ in range(chance.randint(0, 4))
        )
        return "commit", changes

    def _start(self, run: Run) -> Action:
        chance = self._random
        self._numbers += 1
        number = self._numbers
        if chance.random() < 0.05:
            expired = self._expires and chance.random() < 0.5
            return "start", number, "prune", 0, (("expired", expired),)
        if self._troubles and chance.random() < 0.08:
            return "start", number, "bring back", 0, self._of_rows()
        again = self._dag_runs and chance.random() < 0.2
        # Most of the time the newest run goes on; sometimes an old one is cleared.
        dag_run = chance.randint(1, self._dag_runs) if again else self._dag_runs
        place = run.succeeded[dag_run]
        twin = chance.random() < self._twins
        if dag_run == 0 or twin or (not again and place >= len(_TASKS)) or chance.random() < 0.1:
            self._dag_runs += 1
            dag_run, place = self._dag_runs, 0
        task: Any = _TASKS[min(place, len(_TASKS) - 1)]
        if again or self._misrule:
            task = chance.choice(_TASKS)
        return "start", number, task, dag_run, self._options(run, task)

    def _options(self, run: Run, task: str) -> Action:
        """Options of a task."""
        chance = self._random
        if task == "advance":
            return ()
        options: Action = ()
        if chance.random() < self._sets_aside:
            options = (("on_table_refused", SET_ASIDE),)
        if task == "apply":
            return (*options, *self._of_rows())
        if chance.random() < 0.5:
            options = (*options, ("max_changes", chance.randint(1, 6)))
        if chance.random() < self._after_stage:
            options = (*options, ("advance", "after_stage"))
        if self._troubles and chance.random() < 0.15:
            published = [TABLES[oid][0] for oid in run.world.source.published]
            options = (*options, ("copy_tables", (f"public.{chance.choice(published)}",)))
        return options

    def _of_rows(self) -> Action:
        """What is done about a row that cannot be written."""
        noted = self._random.random() < self._quarantines
        return (("on_row_refused", QUARANTINE),) if noted else ()
