"""One pipeline of a run: stage, apply, advance, again and again, with kills, and with the ways on."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from pyarrow import parquet

from airflow_provider_pgoutput.batch.jobs import ApplyJob, MaintenanceJob, TableOptions
from airflow_provider_pgoutput.log_rows import VIEW_SUFFIX
from tests.chaos import refusals
from tests.chaos.options import POLICY
from tests.chaos.targets import Targets
from tests.chaos.trouble import KINDS, ROW_DELETED, Troubles
from tests.chaos.watch import SlotWatch, number, read_checkpoint
from tests.faults.crash_points import ELSEWHERE, crash_points
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from tests.chaos.driver import Driver
    from tests.chaos.on_the_way import OnTheWay
    from tests.chaos.options import Options
    from tests.chaos.program import Program
    from tests.chaos.tasks import Outcome, Refusal, Tasks

CATALOG = "lake"
_CAPTURE_POINTS = [each for each in crash_points("capture") if each not in ELSEWHERE]
_APPLY_POINTS = [each for each in crash_points("apply") if not each.startswith("replay.")]
_REPLAY_POINTS = [*_APPLY_POINTS, "replay.after_batch"]
_TREE = """
SELECT format('ALTER TABLE %%s REPLICA IDENTITY FULL', p.relid)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, pg_partition_tree(c.oid) p
 WHERE n.nspname = %s AND c.relname = %s
"""
_WITH_SPARK = {"apply", "bring_back", "delete_row", "maintain", "read_view"}
#: The same refusal so often, while nothing else happens at the source, has no way on.
_MOST_REPEATED = 3
_MOST_RETRIES = 8
#: Ways on after a lost slot.
_AFTER_LOSS = ("copy", "difference")
#: What is left after so many small batches is one batch.
_MOST_LIMITED_RUNS = 12


class Fault(Exception):
    """Something that a pipeline must not do."""


@dataclass
class Kills:
    """How often tasks of a run are killed, and what else happens to them."""

    stage: float = 0.25
    apply: float = 0.25
    #: Of the kills of an apply: those that take the JVM along.
    java: float = 0.0
    #: The server is stopped at once while a task runs.
    server: float = 0.0
    #: Before a run: the slot is dropped, the tables are maintained, the staging area is pruned.
    slot: float = 0.0
    maintenance: float = 0.0


@dataclass
class Pipeline:
    """One slot, one namespace, and what became of its tasks."""

    conninfo: str
    slot_name: str
    publications: tuple[str, ...]
    staging: Path
    catalog_properties: dict[str, str]
    options: Options
    on_the_way: OnTheWay
    chance: random.Random
    tasks: Tasks
    driver: Driver
    program: Program
    crash_server: Callable[[], None]
    note: Callable[..., None]
    kills: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)
    batches: int = 0
    changes: int = 0
    #: LSN of the last copy of each table.
    copied: dict[str, int] = field(default_factory=dict)
    #: Nobody changes tables of the lake any more.
    _calm: bool = False
    #: Options of the next stage task alone.
    _next: dict[str, Any] = field(default_factory=dict)
    _pending: dict[str, Any] | None = None
    _repeated: Counter[str] = field(default_factory=Counter)
    _checkpoint: int | None = None
    #: Beginnings of the ids of batches whose manifests were removed.
    given_up: set[str] = field(default_factory=set)
    #: Tables that are set aside, by their names at the source.
    set_aside: set[str] = field(default_factory=set)
    #: Those of them that only a copy brings back.
    needs_copy: set[str] = field(default_factory=set)
    #: Those of them that were copied for it.
    copied_for_it: set[str] = field(default_factory=set)
    #: Change logs that were set aside, and begin again in another target.
    begun_anew: set[str] = field(default_factory=set)
    #: Tables of which rows are in the quarantine.
    incomplete: set[str] = field(default_factory=set)
    #: What may cause a refusal beside the program's operations.
    causes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Watch the slot from its first moment."""
        self.staging.mkdir(parents=True)
        self.targets = Targets(
            self.options, self.namespace, self.chance, self.plan, self._published
        )
        self._troubles = Troubles(
            self.namespace, self.catalog_properties, self.chance, self._delete_row
        )
        self.watch = SlotWatch(
            self.conninfo,
            self.slot_name,
            self.namespace,
            self.catalog_properties,
            self.staging,
            moves_early=self.options.advances_early,
        )

    @property
    def namespace(self) -> str:
        """Where its tables are."""
        return self.slot_name

    def run(self, kills: Kills) -> bool:
        """One DAG run, with retries while it is killed; whether all of its tasks ended well."""
        if self._checkpoint is not None and not self._next:
            self._disturb(kills)
        makes_slot = "on_slot_lost" in self._next
        if makes_slot:
            self.watch.paused.set()
        staged = self._task("stage", self._stage_body, kills.stage, _CAPTURE_POINTS, kills)
        if makes_slot:
            self.watch.begin_anew()
            self.watch.paused.clear()
        if staged is None:
            return False
        assert staged.result is not None
        self._next = {}
        self._pending = staged.result
        self.copied.update(staged.result["copied"])
        applied = self._apply(kills)
        if applied is None:
            return False
        assert applied.result is not None
        self.set_aside = set(applied.result.get("set_aside", self.set_aside))
        self.incomplete = set(applied.result.get("incomplete", self.incomplete))
        needs_copy = set(applied.result.get("needs_copy", self.needs_copy))
        # The stage task set them aside after their last copy.
        self.copied_for_it -= needs_copy - self.needs_copy
        self.needs_copy = needs_copy
        self.batches += 1
        self.changes += staged.result["changes"]
        self._check_checkpoint()
        self._pending = None
        self._repeated.clear()
        point = [each for each in _CAPTURE_POINTS if each.startswith("advance.")]
        advanced = self._task("advance", self.source, kills.stage / 4, point, kills) is not None
        if self.set_aside and self.chance.random() < 0.5:
            self._bring_back(kills)
        return advanced

    def _bring_back(self, kills: Kills) -> None:
        """Bring tables back that are set aside: by a replay, or by copies in the next run."""
        self._end_trouble()
        self.kills["set aside"] += 1
        if self.chance.random() < 0.7:
            self._replay(kills)
        if wanted := self.set_aside - self.copied_for_it:
            # A table that is gone cannot be copied, and stays set aside.
            self.copied_for_it |= wanted
            self.copy_again(sorted(wanted))

    def _replay(self, kills: Kills) -> None:
        done = self._task("bring_back", self._apply_body, kills.apply, _REPLAY_POINTS, kills)
        if done is not None and done.result is not None:
            self.set_aside = set(done.result["set_aside"])

    def _end_trouble(self) -> None:
        """Undo what was done to tables of the lake. What is not as it was is copied."""
        left = [
            source
            for target in self._troubles.end()
            for source in self.targets.source_names(f"{self.namespace}.{target}")
        ]
        self.note(trouble=None, left=left)
        for each in left:
            if self.targets.is_log(each):
                self._begin_anew(each)
            else:
                self.copy_again([each])

    def _make_trouble(self) -> None:
        """Change a table of the lake so that a batch, or a row, may be refused for it."""
        plan = self.options.plan
        if plan["format_version"] > 2:
            # pyiceberg writes no metadata of version 3.
            return
        kinds = ("row",) if plan["on_table_refused"] == "fail" else KINDS
        made = self._troubles.make(kinds)
        self.note(trouble=made)
        if made is None:
            return
        self.kills[f"trouble: {made[1]}"] += 1
        if made[1] == "row":
            self.causes[ROW_DELETED] += 1

    def _delete_row(self, target: str) -> bool:
        """Delete a row of a table; whether there was one."""
        if self.targets.mode(self.targets.source_name(f"{self.namespace}.{target}")) != "upsert":
            return False
        body = {**self.source(), "target": f"{CATALOG}.{self.namespace}.`{target}`"}
        done = self._task("delete_row", lambda: body, 0, [], Kills(0, 0))
        return done is not None and bool(done.result and done.result["deleted"])

    def _disturb(self, kills: Kills) -> None:
        """What operators do between runs, or should not do."""
        if self.chance.random() < kills.slot:
            self._drop_slot()
            self.kills["slot"] += 1
            self.causes[refusals.DROPPED_SLOT] += 1
        if self.chance.random() < kills.maintenance:
            self._task("maintain", self._maintain_body, 0, [], kills)
            self._task("prune", self.source, 0, [], kills)
        if self.chance.random() < 0.3 and not self._calm:
            self._make_trouble()

    def catch_up(self, target: int) -> None:
        """Run until nothing is left.

        :raises Fault: it is stuck, or a task hung.
        """
        replays = 0
        self._calm = True
        self._end_trouble()
        # A copy brings back each row whose key the lake can hold.
        completed = False
        for turn in range(60):
            if turn == _MOST_LIMITED_RUNS:
                self.options.stage.pop("max_changes", None)
                self.options.stage.pop("max_bytes", None)
            if not self.run(Kills(0, 0)) or (self._checkpoint or 0) < target or self._next:
                continue
            no_copy_left = self.set_aside and self.set_aside <= self.copied_for_it
            if no_copy_left and replays < 2 + len(self.set_aside):
                # No copy brings back a change log, or a table that was renamed since. A refused replay
                # shows the way on of one table.
                replays += 1
                self._replay(Kills(0, 0))
                continue
            if logs := [
                each for each in self.set_aside - self.begun_anew if self.targets.is_log(each)
            ]:
                # Neither helps, for example because of a type that Iceberg cannot follow.
                for each in logs:
                    self._begin_anew(each)
                self.begun_anew.update(logs)
                continue
            if not self.set_aside - self.copied_for_it:
                if not self.incomplete or completed:
                    return
                completed = True
                self.copy_again(sorted(self.incomplete & self._published()))
                continue
            self._bring_back(Kills(0, 0))
            if not self._next:
                return
        raise Fault("the pipeline does not catch up in 60 runs")

    def _published(self) -> set[str]:
        """The tables that are published now, ``schema.table``."""
        with psycopg.connect(self.conninfo) as session:
            rows = session.execute(
                "SELECT schemaname || '.' || tablename FROM pg_publication_tables"
                " WHERE pubname = ANY (%s)",
                (list(self.publications),),
            )
            return {name for (name,) in rows.fetchall()}

    def view_of(self, target: str) -> pa.Table | None:
        """The rows of the view of a change log; None: it has none.

        :raises Fault: it cannot be read.
        """
        file = self.staging.parent / "view.parquet"
        body = {**self.source(), "view": f"{target}{VIEW_SUFFIX}", "file": str(file)}
        done = self._task("read_view", lambda: body, 0, [], Kills(0, 0))
        if done is None or done.result is None:
            raise Fault(f"the view of {target} cannot be read")
        return parquet.read_table(file) if done.result["exists"] else None

    def left_files(self) -> list[str]:
        """Staged files that no batch names once the staging area was pruned (I7)."""
        self._task("prune", self.source, 0, [], Kills(0, 0))
        folder = self.staging / self.slot_name
        manifests = "".join(each.read_text() for each in (folder / "manifests").glob("*.json"))
        files = (str(each.relative_to(self.staging)) for each in (folder / "data").rglob("*.*"))
        return [each for each in files if each not in manifests]

    def copy_again(self, tables: list[str]) -> None:
        """Name tables in ``copy_tables`` of the next run."""
        self._next = {"copy_tables": sorted({*self._next.get("copy_tables", ()), *tables})}

    def plan(self) -> ApplyJob:
        """The plan of the apply task."""
        options = dict(self.options.plan)
        tables = {name: TableOptions(**each) for name, each in self.options.tables.items()}
        options["metadata_columns"] = tuple(options.get("metadata_columns", ()))
        return ApplyJob(
            manifest_uri=self._pending["uri"] if self._pending else "",
            staging_uri=self.staging.as_uri(),
            catalog_name=CATALOG,
            namespace=self.namespace,
            table_options=tables,
            **options,
        )

    def source(self) -> dict[str, Any]:
        """The arguments that all of its tasks have."""
        return {
            "conninfo": reader_conninfo(self.conninfo),
            "slot_name": self.slot_name,
            "namespace": self.namespace,
            "catalog_properties": self.catalog_properties,
            "staging_uri": self.staging.as_uri(),
        }

    def _stage_body(self) -> dict[str, Any]:
        common = self.source()
        options = {
            **{name: common[name] for name in ("conninfo", "slot_name", "staging_uri")},
            "publication_names": list(self.publications),
            **self.options.stage,
            **self.options.stream,
            **self.options.policy,
            **self.on_the_way.arguments(),
            **self._next,
        }
        return {
            **common,
            "options": options,
            "stream": list(self.options.stream),
            "policy": list(POLICY),
        }

    def _apply_body(self) -> dict[str, Any]:
        return {**self.source(), "job": self.plan().to_json()}

    def _maintain_body(self) -> dict[str, Any]:
        job = MaintenanceJob(
            staging_uri=self.staging.as_uri(),
            catalog_name=CATALOG,
            namespace=self.namespace,
            slot_name=self.slot_name,
            snapshot_retention_seconds=0,
        )
        return {**self.source(), "job": job.to_json()}

    def _apply(self, kills: Kills) -> Outcome | None:
        assert self._pending is not None
        if self._pending["changes"] == 0 and not self._pending["tables"]:
            moved = self._task("apply_without_spark", self._apply_body, 0, [], kills)
            if moved is None or (moved.result and moved.result["done"]):
                return moved
        return self._task("apply", self._apply_body, kills.apply, _APPLY_POINTS, kills)

    def _task(
        self,
        name: str,
        body: Callable[[], dict[str, Any]],
        kill: float,
        points: list[str],
        kills: Kills,
    ) -> Outcome | None:
        """A task and its retries; None: it was refused, and a way on is chosen."""
        while True:
            self.program.check()
            point, after = "", None
            if points and self.chance.random() < kill:
                if self.chance.random() < 0.5:
                    point = f"{self.chance.choice(points)}:{self.chance.choice((1, 1, 2, 3))}"
                else:
                    after = self.chance.uniform(0, 3 if name == "apply" else 0.8)
            crash = points and self.chance.random() < kills.server
            environment = self.driver.address() if name in _WITH_SPARK else {}
            java_before = self.driver.cpu()
            running = self.tasks.begin(name, body(), environment, point)
            takes_java = name in {"apply", "bring_back"} and self.chance.random() < kills.java
            if after is not None:
                time.sleep(after)
                running.kill()
            elif crash:
                time.sleep(self.chance.uniform(0, 1))
                self.crash_server()
                self.kills["server"] += 1
            outcome = running.end()
            self.warnings += [each for each in outcome.warnings if each not in self.warnings]
            self.note(
                task=name,
                seconds=round(outcome.seconds, 2),
                cpu=round(outcome.cpu, 2),
                java=round(self.driver.cpu() - java_before, 2),
                killed=outcome.killed,
                result=outcome.result,
                refusal=outcome.refusal and f"{outcome.refusal.kind}: {outcome.refusal.message}",
                options=self._next,
                warnings=outcome.warnings,
            )
            if outcome.result is not None:
                return outcome
            if outcome.killed is not None:
                self.kills[name.partition("_")[0]] += 1
                if name in {"apply", "bring_back"} and (takes_java or kills.java >= 1):
                    self.driver.kill()
                    self.kills["java"] += 1
                continue
            assert outcome.refusal is not None
            if self._may_try_again(name, outcome.refusal):
                continue
            return None

    def _may_try_again(self, name: str, refusal: Refusal) -> bool:
        """Choose what to do about a refusal; whether the task is tried again as it is.

        :raises Fault: the refusal is not expected, or has no way on.
        """
        done = Counter(self.program.done)
        done.update(self.causes)
        if self.kills["server"]:
            done[refusals.CRASH] += 1
        if self.kills["apply"]:
            done[refusals.KILL] += 1
        kind = refusals.expected(refusal, done)
        words = f"{name}: {refusal.kind}: {refusal.message}"
        if kind is None:
            raise Fault(f"not expected: {words}\n{refusal.trace}")
        self.refused[f"{refusal.kind} {kind.words}".strip()] += 1
        self._repeated[words] += 1
        if kind.ways[0][0] == refusals.RETRY:
            if self._repeated[words] > _MOST_RETRIES:
                raise Fault(f"no retry helps: {words}")
            time.sleep(0.3)
            return True
        ways = refusals.ways_named(kind, refusal)
        if not ways:
            raise Fault(f"no way on is named: {words}")
        if self._repeated[words] > _MOST_REPEATED:
            raise Fault(f"no way on helps: {words}")
        # The first is tried before the others, unless chance will have it.
        way = ways[(self._repeated[words] - 1) % len(ways)]
        if self._repeated[words] == 1 and self.chance.random() < 0.4:
            way = self.chance.choice(ways)
        self.note(way=way, table=refusal.table)
        self._take(way, refusal)
        return False

    def _take(self, way: str, refusal: Refusal) -> None:  # noqa: PLR0912 - a branch for each way
        self.causes["way on"] += 1
        table = refusal.table
        if way == refusals.COPY:
            assert table is not None, refusal
            self.copy_again(self.targets.source_names(table))
        elif way == refusals.TARGET:
            assert table is not None, refusal
            former = refusal.message.partition("it was written to ")[2].split()[0].rstrip(".")
            self.targets.keep(table, former.rpartition(".")[2])
        elif way == refusals.OTHER_TARGET:
            assert table is not None, refusal
            self._begin_anew(self.targets.source_name(table))
        elif way == refusals.NEW_COLUMN:
            assert table is not None, refusal
            self.options.tables.setdefault(table, {})["keep_retyped_columns"] = True
        elif way == refusals.TYPE_CHANGES:
            self.options.policy["on_type_change"] = "copy"
            self.copy_again([table] if table else [])
        elif way == refusals.UNSURE:
            self.options.policy["on_unsure_column"] = self.chance.choice(("copy", "ignore"))
        elif way == refusals.OLDER_ROWS:
            self.options.policy["on_unknown_default"] = "copy"
        elif way == refusals.RECREATED:
            self.options.stage["on_recreated_table"] = "copy"
        elif way == refusals.ON_NEW_TABLE:
            self.options.stage["on_new_table"] = self.chance.choice(("copy", "ignore"))
        elif way in {refusals.NEW_SLOT, refusals.NEW_SLOT_AS_TEXT}:
            self.options.stream["two_phase" if way == refusals.NEW_SLOT else "binary"] = False
            self._drop_slot()
            self._next = {"on_slot_lost": self.chance.choice(_AFTER_LOSS)}
        elif way == refusals.NO_PARTITIONS:
            assert table is not None, refusal
            del self.options.tables[self.targets.source_name(table)]["partitioned_by"]
        elif way in refusals.ON_THE_WAY:
            self.copy_again(self.on_the_way.take(way, refusal))
        elif way == refusals.KEEP_NAME:
            assert table is not None, refusal
            self.targets.name_columns(table, refusal)
        elif way == refusals.OTHER_NAME:
            assert table is not None, refusal
            column = refusals.column_of(refusal)
            assert column is not None, refusal
            self.targets.name_column_otherwise(table, column)
            self.copy_again([table])
        elif way == refusals.OTHER_MODE:
            assert table is not None, refusal
            self.options.tables.setdefault(self.targets.source_name(table), {})["mode"] = "upsert"
            self._begin_anew(self.targets.source_name(table))
        elif way == refusals.LEAVE_OUT:
            self._next = {}
        elif way == refusals.IDENTITIES:
            assert table is not None, refusal
            self._give_identities(table)
            self.copy_again([table])
        elif way == refusals.COPY_ALL:
            self._next = {"on_slot_lost": self.chance.choice(_AFTER_LOSS)}
        elif way == refusals.GIVE_UP:
            self._remove_waiting()
            self._next = {"on_slot_lost": self.chance.choice(_AFTER_LOSS)}
        else:
            raise AssertionError(way)

    def _begin_anew(self, table: str) -> None:
        """Let a table begin anew in a target of another name."""
        self.targets.name_another(table)
        self.copy_again([table])

    def _give_identities(self, table: str) -> None:
        """Give every partition of a table REPLICA IDENTITY FULL."""
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            rows = session.execute(_TREE, tuple(table.split(".", 1))).fetchall()
            for (statement,) in rows:
                session.execute(statement.encode())

    def _drop_slot(self) -> None:
        self.watch.paused.set()
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            for _ in range(100):
                try:
                    session.execute("SELECT pg_drop_replication_slot(%s)", (self.slot_name,))
                    break
                except psycopg.errors.ObjectInUse:
                    time.sleep(0.1)
        self.watch.begin_anew()
        self.watch.paused.clear()

    def _remove_waiting(self) -> None:
        """Remove the manifests of batches that are sealed and not applied."""
        for path in (self.staging / self.slot_name / "manifests").glob("*.json"):
            _, end, batch_id = path.stem.split("-")
            if int(end, 16) > (self._checkpoint or 0):
                path.unlink()
                self.given_up.add(batch_id)

    def _check_checkpoint(self) -> None:
        found = read_checkpoint(self.catalog_properties, self.namespace, self.slot_name)
        if found is None or found < (self._checkpoint or 0):
            raise Fault(f"I5: the checkpoint was {self._checkpoint}, and is {found}")
        if self._pending_end and found < self._pending_end:
            raise Fault(f"the batch was applied, and the checkpoint is {found}")
        self._checkpoint = found

    @property
    def _pending_end(self) -> int | None:
        return number(self._pending["end"]) if self._pending else None

    def describe(self) -> str:
        """What it was asked to do."""
        return json.dumps({"slot": self.slot_name, "options": self.options.described()})
