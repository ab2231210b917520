"""A random program: three sessions at once that change rows, tables and publications, from a seed.

One thread drives the sessions in turns. Each step draws from the seed and its own number, so that a statement
that fails (a lock was held by a copy, say) does not change what later steps draw. What waits for a lock
fails soon, and with it its transaction or what follows its last savepoint.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from tests.chaos import known, publishing, rows, shapes
from tests.chaos.drawing import Drawing, quoted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SESSIONS = 3
_MOST_PREPARED = 2
_MOST_TRIES = 12
_SLOW_SECONDS = 0.15
_OPTIONS = "-c lock_timeout=30 -c statement_timeout=20000 -c deadlock_timeout=10"
Draw = "Callable[[Drawing], str | None]"

ROWS: dict[str, tuple[float, Any]] = {
    "insert": (10, rows.insert),
    "insert many": (1.2, rows.insert_many),
    "update": (8, rows.update),
    "update nothing": (1, rows.update_nothing),
    "move key": (3, rows.move_key),
    "swap keys": (1, rows.swap_keys),
    "delete": (4, rows.delete),
    "delete many": (0.7, rows.delete_many),
    "truncate": (0.3, rows.truncate),
    "message": (0.5, rows.message),
}
#: What changes tables, in groups; a program has some of the groups.
SHAPES: dict[str, dict[str, tuple[float, Any]]] = {
    "columns": {
        "add column": (5, shapes.add_column),
        "drop column": (2.5, shapes.drop_column),
        "rename column": (2, shapes.rename_column),
        "swap columns": (0.7, shapes.swap_columns),
        "replace column": (0.7, shapes.replace_column),
        "change default": (1, shapes.change_default),
        "change storage": (0.5, shapes.change_storage),
        "index": (0.3, shapes.index),
    },
    "generated": {
        "add generated column": (2, shapes.add_generated_column),
        "drop expression": (1, shapes.drop_expression),
        "generated columns": (0.5, publishing.generated_columns),
    },
    "types": {
        "retype": (4, shapes.retype),
        "convert": (0.5, shapes.convert),
        "add label": (1, shapes.add_label),
        "rename label": (0.4, shapes.rename_label),
        "change attributes": (0.7, shapes.change_attributes),
        "replace enum": (0.5, shapes.replace_enum),
    },
    "identities": {
        "change identity": (3, shapes.change_identity),
        "change leaf identity": (2, shapes.change_leaf_identity),
        "change key": (2, shapes.change_key),
        "rename key": (1, shapes.rename_key),
    },
    "rewrites": {"rewrite": (3, shapes.rewrite)},
    "names": {
        "rename table": (2, shapes.rename_table),
        "move table": (1, shapes.move_table),
        "rename schema": (0.5, shapes.rename_schema),
    },
    "tables": {
        "drop table": (1, shapes.drop_table),
        "create table": (2.5, shapes.create_table),
        "recreate table": (1.5, shapes.recreate_table),
    },
    "partitions": {
        "detach": (1.5, shapes.detach),
        "attach": (3, shapes.attach),
        "truncate leaf": (0.5, shapes.truncate_leaf),
        "replace leaf": (0.7, shapes.replace_leaf),
    },
    "publications": {
        "add member": (3, publishing.add_member),
        "drop member": (1.5, publishing.drop_member),
        "replace member": (2, publishing.replace_member),
        "change operations": (0.5, publishing.change_operations),
    },
}
#: These end a transaction, or must not stand in one.
_ALONE = {"rewrite"}


@dataclass(frozen=True)
class Style:
    """What a program is like."""

    groups: tuple[str, ...]
    #: How much of what is done changes tables.
    shapes: float
    odd: float
    pause_seconds: float
    prepares: bool
    #: Steps after which it is over.
    steps: int
    publications: tuple[str, ...]
    #: Whether the publications list their tables, so that one that is made is added to them.
    lists_tables: bool

    @classmethod
    def drawn(
        cls, chance: random.Random, publications: tuple[str, ...], *, lists_tables: bool
    ) -> Style:
        """A style; a few groups of changes are seen better than all at once."""
        names = list(SHAPES)
        groups = names if chance.random() < 0.2 else chance.sample(names, chance.randint(1, 4))
        return cls(
            tuple(sorted(groups)),
            chance.choice((0.03, 0.12, 0.25, 0.4)),
            chance.choice((0, 0, 0.05)),
            chance.choice((0.002, 0.006, 0.015)),
            chance.random() < 0.6,
            chance.choice((300, 600, 1000)),
            publications,
            lists_tables,
        )


@dataclass
class Silent:
    """A change that is documented to be in no stream and without a warning."""

    operation: str
    table: int
    column: str


@dataclass
class _Session:
    number: int
    connection: psycopg.Connection[Any]
    #: The savepoints of its transaction; None: it has none open.
    savepoints: list[str] | None = None


@dataclass
class Program:
    """The sessions and what they did; ``start`` lets them work, ``stop`` ends every transaction."""

    conninfo: str
    seed: int
    style: Style
    version: int
    log: Path
    done: Counter[str] = field(default_factory=Counter)
    silent: list[Silent] = field(default_factory=list)
    #: Committed transactions, by a session or of a statement alone.
    transactions: int = 0
    steps: int = 0
    #: OIDs of tables that got a row at the end, so that the stream tells what their columns are by then.
    announced: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Open the sessions."""
        self._file = self.log.open("w")
        self._sessions = [_Session(number, self._connect()) for number in range(_SESSIONS)]
        self._prepared: list[str] = []
        self._gids = 0
        self._share = 1.0
        self._stopping = threading.Event()
        self._going = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="chaos program", daemon=True)
        shape_weights = {
            name: each
            for group in self.style.groups
            for name, each in SHAPES[group].items()
            if name not in known.OPERATIONS
        }
        self._shapes = shape_weights
        self._rows = {name: each for name, each in ROWS.items() if name not in known.OPERATIONS}

    def start(self) -> None:
        """Let the sessions work."""
        self._going.set()
        self._thread.start()

    def go_on_to(self, share: float) -> None:
        """Be slow once so much of the program is done, so that some is left for later batches.

        It is never idle: a copy waits for the end of open transactions.
        """
        self._share = share

    def wait_for(self, share: float, most_seconds: float) -> None:
        """Let a share of the steps be done, for a while at most."""
        deadline = time.monotonic() + most_seconds
        while self.steps < share * self.style.steps and time.monotonic() < deadline:
            self.check()
            time.sleep(0.05)

    def stop(self) -> None:
        """End the work and every transaction.

        :raises BaseException: what ended the thread before.
        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._error is not None:
            raise self._error
        self._end_all()
        if not self._file.closed:
            self._again(self._announce)
        for session in self._sessions:
            session.connection.close()
        self._file.close()

    def _end_all(self) -> None:
        for session in self._sessions:
            self._again(lambda each=session: self._end_open(each))  # type: ignore[misc]
        while self._prepared:
            self._again(lambda: self._end_prepared(random.Random(self.seed)))  # noqa: S311

    def _announce(self) -> None:
        """Insert a row into each table: the server tells of a shape when the next row changes."""
        session = self._sessions[0]
        draw = self._draw(session, random.Random(self.seed))  # noqa: S311
        for table in draw.tables():
            for _ in range(_MOST_TRIES):
                if table.oid in self.announced:
                    break
                statement = rows.insert_into(draw, table, surely=True)
                if statement and self._try(session, "announce", statement):
                    self.announced.add(table.oid)

    def _draw(self, session: _Session, chance: random.Random) -> Drawing:
        return Drawing(
            session.connection,
            chance,
            self.version,
            self.style.odd,
            self.style.publications,
            self.style.lists_tables,
        )

    def note(self, **what: Any) -> None:
        """Put a line into the log of statements."""
        self._file.write(json.dumps({"t": round(time.time(), 3), **what}) + "\n")
        self._file.flush()

    def check(self) -> None:
        """Raise what ended the thread."""
        if self._error is not None:
            raise self._error

    def _connect(self) -> psycopg.Connection[Any]:
        deadline = time.monotonic() + 60
        while True:
            try:
                return psycopg.connect(self.conninfo, autocommit=True, options=_OPTIONS)
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _again(self, action: Callable[[], None]) -> None:
        """Do something, once more after each crash of the server."""
        for _ in range(20):
            try:
                return action()
            except psycopg.OperationalError:
                self._reopen()
        raise AssertionError("the server keeps crashing")

    def _run(self) -> None:
        try:
            while self.steps < self.style.steps:
                ahead = self.steps >= self._share * self.style.steps
                if self._stopping.wait(_SLOW_SECONDS if ahead else self.style.pause_seconds):
                    return
                try:
                    self._step()
                except psycopg.OperationalError as error:
                    self.note(crash=str(error)[:80])
                    self._reopen()
            self._end_all()
        except BaseException as error:
            self._error = error

    def _reopen(self) -> None:
        for session in self._sessions:
            if session.connection.closed or session.connection.broken:
                session.connection = self._connect()
                session.savepoints = None

    def _step(self) -> None:
        self.steps += 1
        chance = random.Random(f"{self.seed} {self.steps}")  # noqa: S311 - a run has to repeat itself
        session = self._sessions[chance.randrange(_SESSIONS)]
        drawn = chance.random()
        if self._prepared and (drawn < 0.05 or len(self._prepared) > 1):
            self._end_prepared(chance)
        elif session.savepoints is None:
            if drawn < 0.35:
                self._begin(session, chance)
            else:
                self._statement(session, chance)
        elif drawn < 0.64:
            self._statement(session, chance)
        elif drawn < 0.76:
            self._savepoint(session, chance)
        else:
            self._end(session, chance)

    def _begin(self, session: _Session, chance: random.Random) -> None:
        if self._try(session, "begin", "BEGIN"):
            session.savepoints = []
            if chance.random() < 0.5:
                self._savepoint(session, chance)

    def _statement(self, session: _Session, chance: random.Random) -> None:
        changes_shape = self._shapes and chance.random() < self.style.shapes
        weights = self._shapes if changes_shape else self._rows
        (name,) = chance.choices(list(weights), [weight for weight, _ in weights.values()])
        if name in _ALONE and session.savepoints is not None:
            return
        draw = self._draw(session, chance)
        try:
            statement = weights[name][1](draw)
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            # A catalog's function met an object that another session just dropped.
            self.note(n=self.steps, s=session.number, op=name, drawing=str(error)[:200])
            self._recover(session)
            return
        if statement is None:
            return
        if self._try(session, name, statement):
            self.silent += [Silent(name, table, column) for table, column in draw.silent]
            self.transactions += session.savepoints is None

    def _savepoint(self, session: _Session, chance: random.Random) -> None:
        assert session.savepoints is not None, "the caller chose an open transaction"
        points = session.savepoints
        if not points or chance.random() < 0.5:
            name = f"s{len(points)}"
            if self._try(session, "savepoint", f"SAVEPOINT {name}"):
                points.append(name)
            return
        place = chance.randrange(len(points))
        if chance.random() < 0.7:
            self._try(session, "rollback to", f"ROLLBACK TO {points[place]}")
            del points[place + 1 :]
        else:
            self._try(session, "release", f"RELEASE {points[place]}")
            del points[place:]

    def _end(self, session: _Session, chance: random.Random) -> None:
        drawn = chance.random()
        if drawn < 0.15:
            self._try(session, "rollback", "ROLLBACK")
        elif drawn < 0.35 and self.style.prepares and len(self._prepared) < _MOST_PREPARED:
            self._gids += 1
            gid = f"g'{self.seed} {self._gids}"
            if self._try(session, "prepare", f"PREPARE TRANSACTION {sql.quote(gid)}"):
                self._prepared.append(gid)
        elif self._try(session, "commit", "COMMIT"):
            self.transactions += 1
        session.savepoints = None

    def _end_open(self, session: _Session) -> None:
        if session.savepoints is not None:
            self._try(session, "commit", "COMMIT")
            session.savepoints = None

    def _end_prepared(self, chance: random.Random) -> None:
        gid = self._prepared[chance.randrange(len(self._prepared))]
        how = "COMMIT" if chance.random() < 0.7 else "ROLLBACK"
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            # It may have ended with an answer that a crash swallowed.
            present = connection.execute("SELECT 1 FROM pg_prepared_xacts WHERE gid = %s", (gid,))
            if present.fetchone():
                connection.execute(f"{how} PREPARED {sql.quote(gid)}".encode())
        self._prepared.remove(gid)
        self.transactions += how == "COMMIT"
        self.done[f"{how.lower()} prepared"] += 1
        self.note(n=self.steps, op=f"{how} PREPARED {gid}")

    def _try(self, session: _Session, what: str, statement: str) -> bool:
        """Run a statement; when it fails, go back to the last savepoint or to the beginning."""
        note = {"n": self.steps, "s": session.number, "op": what, "sql": statement}
        try:
            session.connection.execute(statement.encode())
        except psycopg.OperationalError as error:
            if session.connection.closed or session.connection.broken:
                raise
            self._failed(session, note, error)
            return False
        except psycopg.Error as error:
            self._failed(session, note, error)
            return False
        ends = session.savepoints is None or what in {"commit", "prepare"}
        if ends and what not in {"begin"}:
            (lsn,) = session.connection.execute(
                "SELECT pg_current_wal_insert_lsn()::text"
            ).fetchone() or ("",)
            note["lsn"] = lsn
        self.note(**note)
        self.done[what] += 1
        return True

    def _failed(self, session: _Session, note: dict[str, Any], error: psycopg.Error) -> None:
        self.note(**note, failed=str(error)[:200])
        self.done["failed"] += 1
        self._recover(session)

    def _recover(self, session: _Session) -> None:
        if session.savepoints is None:
            return
        if session.connection.info.transaction_status == TransactionStatus.IDLE:
            # A COMMIT that failed has ended the transaction.
            session.savepoints = None
        elif session.savepoints:
            session.connection.execute(f"ROLLBACK TO {quoted(session.savepoints[-1])}".encode())
            self.note(
                n=self.steps,
                s=session.number,
                op="recover",
                sql=f"ROLLBACK TO {session.savepoints[-1]}",
            )
        else:
            session.connection.execute("ROLLBACK")
            session.savepoints = None
            self.note(n=self.steps, s=session.number, op="recover", sql="ROLLBACK")
