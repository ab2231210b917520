"""One run: a schedule made from a seed, followed step by step, and made small when an invariant breaks.

A schedule is a list of actions; following it again gives the same run. An action that makes no sense any
more, because one before it was left out, does nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.answers import QUARANTINE, SET_ASIDE
from airflow_provider_pgoutput.batch.checkpoint import PROPERTY_MODE
from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG, UPSERT
from airflow_provider_pgoutput.errors import RetryableError, SlotAheadOfCheckpoint
from tests.simulation.iceberg import MAIN, ManageSnapshots, Transaction
from tests.simulation.judge import Judge, Violation, reached
from tests.simulation.quarantine import entries
from tests.simulation.scheduler import Process
from tests.simulation.source import ACCOUNTS, EVENTS, RIGHT, TABLES, VALUE
from tests.simulation.spark import LACKS_A_ROW
from tests.simulation.world import NAMESPACE, World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider_pgoutput.batch.set_aside import SetAside

Action = tuple[Any, ...]

#: No task has as many steps; one that has goes on for ever.
_MOST_STEPS = 2000
_TASKS = ("stage", "apply", "advance")
#: OIDs by name.
OIDS = {name: oid for oid, (name, _) in TABLES.items()}
#: The runs in which the pipeline catches up at the end.
_FIRST_END_RUN = 1000
_END_RUNS = 12


@dataclass
class Run:
    """A world on its way."""

    world: World = field(default_factory=World)
    done: list[Action] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.judge = Judge(self.world)
        self.processes: dict[int, Process] = {}
        #: By DAG run: what the stage task gave on, and how many of its tasks succeeded.
        self.xcoms: dict[int, Any] = {}
        self.succeeded: Counter[int] = Counter()
        self._main_before: dict[str, tuple[str, int]] = {}
        self._new_logs = 0

    def act(self, action: Action) -> None:
        """Do one action.

        :raises Violation: an invariant does not hold.
        """
        self.done.append(action)
        kind, *arguments = action
        getattr(self, f"_do_{kind}")(*arguments)
        self.judge.at_any_instant()

    # Tasks.

    def _do_start(self, number: int, task: str, dag_run: int, options: Any = None) -> None:
        world, options = self.world, dict(options or {})
        works: dict[str, Callable[[], Any]] = {
            "stage": lambda: world.stage(**options),
            "apply": lambda: world.apply(self.xcoms.get(dag_run), **options),
            "advance": lambda: world.advance(self.xcoms.get(dag_run)),
            "prune": lambda: world.prune(**options),
            "bring back": lambda: world.bring_back(**options),
        }
        process = Process(f"{task} {number} of run {dag_run}", works[task])
        self.judge.moves_after_stage |= options.get("advance") == "after_stage"
        self.judge.sets_aside |= options.get("on_table_refused") == SET_ASIDE
        self.judge.quarantines |= options.get("on_row_refused") == QUARANTINE
        self.judge.expired |= bool(options.get("expired"))
        process.task, process.dag_run = task, dag_run
        self.processes[number] = process
        self.counts[f"{task} started"] += 1

    def _do_go(self, number: int, steps: int) -> None:
        process = self.processes.get(number)
        for _ in range(steps):
            if process is None or not process.lives:
                return
            self.world.scheduler.go(process)
            self.counts["steps"] += 1
            self.judge.at_any_instant()
            if process.finished:
                self._ended(process)

    def _ended(self, process: Any) -> None:
        self.judge.after(process)
        if process.error is not None:
            self.counts[type(process.error).__name__] += 1
            return
        self.counts[f"{process.task} succeeded"] += 1
        if process.task == "apply":
            self.counts["tables set aside"] += len(self._set_aside())
            self.counts["rows in the quarantine"] += len(entries(self.world, ACCOUNTS))
        if process.task == "stage":
            self.xcoms[process.dag_run] = process.result
        place = _TASKS.index(process.task) + 1 if process.task in _TASKS else 0
        self.succeeded[process.dag_run] = max(place, self.succeeded[process.dag_run])

    def _do_kill(self, number: int) -> None:
        process = self.processes.get(number)
        if process is not None and process.lives:
            self.world.scheduler.kill(process)
            self.counts["killed"] += 1
            self.judge.tables()

    def _do_fault(self, number: int, fault: str) -> None:
        process = self.processes.get(number)
        if process is not None and process.lives:
            process.fault = fault
            self.counts[f"write {fault}"] += 1

    # The source, and whoever else does something to it.

    def _do_commit(self, changes: Any) -> None:
        self.world.source.commit(changes)
        self.counts["transactions"] += 1

    def _do_noise(self, size: int) -> None:
        self.world.source.lsn += size

    def _do_publish(self) -> None:
        self.world.source.publish(EVENTS)

    def _do_crash(self) -> None:
        self.world.source.crash()
        self.counts["server crashed"] += 1

    def _do_checkpoint(self) -> None:
        self.world.source.checkpoint()

    def _do_lose_slot(self, how: str) -> None:
        source = self.world.source
        if source.slot is None or self.judge.checkpoint() is None:
            return
        self.judge.slot_was_lost = True
        self.counts["slot lost"] += 1
        if how == "invalidated":
            source.slot.status = "lost"
        else:
            source.slot = None
            if how == "made again":
                source.make_slot()

    # Other writers of the lake.

    def _do_compact(self, table: str) -> None:
        self.world.catalog.compact(self.world.targets[table])

    def _do_expire(self, table: str) -> None:
        if table not in self.judge.rolled_back:
            self.world.catalog.expire(self.world.targets[table])

    def _do_roll_back(self, table: str) -> None:
        name = self.world.targets[table]
        found = self.world.catalog.tables.get(name)
        main = None if found is None else found.main
        if found is None or main is None or table in self.judge.rolled_back:
            return
        before = [each for each in found.ancestors(main.parent) if each.keys]
        if before:
            self._main_before[table] = name, main.id
            self.judge.rolled_back.add(table)
            self._set_main(name, before[0].id)
            self.counts["table rolled back"] += 1

    def _do_bring_back(self, table: str) -> None:
        if table in self.judge.rolled_back:
            name, before = self._main_before[table]
            found = self.world.catalog.tables[name]
            # Where it was rolled back over no batch, batches were applied since.
            if (reached(found, before) or 0) > (reached(found, found.refs[MAIN].id) or 0):
                self._set_main(name, before)
            self.judge.rolled_back.discard(table)

    def _set_main(self, name: str, snapshot_id: int) -> None:
        transaction = Transaction(self.world.catalog, name)
        ManageSnapshots(transaction, transaction.commitTransaction).setCurrentSnapshot(
            snapshot_id
        ).commit()

    # Trouble of one table, and what ends it.

    def _do_trouble(self, table: str, kind: str) -> None:
        world, oid = self.world, OIDS[table]
        if kind in {VALUE, RIGHT}:
            world.source.refused[oid] = kind
        elif kind == "mode":
            world.catalog.set_property(world.targets[table], PROPERTY_MODE, "another")
        else:
            world.catalog.set_property(world.targets[table], LACKS_A_ROW, "yes")
        self.counts[f"trouble: {kind}"] += 1

    def _do_mend(self, table: str) -> None:
        world, target = self.world, self.world.targets[table]
        world.source.refused.pop(OIDS[table], None)
        found = world.catalog.tables.get(target)
        if found is not None and PROPERTY_MODE in found.properties:
            mode = CHANGE_LOG if table == "journal" else UPSERT
            world.catalog.set_property(target, PROPERTY_MODE, mode)
        world.catalog.set_property(target, LACKS_A_ROW, None)

    def _do_delete_row(self, key: int) -> None:
        """Somebody deletes a row of the lake."""
        name = self.world.targets["accounts"]
        found = self.world.catalog.tables.get(name)
        end = None if found is None or found.main is None else reached(found, found.main.id)
        if end is not None and self.world.catalog.delete_row(name, key):
            self.judge.deleted[key] = end
            self.counts["row deleted"] += 1

    def _do_new_log(self) -> None:
        """The journal begins anew in another target; the run that copies it comes next."""
        self._new_logs += 1
        self.world.targets["journal"] = f"`lake`.`{NAMESPACE}`.`journal_{self._new_logs}`"

    # The end.

    def finish(self) -> None:
        """Let zombies go on, run the pipeline until it caught up, and do everything again."""
        for number, process in sorted(self.processes.items()):
            if process.lives:
                self.act(("go", number, _MOST_STEPS))
        for table in sorted(self.judge.rolled_back):
            self.act(("bring_back", table))
        for table in OIDS:
            self.act(("mend", table))
        number = 1000
        for dag_run in range(_FIRST_END_RUN, _FIRST_END_RUN + _END_RUNS):
            aside = self._set_aside()
            caught_up = self.judge.checkpoint() == self.world.source.lsn and self._is_copied()
            if caught_up and not aside and not self.judge.lacks_rows():
                break
            number = self._whole_run(number, dag_run, aside)
        self.judge.at_the_end()
        before = self.judge.state()
        for dag_run, xcom in sorted(self.xcoms.items()):
            if xcom is not None and dag_run % 3 == 0:
                for task in ("apply", "advance"):
                    number += 1
                    self._task(number, task, dag_run)
        if self.judge.state() != before:
            raise Violation("I6: doing it again changed something")
        self.judge.at_the_end()

    def _is_copied(self) -> bool:
        tables, targets = self.world.catalog.tables, self.world.targets
        return all(targets[TABLES[oid][0]] in tables for oid in self.world.source.published)

    def _set_aside(self) -> dict[str, SetAside]:
        """The tables that are set aside."""
        checkpoint = self.world.checkpoint()
        found = () if checkpoint is None else checkpoint.set_aside.values()
        return {each.table_name.removeprefix("public."): each for each in found}

    def _whole_run(self, number: int, dag_run: int, aside: Mapping[str, SetAside]) -> int:
        """One DAG run. What is set aside comes back: by a replay first, and by copies if it does not help."""
        number, copied, options, usual = self._begin_run(number, dag_run, aside)
        for task in _TASKS:
            for _ in range(4):
                number += 1
                given = {"stage": options, "apply": usual}.get(task)
                error = self._task(number, task, dag_run, given)
                if error is None:
                    break
                if isinstance(error, RetryableError):
                    continue
                if self.judge.slot_was_lost and task == "stage":
                    options = (*options, ("on_slot_lost", "copy"))
                    continue
                if self.judge.slot_was_lost and task == "advance":
                    break  # A batch that was sealed before was applied; the next run makes a slot.
                if copied and task == "stage" and isinstance(error, SlotAheadOfCheckpoint):
                    # What was sealed before has no copies, and comes first.
                    options = tuple(each for each in options if each[0] != "copy_tables")
                    continue
                raise Violation(f"the pipeline is stuck: {task}: {type(error).__name__}: {error}")
            else:
                raise Violation(f"the pipeline is stuck: {task} was tried four times")
        return number

    def _begin_run(
        self, number: int, dag_run: int, aside: Mapping[str, SetAside]
    ) -> tuple[int, set[str], Action, Action]:
        """Bring tables back, or choose those that are copied: these, and options of stage and of apply."""
        goes_on = self.judge.sets_aside or bool(self.judge.deleted)
        usual: Action = (("on_table_refused", SET_ASIDE),) if goes_on else ()
        options = (*usual, ("advance", "after_stage")) if self.judge.moves_after_stage else usual
        if self.judge.quarantines:
            usual = (*usual, ("on_row_refused", QUARANTINE))
        copied = set(aside) if dag_run > _FIRST_END_RUN + 1 else set()
        if self.judge.lacks_rows() and dag_run > _FIRST_END_RUN + 1:
            copied.add("accounts")
        if "journal" in copied:
            self.act(("new_log",))
        if copied:
            names = tuple(f"public.{name}" for name in sorted(copied))
            options = (*options, ("copy_tables", names))
        elif aside:
            number += 1
            self._task(number, "bring back", dag_run)
        return number, copied, options, usual

    def _task(self, number: int, task: str, dag_run: int, options: Any = None) -> Exception | None:
        self.act(("start", number, task, dag_run, options))
        self.act(("go", number, _MOST_STEPS))
        process = self.processes[number]
        if not process.finished:
            raise Violation(f"{process.name} does not end")
        return process.error

    def close(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            if process.lives:
                self.world.scheduler.kill(process)
