"""Random sessions at once, from a seed: savepoints, prepared transactions, changes of shape, locks.

The statements on rows are those of ``tests/faults/workload.py``. One thread drives all sessions in turns, so
the same seed does the same again; a statement that would wait for another session fails instead, and with
it what it belongs to. What is not here: what becomes of it all.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from tests.faults.workload import Workload

if TYPE_CHECKING:
    from types import TracebackType

_SESSIONS = 3
#: Nobody could end a longer wait.
_LOCK_TIMEOUT_MS = 20
_TYPES = ("int", "text", "numeric(8,2)", "int DEFAULT 7", "numeric(8,2) NOT NULL DEFAULT 1.5")
#: Columns that are added and renamed share these names, so names come back.
_NAMES = tuple(f"x{number}" for number in range(1, 7))
#: Types whose values have the same text in the new one, for no row event tells of it; else ``text``.
_RETYPES = {"integer": "bigint", "numeric(8,2)": "numeric(12,2)"}
_MOST_PREPARED = 2
#: Rows that are too short to be compressed, and more than 64 kB together.
_LARGE_ROWS, _LARGE_ROW_BYTES = 50, 1500


class RandomSessions:
    """A few sessions; a context manager that leaves nothing open.

    :param large: the share of steps that are a large subtransaction, or begin one.
    """

    def __init__(self, conninfo: str, seed: int, large: float = 0.0) -> None:
        self._large = large
        self._random = random.Random(seed)  # noqa: S311 - a test has to repeat itself
        self._workload = Workload(seed)
        self._conninfo = conninfo
        options = f"-c lock_timeout={_LOCK_TIMEOUT_MS}"
        self._sessions = [
            psycopg.connect(conninfo, autocommit=True, options=options) for _ in range(_SESSIONS)
        ]
        #: By session: the savepoints of its transaction; None: it has none open.
        self._open: list[list[str] | None] = [None] * _SESSIONS
        self._prepared: list[str] = []
        #: How often each kind of step was done to its end.
        self.done: dict[str, int] = {}

    def __enter__(self) -> RandomSessions:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for session in self._sessions:
            session.close()

    def run(self, steps: int) -> None:
        """Do some steps; afterwards end every transaction."""
        for _ in range(steps):
            self._step()
        for number in range(_SESSIONS):
            if self._open[number] is not None:
                self._end(number)
        while self._prepared:
            self._end_prepared()

    def _step(self) -> None:
        number = self._random.randrange(_SESSIONS)
        # Not asked for without need: the same seeds go on doing the same.
        if self._large and self._random.random() < self._large:
            self._large_subtransaction(number)
            return
        choice = self._random.random()
        if choice < 0.15 and self._prepared:
            self._end_prepared()
        elif self._open[number] is None:
            if choice < 0.5:
                self._try(number, "begin", "BEGIN")
                self._open[number] = []
                if self._random.random() < 0.6:
                    self._savepoint(number)
            else:
                self._row(number)
        elif choice < 0.45:
            self._row(number)
        elif choice < 0.7:
            self._shape(number)
        elif choice < 0.82:
            self._savepoint(number)
        else:
            self._end(number)

    def _row(self, number: int) -> None:
        if self._random.random() < 0.15:
            self._many_rows(number)
            return
        _, statement, arguments = self._workload.statement()
        self._try(number, "row", statement, arguments)

    def _many_rows(self, number: int) -> None:
        """Enough for a server before 16 to stream them."""
        self._insert(number, "many rows", self._random.randint(100, 160))

    def _insert(self, number: int, what: str, start: int) -> None:
        statement = (
            "INSERT INTO journal SELECT g, repeat('j', %s) FROM generate_series(%s::int, %s::int) g"
            " ON CONFLICT (id) DO UPDATE SET v = overlay(journal.v placing 'k' from 1)"
        )
        given = (_LARGE_ROW_BYTES, start, start + _LARGE_ROWS)
        self._try(number, what, statement, given)

    def _large_subtransaction(self, number: int) -> None:
        """A savepoint and more behind it than 64 kB, often rolled back: alone, or with its transaction."""
        if self._open[number] is None:
            self._try(number, "begin", "BEGIN")
            self._open[number] = []
            if self._random.random() < 0.5:
                self._row(number)
        for _ in range(self._random.choice((1, 1, 2))):
            if self._open[number] is None:
                return
            self._savepoint(number, is_new=True)
            if self._random.random() < 0.2:
                self._shape(number)
            # Rows of its own, so that no other session waits for them.
            start = 1000 * (number + 1) + self._random.choice((0, 25))
            self._insert(number, "large subtransaction", start)
        if self._open[number] is None:
            return
        choice = self._random.random()
        if choice < 0.35:
            self._savepoint(number, is_new=False)
        elif choice < 0.65:
            self._try(number, "rollback", "ROLLBACK")
            self._open[number] = None
        elif choice < 0.85:
            self._end(number)

    def _shape(self, number: int) -> None:
        """Add, rename, swap, drop, replace or retype columns of ``account``; its first four stay."""
        session = self._sessions[number]
        kinds = self._columns(session)
        columns = list(kinds)
        choice = self._random.random()
        kind, fresh = self._random.choice(_TYPES), self._random.choice(_NAMES)
        name = self._random.choice(columns) if columns else ""
        if choice < 0.35 or not columns:
            self._try(number, "add", f"ALTER TABLE account ADD {fresh} {kind}")
        elif choice < 0.55:
            self._try(number, "use", f"UPDATE account SET {name} = '7' WHERE id % 2 = 0")
        elif choice < 0.7:
            self._try(number, "rename", f"ALTER TABLE account RENAME {name} TO {fresh}")
        elif choice < 0.75:
            self._swap(number, name, self._random.choice(columns))
        elif choice < 0.87:
            self._try(number, "drop", f"ALTER TABLE account DROP {name}")
        elif choice < 0.93:
            self._try(number, "replace", f"ALTER TABLE account DROP {name}, ADD {name} {kind}")
        else:
            kind = self._random.choice(("text", _RETYPES.get(kinds[name], "text")))
            self._try(number, "retype", f"ALTER TABLE account ALTER {name} TYPE {kind}")

    def _swap(self, number: int, one: str, two: str) -> None:
        """Give two columns each other's names, in one statement."""
        renames = ((one, "spare"), (two, one), ("spare", two))
        steps = "; ".join(f"ALTER TABLE account RENAME {old} TO {new}" for old, new in renames)
        self._try(number, "swap", f"DO $$ BEGIN {steps}; END $$")

    @staticmethod
    def _columns(session: psycopg.Connection[Any]) -> dict[str, str]:
        """The types of the columns that were added."""
        rows = session.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = 'account'::regclass AND attnum > 4"
            " AND NOT attisdropped ORDER BY attnum"
        ).fetchall()
        return dict(rows)

    def _savepoint(self, number: int, *, is_new: bool | None = None) -> None:
        """Make a savepoint, or end one; None: either."""
        savepoints = self._open[number]
        assert savepoints is not None, "the caller chose an open transaction"
        if not savepoints or (self._random.random() < 0.5 if is_new is None else is_new):
            name = f"s{len(savepoints)}"
            if self._try(number, "savepoint", f"SAVEPOINT {name}"):
                savepoints.append(name)
            return
        place = self._random.randrange(len(savepoints))
        if self._random.random() < 0.7:
            self._try(number, "rollback to", f"ROLLBACK TO {savepoints[place]}")
            del savepoints[place + 1 :]
        else:
            self._try(number, "release", f"RELEASE {savepoints[place]}")
            del savepoints[place:]

    def _end(self, number: int) -> None:
        choice = self._random.random()
        if choice < 0.15:
            self._try(number, "rollback", "ROLLBACK")
        elif choice < 0.45 and len(self._prepared) < _MOST_PREPARED:
            gid = f"g{self._random.randint(1, 3)}'"
            if gid in self._prepared:
                self._try(number, "commit", "COMMIT")
            elif self._try(number, "prepare", f"PREPARE TRANSACTION {_literal(gid)}"):
                self._prepared.append(gid)
        else:
            self._try(number, "commit", "COMMIT")
        self._open[number] = None

    def _end_prepared(self) -> None:
        gid = self._prepared.pop(self._random.randrange(len(self._prepared)))
        how = "COMMIT" if self._random.random() < 0.7 else "ROLLBACK"
        with psycopg.connect(self._conninfo, autocommit=True) as session:
            session.execute(f"{how} PREPARED {_literal(gid)}")
        self._count(f"{how.lower()} prepared")

    def _try(self, number: int, what: str, statement: str, arguments: Any = None) -> bool:
        """Run a statement; when it fails, roll back to the last savepoint or to the beginning."""
        session = self._sessions[number]
        try:
            session.execute(statement.encode(), arguments)
        except psycopg.Error:
            savepoints = self._open[number]
            if savepoints:
                session.execute(f"ROLLBACK TO {savepoints[-1]}".encode())
            else:
                session.execute("ROLLBACK")
                self._open[number] = None
            self._count("failed")
            return False
        self._count(what)
        return True

    def _count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1


def _literal(text: str) -> str:
    return sql.quote(text)
