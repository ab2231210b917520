"""The invariants I1 to I8 of the page of guarantees, judged by what source and lake hold themselves.

Nothing of the product is asked: rows are compared with what the source held at the LSN that the table's own
newest marker names. What must hold at any instant is looked at after every step.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch import checkpoint as words
from airflow_provider_pgoutput.errors import PgoutputError
from tests.simulation.aside import Aside, number
from tests.simulation.source import ACCOUNTS, EVENTS, JOURNAL, TABLES
from tests.simulation.spark import BEGINS
from tests.simulation.world import CHECKPOINT_NAME

if TYPE_CHECKING:
    from tests.simulation.iceberg import Metadata
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World


class Violation(AssertionError):
    """An invariant does not hold."""


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


def reached(table: Metadata, snapshot_id: int) -> int | None:
    """The end of the newest batch in a snapshot, as far as its own history tells."""
    for each in table.ancestors(snapshot_id):
        if words.SUMMARY_END_LSN in each.keys:
            return number(each.keys[words.SUMMARY_END_LSN])
    for key, value in table.properties.items():
        if key.startswith(words.PROPERTY_APPLIED):
            return number(value.split(" ")[2])
    return None


class Judge:
    """Watches one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._greatest = -1
        self._recorded: tuple[Any, int | None] = ((), None)
        #: The slot was taken away, and changes with it that nobody can bring back.
        self.slot_was_lost = False
        #: Stage runs may move the slot over what is sealed.
        self.moves_after_stage = False
        #: Somebody rolled a table back, and it was not brought forward again.
        self.rolled_back: set[str] = set()
        #: Tasks may set tables aside.
        self.sets_aside = False
        #: Tasks may leave rows out.
        self.quarantines = False
        #: ``set_aside_retention`` was over.
        self.expired = False
        #: By key: where the accounts were when somebody deleted the row in the lake.
        self.deleted: dict[int, int] = {}
        self._aside = Aside(world)

    def checkpoint(self) -> int | None:
        """How far the lake is."""
        table = self._world.catalog.tables.get(CHECKPOINT_NAME)
        rows = () if table is None or table.main is None else table.main.rows or ()
        if rows is not self._recorded[0]:
            ends = (int(each["end_lsn"], 16) for each in rows if each["target"] is None)
            self._recorded = rows, max(ends, default=None)
        return self._recorded[1]

    def at_any_instant(self) -> None:
        """I4 and I5."""
        checkpoint, slot = self.checkpoint(), self._world.source.slot
        _demand((checkpoint or 0) >= self._greatest or self._greatest < 0, "I5: it went back")
        self._greatest = max(self._greatest, checkpoint or 0)
        if slot is None or self.slot_was_lost:
            return
        if checkpoint is not None:
            kept = slot.confirmed <= checkpoint or self._is_sealed(checkpoint, slot.confirmed)
            _demand(kept, "I4: the slot is past the checkpoint, and no batch holds what is between")
        else:
            _demand(slot.confirmed == slot.durable, "I4: the slot moved before any checkpoint")

    def _is_sealed(self, checkpoint: int, confirmed: int) -> bool:
        """Whether a complete batch holds everything between the checkpoint and the slot."""
        objects = self._world.area.objects if self.moves_after_stage else {}
        for path, content in objects.items():
            if "/manifests/" not in path:
                continue
            batch = json.loads(content)
            paths = [
                file["path"]
                for table in batch["tables"]
                for version in table["versions"]
                for file in version["files"]
            ]
            spans = number(batch["start_lsn"]) <= checkpoint and confirmed <= number(
                batch["end_lsn"]
            )
            if spans and all(each in objects for each in paths):
                return True
        return False

    def after(self, process: Process) -> None:
        """I1, I2, I3, I7 and I8: a task ended, or was killed."""
        error = process.error
        _demand(
            error is None or (isinstance(error, PgoutputError) and bool(str(error))),
            f"I8: {process.name} ended with {type(error).__name__}: {error}",
        )
        self.tables()

    def tables(self) -> None:
        """I1, I2, I3 and I7 of every table."""
        checkpoint = self.checkpoint()
        for oid, (name, _) in TABLES.items():
            table = self._world.catalog.tables.get(self._world.targets[name])
            main = None if table is None else table.main
            if table is None or main is None:
                continue
            end = reached(table, main.id)
            if end is None:
                raise Violation(f"I7: {name} holds something that no batch published")
            wrong = ""
            if checkpoint is not None and end < checkpoint and name not in self.rolled_back:
                kept = not (self.expired or self.slot_was_lost)
                wrong = self._aside.violation(oid, end, checkpoint, kept=kept)
            if oid == JOURNAL:
                self._log(main.rows or (), end)
            elif oid == ACCOUNTS and self.deleted and name not in self.rolled_back:
                found = self._aside.rows_violation(main.rows or {}, end, self.deleted)
                _demand(not found, found)
            elif oid == EVENTS or not self.deleted:
                empty: Any = () if oid == EVENTS else {}
                expected = self._world.source.rows_at(oid, end)
                same = (main.rows or empty) == expected
                _demand(same, f"I1: {name} is not the source at {end:X}")
            _demand(not wrong, f"{wrong} ({name})")

    def _log(self, rows: Any, end: int) -> None:
        streamed = [row for row in rows if row[2] not in {"C", BEGINS}]
        places = [row[:2] for row in rows]
        _demand(len(set(places)) == len(places), "I3: a change or a copied row is there twice")
        # A copy begins the log anew: what was deleted since an earlier one is in no entry.
        begins = max((row[0] for row in rows if row[2] == BEGINS), default=None)
        _demand(begins is not None, "I2: the journal lacks its copy")
        assert begins is not None
        copied = {key: value for lsn, _, op, key, value in rows if op == "C" and lsn == begins}
        _demand(copied == self._world.source.rows_at(JOURNAL, begins), "I2: its copy is another")
        expected = [
            (each.commit_lsn, number, *change)
            for each in self._world.source.transactions
            if begins <= each.commit_lsn < end
            for number, (oid, *change) in enumerate(each.changes)
            if oid == JOURNAL
        ]
        streamed = [row for row in streamed if row[0] >= begins]
        found = sorted(streamed, key=lambda row: row[:2])
        _demand(found == expected, "I2: the journal lacks changes, or holds others")

    def at_the_end(self) -> None:
        """I1 and I2: the pipeline caught up, and everything is there."""
        self.tables()
        source = self._world.source
        end = self.checkpoint()
        _demand(end == source.lsn, f"I1: the checkpoint is {end}, the source at {source.lsn}")
        for oid in source.published:
            name = TABLES[oid][0]
            table = self._world.catalog.tables.get(self._world.targets[name])
            rows = None if table is None or table.main is None else table.main.rows
            if oid != JOURNAL:
                _demand(
                    (rows or type(source.rows[oid])()) == source.rows[oid], f"I2: {name} lacks rows"
                )

            reached_end = table and table.main and reached(table, table.main.id)
            lacks = self._aside.lacks(oid, reached_end or 0, end or 0)
            _demand(not lacks, f"I2: {name} lacks changes")
        wrong = self._aside.entries_violation()
        _demand(not wrong, wrong)

    def lacks_rows(self) -> bool:
        """Whether the accounts lack rows that the source has."""
        table = self._world.catalog.tables.get(self._world.targets["accounts"])
        rows = {} if table is None or table.main is None else table.main.rows or {}
        return bool(self.deleted) and rows.keys() != self._world.source.rows[ACCOUNTS].keys()

    def state(self) -> Any:
        """What nobody may change by doing something again: main of every table, without the checkpoint."""
        found = {}
        for name in self._world.targets.values():
            table = self._world.catalog.tables.get(name)
            found[name] = None if table is None or table.main is None else table.main.id
        return found, self.checkpoint()
