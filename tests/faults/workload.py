"""Random transactions on three tables, from a seed: what the fault tests let the source do.

``account`` has a key and a TOASTed column, ``bag`` is a multiset with replica identity full, and
``journal`` is followed as a change log. What is not here: any knowledge of the lake.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

SETUP = (
    "CREATE TABLE account(id int primary key, name text, large text, amount numeric(8,2))",
    "ALTER TABLE account ALTER large SET STORAGE EXTERNAL",
    "CREATE TABLE bag(x int, y text)",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    "CREATE TABLE journal(id int primary key, v text)",
    "CREATE PUBLICATION p FOR TABLE account, bag, journal",
    "INSERT INTO account SELECT i, 'n' || i, repeat('x', i * 400), i FROM generate_series(1, 12) i",
    "INSERT INTO bag SELECT i % 4, nullif('y' || i % 3, 'y0') FROM generate_series(1, 12) i",
    "INSERT INTO journal SELECT i, 'v' || i FROM generate_series(1, 6) i",
)
UPSERT_TABLES = ("account", "bag")
LOG_TABLE = "journal"
_KEYS = 20


class Workload:
    """A source of transactions; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a test has to repeat itself
        #: Row changes of ``journal`` that were committed, those of the initial rows not counted.
        self.journal_changes = 0

    def transactions(self, session: psycopg.Connection[Any], count: int) -> None:
        """Run ``count`` transactions; some roll back in part or as a whole."""
        for _ in range(count):
            self._transaction(session)

    def _transaction(self, session: psycopg.Connection[Any]) -> None:
        counted = 0
        session.execute("BEGIN")
        for _ in range(self._random.randint(1, 4)):
            if self._random.random() < 0.2:
                session.execute("SAVEPOINT s")
                self._change(session)
                session.execute("ROLLBACK TO s")
            else:
                counted += self._change(session)
        if self._random.random() < 0.1:
            session.execute("ROLLBACK")
        else:
            session.execute("COMMIT")
            self.journal_changes += counted

    def _change(self, session: psycopg.Connection[Any]) -> int:
        """Run one statement; return how many row changes of ``journal`` it made."""
        table, statement, arguments = self.statement()
        changed = session.execute(statement, arguments).rowcount
        if table != LOG_TABLE:
            return 0
        return 1 if statement.startswith("TRUNCATE") else changed

    def statement(self) -> tuple[str, str, tuple[Any, ...]]:
        key, other = self._random.randint(1, _KEYS), self._random.randint(1, _KEYS)
        mark = f"mark{self._random.randint(0, 999)}"
        size = self._random.choice((0, 10, 9000))
        letter = self._random.choice("abc")
        return self._random.choices(
            (
                (
                    "account",
                    (
                        "INSERT INTO account VALUES (%s, %s, repeat(%s, %s), %s)"
                        " ON CONFLICT (id) DO UPDATE SET name = excluded.name"
                    ),
                    (key, mark, letter, size, key),
                ),
                ("account", "UPDATE account SET amount = amount + 1 WHERE id <= %s", (key,)),
                (
                    "account",
                    "UPDATE account SET large = repeat(%s, %s), name = NULL WHERE id = %s",
                    (letter, size, key),
                ),
                (
                    "account",
                    (
                        "UPDATE account SET id = %s WHERE id = %s"
                        " AND NOT EXISTS (SELECT FROM account WHERE id = %s)"
                    ),
                    (other, key, other),
                ),
                ("account", "DELETE FROM account WHERE id = %s", (key,)),
                ("account", "TRUNCATE account", ()),
                ("bag", "INSERT INTO bag VALUES (%s, nullif(%s, 'a'))", (key % 4, letter)),
                (
                    "bag",
                    (
                        "UPDATE bag SET x = x + (y IS NOT NULL)::int, y = coalesce(y, 'n')"
                        " WHERE ctid = (SELECT ctid FROM bag WHERE x = %s LIMIT 1)"
                    ),
                    (key % 4,),
                ),
                (
                    "bag",
                    "DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag WHERE x >= %s LIMIT 1)",
                    (key % 4,),
                ),
                ("bag", "TRUNCATE bag", ()),
                (
                    "journal",
                    (
                        "INSERT INTO journal VALUES (%s, %s)"
                        " ON CONFLICT (id) DO UPDATE SET v = excluded.v"
                    ),
                    (key, mark),
                ),
                ("journal", "DELETE FROM journal WHERE id = %s", (key,)),
                ("journal", "TRUNCATE journal", ()),
            ),
            weights=(6, 3, 3, 3, 3, 0.5, 6, 3, 3, 0.5, 6, 3, 0.5),
        )[0]
