"""Random trees of partitions whose replica identities differ, and random changes of their rows.

One table in five has no partitions, and its own identity is changed.

Statements that the source refuses are part of a program: no identity, no partition, a key that is there.
What is not here: reading them and judging what comes of it (``test_partition_identity.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

_COLUMNS = {
    "p": "int NOT NULL",
    "a": "int NOT NULL",
    "u": "int NOT NULL",
    "v": "int",
    "t": "text",
}
#: Sets of columns with which rows are told apart; each partition column is in some of them.
_KEYS = (("a",), ("p", "a"), ("u",), ("p", "u"), ("a", "u"), ("p", "a", "u"))
_BOUNDS = ((0, 10), (10, 20), (20, 30), (30, 40))
_LARGE = "repeat('x', 2500)"


class Program:
    """A tree and what happens to it; the same for the same numbers."""

    def __init__(self, numbers: random.Random) -> None:
        self._numbers = numbers
        self._by = numbers.choice("pa")
        #: Names of the leaves that are there, in any level.
        self._leaves: list[str] = []
        #: Indexes that may be a replica identity, by table.
        self._indexes: dict[str, list[str]] = {}
        self._made = 0
        #: Keys of the root.
        self._unique: list[tuple[str, ...]] = []
        self.setup = tuple(self._setup())
        #: What the stage task is given; None: nothing.
        self.key_columns = self._key_columns()

    def changes(self, count: int) -> Iterator[tuple[str, ...]]:
        """Transactions; the statements of each."""
        for _ in range(count):
            statements = [self._statement() for _ in range(self._numbers.choice((1, 1, 1, 2, 5)))]
            yield tuple(statements)

    def all_full(self) -> tuple[str, ...]:
        """Statements after which every partition sends whole old rows."""
        tables = ("r", *self._leaves)
        return tuple(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in tables)

    def _key_columns(self) -> tuple[str, ...] | None:
        """A key that is unique: as the pipeline is told to take it, nothing else is known of it."""
        if not self._unique or self._numbers.random() < 0.7:
            return None
        unique = self._numbers.choice(self._unique)
        return self._numbers.choice([key for key in _KEYS if set(unique) <= set(key)])

    def _setup(self) -> Iterator[str]:
        numbers = self._numbers
        columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
        is_root = numbers.random() < 0.8
        by = f" PARTITION BY RANGE ({self._by})" if is_root else ""
        yield f"CREATE TABLE r ({columns}){by}"
        yield "ALTER TABLE r ALTER t SET STORAGE EXTERNAL"
        self._indexes["r"] = []
        usable = [key for key in _KEYS if self._by in key]
        if numbers.random() < 0.8:
            deferrable = " DEFERRABLE" if numbers.random() < 0.15 else ""
            key = numbers.choice(usable)
            self._unique += [key] if not deferrable else []
            yield f"ALTER TABLE r ADD CONSTRAINT r_key PRIMARY KEY ({', '.join(key)}){deferrable}"
        for _ in range(numbers.choice((0, 1, 1, 2))):
            self._unique.append(numbers.choice(usable))
            yield self._index("r", self._unique[-1])
        for bounds in _BOUNDS if is_root else ():
            yield from self._leaf(bounds)
        yield from self._identity("r")
        yield (
            "INSERT INTO r SELECT g % 40, g % 40, g % 40, g, CASE g % 3 WHEN 0 THEN "
            + _LARGE
            + " END FROM generate_series(0, 38, 2) g"
        )
        yield "CREATE PUBLICATION p FOR TABLE r WITH (publish_via_partition_root)"

    def _leaf(self, bounds: tuple[int, int]) -> Iterator[str]:
        """A partition, perhaps with columns in another order, perhaps one level deeper."""
        numbers = self._numbers
        self._made += 1
        name, parent = f"r_{self._made}", "r"
        span = f"FOR VALUES FROM ({bounds[0]}) TO ({bounds[1]})"
        if numbers.random() < 0.2:
            parent = f"{name}_m"
            yield f"CREATE TABLE {parent} PARTITION OF r {span} PARTITION BY RANGE ({self._by})"
        if numbers.random() < 0.5:
            order = numbers.sample(list(_COLUMNS.items()), len(_COLUMNS))
            columns = ", ".join(f"{column} {kind}" for column, kind in order)
            yield f"CREATE TABLE {name} ({columns})"
            yield f"ALTER TABLE {name} ALTER t SET STORAGE EXTERNAL"
            yield f"ALTER TABLE {parent} ATTACH PARTITION {name} {span}"
        else:
            yield f"CREATE TABLE {name} PARTITION OF {parent} {span}"
        self._leaves.append(name)
        self._indexes[name] = []
        if numbers.random() < 0.3:
            # Refused where the root has a primary key.
            yield f"ALTER TABLE {name} ADD PRIMARY KEY ({', '.join(numbers.choice(_KEYS))})"
        for _ in range(numbers.choice((0, 1, 2))):
            yield self._index(name, numbers.choice(_KEYS))
        if numbers.random() < 0.4:
            yield from self._identity(name)

    def _index(self, table: str, key: tuple[str, ...]) -> str:
        name = f"{table}_i{len(self._indexes[table])}"
        self._indexes[table].append(name)
        return f"CREATE UNIQUE INDEX {name} ON {table} ({', '.join(key)})"

    def _identity(self, table: str) -> Iterator[str]:
        identities = ["DEFAULT", "DEFAULT", "FULL", "NOTHING"]
        identities += [f"USING INDEX {index}" for index in self._indexes[table] * 2]
        yield f"ALTER TABLE {table} REPLICA IDENTITY {self._numbers.choice(identities)}"

    def _statement(self) -> str:
        numbers = self._numbers
        kind = numbers.choices(
            ("update", "move", "key", "insert", "delete", "leaf", "root", "truncate"),
            (6, 3, 4, 5, 3, 1.5, 0.6, 0.1),
        )[0]
        if kind == "insert":
            place = numbers.randrange(40)
            other = [numbers.randrange(40) for _ in range(3)]
            value = numbers.choice((_LARGE, "'short'", "NULL"))
            p, a = (place, other[0]) if self._by == "p" else (other[0], place)
            return f"INSERT INTO r VALUES ({p}, {a}, {other[1]}, {other[2]}, {value})"
        if kind in ("leaf", "root"):
            is_leaf = kind == "leaf" and self._leaves
            return next(self._identity(numbers.choice(self._leaves) if is_leaf else "r"))
        if kind == "truncate":
            return "TRUNCATE r"
        where = f"WHERE {numbers.choice('pauv')} % 7 = {numbers.randrange(7)}"
        if numbers.random() < 0.3:
            where += f" AND {self._by} / 10 = {numbers.randrange(4)}"
        if kind == "delete":
            return f"DELETE FROM r {where} AND v % 2 = {numbers.randrange(2)}"
        if kind == "update":
            change = numbers.choice(("v = v + 1", "v = NULL", f"t = {_LARGE}", "t = NULL"))
        else:
            column = self._by if kind == "move" else numbers.choice("pau")
            step = numbers.choice((1, 2, 13, -1, -11))
            change = f"{column} = abs({column} + {step}) % 40"
        return f"UPDATE r SET {change} {where}"
