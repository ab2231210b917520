"""A PostgreSQL server in memory: its WAL as a list of transactions, and one slot.

It sends what commits at or past both the asked and the confirmed position, forgets in a crash what was
confirmed since its last checkpoint, lets one session at a time use the slot, and may lose the slot or have it
dropped and made again by somebody. What is not here: bytes, and all that the tests with a real server
(``tests/capture``) are about. The batch's files are written here, too, as JSON in place of Parquet.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.answers import SET_ASIDE
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest, Table
from airflow_provider_pgoutput.batch.membership import PublishedSet, TableMembership
from airflow_provider_pgoutput.batch.table_version import Column, Counts, StagedFile, TableVersion
from airflow_provider_pgoutput.capture.advance import move_slot
from airflow_provider_pgoutput.capture.membership import changes_of_membership
from airflow_provider_pgoutput.capture.run import Facts
from airflow_provider_pgoutput.capture.slot.facts import SlotFacts
from airflow_provider_pgoutput.capture.source.catalog import PublishedTable, Server
from airflow_provider_pgoutput.capture.source.keys import RowIdentity
from airflow_provider_pgoutput.capture.staging.attempt import Attempt
from airflow_provider_pgoutput.capture.staging.batch import WantedChanges
from airflow_provider_pgoutput.capture.staging.finished import CatalogAfter
from airflow_provider_pgoutput.capture.staging.passing import Passing
from airflow_provider_pgoutput.capture.stream.read import Found
from airflow_provider_pgoutput.errors import (
    MissingPrivilege,
    SlotBusy,
    SourceError,
    SourceUnavailable,
    ValueRefused,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_pgoutput.capture.request import CaptureRequest
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.capture.staging.batch import BatchFacts
    from airflow_provider_pgoutput.capture.start import Start
    from airflow_provider_pgoutput.capture.stream.cut import Limits
    from tests.simulation.world import World

SLOT = "pipeline"
SYSTEM = "7000000000000000001"
ACCOUNTS, JOURNAL, EVENTS = 101, 102, 103
#: Name and key columns; the journal is kept as a change log, events have no key.
TABLES = {ACCOUNTS: ("accounts", ("id",)), JOURNAL: ("journal", ("id",)), EVENTS: ("events", ())}
_KIND_OF = {"I": "inserts", "U": "updates", "P": "updates", "D": "deletes", "T": "truncates"}
#: What a table may be refused for when it is staged: a value that its column does not hold, or a right that
#: the role lacks to copy it.
VALUE, RIGHT = "value", "right"


@dataclass(frozen=True)
class Transaction:
    """What committed together."""

    commit_lsn: int
    end_lsn: int
    #: OID, operation, key, value.
    changes: tuple[tuple[int, str, int | None, int | None], ...]


@dataclass
class Slot:
    """The pipeline's slot."""

    confirmed: int
    #: What a crash leaves of it.
    durable: int
    status: str = "reserved"
    used_by: object = None


class Source:
    """The server."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lsn = 0x1000
        self.transactions: list[Transaction] = []
        self.rows: dict[int, Any] = {ACCOUNTS: {}, JOURNAL: {}, EVENTS: ()}
        #: Where each table was published: what committed before is not sent.
        self.published = {ACCOUNTS: 0, JOURNAL: 0}
        #: By OID: why a table is refused now.
        self.refused: dict[int, str] = {}
        self.slot: Slot | None = None
        #: Of the server's life; sessions end with it.
        self.epoch = 0
        #: By table: the rows after each transaction, with its commit LSN.
        self._states: dict[int, list[tuple[int, Any]]] = {
            oid: [(0, rows)] for oid, rows in self.rows.items()
        }

    # What happens at the source.

    def commit(self, wanted: Sequence[tuple[int, str, int, int]]) -> None:
        """Do a transaction; what cannot be done to the rows that are there is left out."""
        changes = []
        for oid, op, key, value in wanted:
            done = self._change(oid, op, key, value)
            if done is not None:
                changes.append((oid, *done))
        commit_lsn = self.lsn + 0x18
        self.lsn = commit_lsn + 8
        self.transactions.append(Transaction(commit_lsn, self.lsn, tuple(changes)))
        for oid in {each[0] for each in changes}:
            self._states[oid].append((commit_lsn, self.rows[oid]))

    def _change(self, oid: int, op: str, key: int, value: int) -> tuple[Any, ...] | None:
        rows = self.rows[oid]
        if op == "T":
            self.rows[oid] = type(rows)()
            return op, None, None
        return (self._change_event if oid == EVENTS else self._change_row)(oid, op, key, value)

    def _change_event(self, oid: int, op: str, key: int, value: int) -> tuple[Any, ...] | None:
        rows = self.rows[oid]
        if op != "D":
            self.rows[oid] = tuple(sorted((*rows, value)))
            return "I", None, value
        if not rows:
            return None
        value = rows[key % len(rows)]
        index = rows.index(value)
        self.rows[oid] = rows[:index] + rows[index + 1 :]
        return op, None, value

    def _change_row(self, oid: int, op: str, key: int, value: int) -> tuple[Any, ...] | None:
        rows = self.rows[oid]
        if op == "D":
            if key not in rows:
                return None
            self.rows[oid] = {k: v for k, v in rows.items() if k != key}
            return op, key, None
        if op == "P":
            if key not in rows:
                return None
            self.rows[oid] = {**rows, key: rows[key] + value}
            return op, key, value
        self.rows[oid] = {**rows, key: value}
        return ("U" if key in rows else "I"), key, value

    def publish(self, oid: int) -> None:
        """ALTER PUBLICATION ... ADD TABLE, a transaction like any other."""
        if oid not in self.published:
            self.commit(())
            self.published[oid] = self.lsn

    def rows_at(self, oid: int, lsn: int) -> Any:
        """The rows after everything that committed before ``lsn``."""
        found = None
        for commit_lsn, rows in self._states[oid]:
            if commit_lsn >= lsn:
                break
            found = rows
        return found

    def crash(self) -> None:
        """Crash and recover."""
        self.epoch += 1
        if self.slot is not None:
            self.slot.confirmed = self.slot.durable
            self.slot.used_by = None

    def checkpoint(self) -> None:
        """Write what the slot confirmed to the disk."""
        if self.slot is not None:
            self.slot.durable = self.slot.confirmed

    # What sessions ask.

    def server(self) -> Server:
        """See ``read_server``."""
        self.world.step("look at the server")
        return Server(170004, SYSTEM, 1, "shop", Lsn(self.lsn), "logical")

    def facts(self) -> SlotFacts | None:
        """See ``read_slot``."""
        self.world.step("look at the slot")
        slot = self.slot
        if slot is None:
            return None
        lost = slot.status == "lost"
        return SlotFacts(
            name=SLOT,
            plugin="pgoutput",
            slot_type="logical",
            database="shop",
            temporary=False,
            active_pid=None if slot.used_by is None else 4711,
            confirmed_flush_lsn=Lsn(slot.confirmed),
            restart_lsn=None if lost else Lsn(slot.confirmed),
            wal_status=slot.status,
            safe_wal_size=None,
            two_phase=False,
            invalidation_reason=None,
            synced=False,
            keep_size=None,
        )

    def make_slot(self) -> Slot:
        """A slot at the end of the WAL, to which its making adds."""
        self.lsn += 0x38
        self.slot = Slot(self.lsn, self.lsn)
        return self.slot

    def use(self) -> Slot:
        """The slot, for one session.

        :raises SlotBusy: when another one uses it.
        """
        if self.slot is None or self.slot.status == "lost":
            raise SourceError("The slot cannot be used.", slot=SLOT)
        if self.slot.used_by is not None:
            raise SlotBusy("Another session uses the slot.", slot=SLOT)
        return self.slot


class MovedSlot:
    """See ``MovableSlot``."""

    slot_name = SLOT

    def __init__(self, source: Source) -> None:
        self._source = source
        self.server, self.facts = source.server, source.facts

    def move(self, lsn: Lsn) -> Lsn:
        """See ``MovableSlot``."""
        with self._source.world.write(f"move the slot to {lsn}", "source"):
            slot = self._source.use()
            slot.confirmed = max(slot.confirmed, min(int(lsn), self._source.lsn))
            return Lsn(slot.confirmed)


class ExportedRows:
    """See ``ExportedSnapshot``: the rows of all tables at one point."""

    def __init__(self, source: Source) -> None:
        self.consistent_point = Lsn(source.lsn)
        self.rows = dict(source.rows)

    def __enter__(self) -> ExportedRows:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Reading:
    """See ``SlotReading``."""

    def __init__(self, source: Source, start: Lsn, target: Lsn, limits: Limits) -> None:
        self._source, self._start, self._target = source, start, target
        self._limits = limits
        source.world.step(f"read the slot from {start}")
        self._slot = source.use()
        self._slot.used_by = self
        self._epoch = source.epoch
        # As the server does, without a word.
        self._from = max(int(start), self._slot.confirmed)

    def into(self, batch: StagedBatch) -> Found:
        """See ``SlotReading``."""
        limits = self._limits
        count, end, last = 0, self._target, None
        for each in list(self._source.transactions):
            if not self._from <= each.commit_lsn < self._target:
                continue
            self._source.world.step("receive a transaction")
            if self._epoch != self._source.epoch:
                raise SourceUnavailable("The connection broke.", slot=SLOT)
            batch.add(each)
            count, last = count + 1, each
            if limits.max_changes is not None and batch.rows >= limits.max_changes:
                end = Lsn(each.end_lsn)
                break
        return Found(end, True, count, None if last is None else "2026-01-01T00:00:00+00:00")

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        if self._slot.used_by is self:
            self._slot.used_by = None


class StagedBatch:
    """See ``BatchInProgress``: rows are collected, written as JSON and sealed."""

    def __init__(self, world: World, start: Lsn, passing: Passing) -> None:
        self._area, self._world, self._start = world.area, world, start
        #: What is passed over, and since when, is the product's.
        self.passing = passing
        self._attempt = Attempt(world.area, SLOT, start, "try", set)
        self.copied_at: dict[int, Lsn] = {}
        self._wanted = WantedChanges()
        self.copies: dict[int, list[Any]] = {}
        self.changes: dict[int, list[Any]] = {}
        self.rows = 0
        self._files: dict[int, list[StagedFile]] = {}

    def want(self, changes: WantedChanges) -> None:
        """See ``BatchInProgress``."""
        self._wanted = changes

    def add(self, transaction: Transaction) -> None:
        """Take what no copy of this batch holds."""
        for number, (oid, *change) in enumerate(transaction.changes):
            copied_at = self.copied_at.get(oid)
            is_old = copied_at is not None and transaction.commit_lsn < copied_at
            unwanted = copied_at is None and self._wanted.only_copied
            since = self._world.source.published.get(oid)
            is_sent = since is not None and transaction.commit_lsn >= since
            if is_sent and not is_old and not unwanted and not self._passes_over(oid, transaction):
                entry = (transaction.commit_lsn, number, *change)
                self.changes.setdefault(oid, []).append(entry)
                self.rows += 1

    def _passes_over(self, oid: int, transaction: Transaction) -> bool:
        """Whether a change is passed over. Then so are those of its transaction before it."""
        block: Any = _OneChange(_relation(oid))
        if self.passing.takes(block, is_copied=oid in self.copied_at):
            return True
        if self._world.source.refused.get(oid) != VALUE:
            return False
        name, lsn = block.relation.name, Lsn(transaction.commit_lsn)
        error = ValueRefused("A value does not fit its column.", table=name, lsn=lsn, advice="-")
        self.passing.set_aside(oid, name, lsn, error)
        before = self.changes.get(oid, [])
        self.changes[oid] = [each for each in before if each[0] < lsn]
        self.passing.count(oid, 1 + len(before) - len(self.changes[oid]))
        if not self.changes[oid]:
            del self.changes[oid]
        return True

    @property
    def relation_oids(self) -> tuple[int, ...]:
        """See ``BatchInProgress``."""
        return tuple(sorted({*self.copied_at, *self.changes}))

    def finish_files(self) -> None:
        """Write all files."""
        for oid in self.relation_oids:
            for kind, rows in (("copy", self.copies.get(oid)), ("changes", self.changes.get(oid))):
                if rows:
                    self._files.setdefault(oid, []).append(self._write(oid, kind, rows))

    def _write(self, oid: int, kind: str, rows: list[Any]) -> StagedFile:
        path = f"{layout.table_folder(self._attempt.root, oid, 0)}/{layout.file_name(kind, 0)}"
        content = json.dumps(rows).encode()
        self._area.write_whole(path, content)
        digest = hashlib.sha256(content).hexdigest()
        return StagedFile(kind, path, len(rows), len(content), digest, ("id", "value"))

    def seal(self, server_now: Callable[[], Server], facts: BatchFacts) -> tuple[Manifest, str]:
        """Write the manifest."""
        server = server_now()
        manifest = Manifest(
            slot_name=SLOT,
            system_identifier=server.system_identifier,
            timeline=server.timeline,
            database=server.database,
            publication_names=facts.publication_names,
            start_lsn=self._start,
            end_lsn=facts.end,
            tables=tuple(self._table(oid) for oid in self.relation_oids),
            transactions=facts.transactions,
            last_commit_time=facts.last_commit_time,
            published=facts.published,
            passed_over=self.passing.report(self.copied_at),
            refused_copies=tuple(self.passing.refused_copies),
        )
        return self._attempt.seal(manifest, server_now)

    def abandon(self) -> None:
        """See ``BatchInProgress``."""
        self._attempt.abandon()

    def _table(self, oid: int) -> Table:
        name, key = TABLES[oid]
        columns = (
            Column("id", 20, -1, "bigint", "long"),
            Column("value", 20, -1, "bigint", "long"),
        )
        version = TableVersion(
            0, "public", name, "d", columns, key, tuple(self._files.get(oid, ()))
        )
        kinds = [_KIND_OF[each[2]] for each in self.changes.get(oid, ())]
        counts = Counts(
            copied=len(self.copies.get(oid, ())), **{kind: kinds.count(kind) for kind in set(kinds)}
        )
        point = self.copied_at.get(oid)
        return Table(oid, "public", name, (version,), counts, None if point is None else str(point))


class _OneChange(NamedTuple):
    """See ``ChangeBlock``: what ``Passing`` asks of one."""

    relation: Any

    def __len__(self) -> int:
        return 1


def _relation(oid: int) -> Any:
    return SimpleNamespace(oid=oid, name=f"public.{TABLES[oid][0]}")


def _published(oid: int, name: str, key: tuple[str, ...]) -> PublishedTable:
    identity = RowIdentity("d", key, frozenset(key))
    return PublishedTable(oid, "public", name, "r", "d", (), identity, ())


class SimulatedSource:
    """See ``Source`` of ``capture/run.py``: what a run asks of the server, of the one above."""

    def __init__(self, world: World, request: CaptureRequest, server: Server) -> None:
        self._world, self._source = world, world.source
        self.request, self.server = request, server
        self.area: StagingArea = world.area
        self.options = request.options.for_server(server, tuple(request.publication_names))

    def server_now(self) -> Server:
        """See ``Source``."""
        self._world.step("look at the server")
        return replace(self.server, flush_lsn=Lsn(self._source.lsn))

    def read_target(self, start: Lsn) -> Lsn:
        """See ``Source``."""
        return self.server.flush_lsn

    def check_sealed(self, manifest: Manifest) -> None:
        """See ``Source``: no column has a mask here."""

    def read_tables(self) -> tuple[PublishedTable, ...]:
        """See ``Source``."""
        self._world.step("look at the publication")
        return tuple(_published(oid, *TABLES[oid]) for oid in self._source.published)

    def read_facts(self) -> Facts:
        """See ``Source``."""
        tables = self.read_tables()
        marks = (TableMembership(each.relation_oid, each.name, ("all",)) for each in tables)
        return Facts(tables, PublishedSet((), tuple(marks)))

    def read_after(self, batch: Any, start: Start, facts: Facts, found: Found) -> CatalogAfter:
        """See ``Source``: no schema changes here, and no table leaves the publication."""
        self._world.step("look at the publication")
        no_history: Any = None
        return CatalogAfter(no_history)

    def gaps_since(self, before: PublishedSet | None, facts: Facts) -> frozenset[int]:
        """See ``Source``."""
        if before is None:
            return frozenset()
        # It asks of partitions and generated columns only.
        no_session: Any = None
        return changes_of_membership(no_session, before, facts.published, slot_name=SLOT)

    def altered_tables(self, facts: Facts) -> tuple[PublishedTable, ...]:
        """See ``Source``: no type changes here."""
        return ()

    def check_may_copy(
        self, tables: Sequence[PublishedTable], *, one_by_one: bool = False
    ) -> dict[int, MissingPrivilege]:
        """See ``Source``."""
        self._world.step("look at the rights")
        oids = {each.relation_oid for each in tables}
        lacking = [oid for oid, why in self._source.refused.items() if why == RIGHT and oid in oids]
        errors = {oid: _may_not_copy(oid) for oid in lacking}
        for error in () if one_by_one else errors.values():
            raise error
        return errors

    def read_slot(self) -> SlotFacts | None:
        """See ``Source``."""
        return self._source.facts()

    def create_slot(self) -> Any:
        """See ``Source``."""
        with self._world.write("create the slot", "source"):
            if self._source.slot is not None:
                raise SourceError("The slot exists already.", slot=SLOT)
            self._source.make_slot()
            return ExportedRows(self._source)

    def confirm(self, lsn: Lsn) -> None:
        """See ``Source``."""
        move_slot(MovedSlot(self._source), lsn, self.server.system_identifier)

    def drop_slot(self, slot: SlotFacts) -> None:
        """See ``Source``."""
        with self._world.write("drop the slot", "source"):
            if self._source.slot is not None and self._source.slot.used_by is not None:
                raise SlotBusy("Another session uses the slot.", slot=SLOT)
            self._source.slot = None

    def new_batch(self, start: Lsn, followed: frozenset[int]) -> Any:
        """See ``Source``."""
        checkpoint = self.request.checkpoint
        passing = Passing(
            {} if checkpoint is None else checkpoint.passed_over,
            lambda: frozenset(self._source.published),
            (checkpoint.tables if checkpoint else None) or {},
            sets_aside=self.request.on_table_refused == SET_ASIDE,
            asked=self.request.copy_tables,
            followed=followed,
            known_aside=frozenset()
            if checkpoint is None
            else checkpoint.passed_over.keys() - checkpoint.copied_by_itself,
        )
        return StagedBatch(self._world, start, passing)


def _may_not_copy(oid: int) -> MissingPrivilege:
    name = f"public.{TABLES[oid][0]}"
    return MissingPrivilege("The role may not read it.", table=name, advice="GRANT SELECT.")


class Rows:
    """Rows of the source above; see ``RowSource``."""

    def __init__(self, world: World) -> None:
        self._world, self._source = world, world.source

    def copy(
        self, batch: Any, start: Start, tables: Sequence[PublishedTable], snapshot: Any = None
    ) -> Lsn:
        """See ``RowSource``: all tables at one point."""
        if not tables:
            return start.reads_from
        if snapshot is None:
            self._world.step("take a snapshot")
            self._source.lsn += 0x38
            snapshot = ExportedRows(self._source)
        point: Lsn = snapshot.consistent_point
        for table in tables:
            self._world.step(f"copy {table.name}")
            if self._source.refused.get(table.relation_oid) == VALUE:
                error = ValueRefused(
                    "A value does not fit its column.", table=table.name, advice="-"
                )
                batch.passing.leave_out(table.relation_oid, table.name, start.lsn, error)
                continue
            rows = snapshot.rows[table.relation_oid]
            pairs = rows.items() if isinstance(rows, dict) else ((None, each) for each in rows)
            batch.copied_at[table.relation_oid] = point
            batch.copies[table.relation_oid] = [list(each) for each in pairs]
        return max(batch.copied_at.values(), default=start.reads_from)

    def repairs(self, start: Start) -> None:
        """See ``RowSource``: nobody asks for any."""
        return

    def difference(
        self, batch: Any, tables: Sequence[PublishedTable], snapshot: Any, whole: Any
    ) -> tuple[PublishedTable, ...]:
        """See ``RowSource``: nothing can be compared here."""
        return tuple(tables)

    def open_slot(self, start: Start, target: Lsn, limits: Limits, two_phase: Any) -> Any:
        """See ``RowSource``."""
        return Reading(self._source, start.reads_from, target, limits)
