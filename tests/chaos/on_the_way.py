"""What a user does to data on the way to the lake: masks, filters, other names, constants, histories.

It is drawn for the tables that a program begins with. The arguments name tables and columns, but a program
renames them. Example: a user masks ``t.email``, and it becomes ``t.mail``. So this remembers the OID of each
table and the number of each column. When a run is refused, it writes the arguments with the names of now.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from tests.chaos import refusals, slices

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from tests.chaos.options import Options
    from tests.chaos.tasks import Refusal

SECRET = "a secret of random programs"
HASH = "hash"
_MASKS = (HASH, "redact", "truncate(2)", "null", "drop")
#: Each published column: its table's OID and name, its number and name, whether rows are found by it, whether
#: the server sends its old value, its type, and whether texts of it are equal only if their bytes are.
_COLUMNS = """
SELECT c.oid::int, format('%%s.%%s', t.schemaname, t.tablename), a.attnum::int, a.attname,
       c.relreplident = 'f' OR c.relkind = 'p' OR coalesce(k.is_key, false),
       c.relreplident = 'f' AND c.relkind = 'r' OR coalesce(k.is_sent, false),
       format_type(a.atttypid, NULL), coalesce(l.collisdeterministic, true)
  FROM (SELECT DISTINCT schemaname, tablename, unnest(attnames) AS attname
          FROM pg_publication_tables WHERE pubname = ANY (%s)) t
  JOIN pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = t.attname
       -- Before version 18 the list has generated columns, which are not published.
       AND (a.attgenerated = '' OR current_setting('server_version_num')::int >= 180000)
  LEFT JOIN pg_collation l ON l.oid = a.attcollation
  LEFT JOIN LATERAL (
       SELECT true AS is_key,
              bool_or(CASE c.relreplident WHEN 'i' THEN i.indisreplident
                      ELSE i.indisprimary AND i.indimmediate END) AS is_sent
         FROM pg_index i
        WHERE i.indrelid = c.oid AND a.attnum = ANY (i.indkey) AND (i.indisprimary OR i.indisreplident)
       HAVING count(*) > 0) k ON true
 ORDER BY c.oid, a.attnum
"""
#: What a condition may say of a column, by its type.
_TESTS = {
    **dict.fromkeys(
        ("smallint", "integer", "bigint"),
        (
            "{} > 7",
            "{} <= 12",
            "{} NOT IN (3, 5, 8, 13)",
            "NOT ({} < 4)",
            "{} IN (1, 2, 3, 9, 11, 20)",
        ),
    ),
    "numeric": ("{} >= 4.5", "{} <> 3", "NOT ({} > 1000)"),
    "double precision": ("{} < 2", "{} <> 0"),
    "boolean": ("{}", "NOT {}", "{} = FALSE"),
    "text": ("{} <> 'a'", "{} NOT IN ('a', 'b', 'c', '')", "NOT ({} = 'b')"),
    "character varying": ("{} <> 'a'",),
    "character": ("{} = 'a'", "{} <> 'ab'"),
    "date": ("{} >= '2020-01-06'",),
    "uuid": ("{} > '80000000-0000-0000-0000-000000000000'",),
    "timestamp without time zone": ("{} < '2012-01-01 00:00:00'",),
    "timestamp with time zone": ("{} < '1999-12-31 22:00:05+00'",),
}


@dataclass(frozen=True)
class _Column:
    """A published column, as the catalog has it."""

    table: int
    table_name: str
    number: int
    name: str
    is_key: bool
    is_sent: bool
    kind: str
    is_plain: bool


@dataclass
class _Mask:
    """What a user means by an entry of ``columns``."""

    table: int
    number: int
    #: ``schema.table.column`` as the arguments name it.
    said: str
    word: str


@dataclass
class _Filter:
    """What a user means by an entry of ``filters``."""

    table: int
    #: ``schema.table`` as the arguments name it.
    said: str
    #: With ``{0}``, ``{1}`` in place of its columns.
    condition: str
    numbers: tuple[int, ...]


@dataclass
class OnTheWay:
    """The arguments of one pipeline, and the tables and columns that they mean."""

    conninfo: str
    publications: tuple[str, ...]
    #: The arguments of the stage task as they are now.
    columns: dict[str, str] = field(default_factory=dict)
    filters: dict[str, str] = field(default_factory=dict)
    #: Both, before they were written anew.
    _before: tuple[dict[str, str], dict[str, str]] = field(default_factory=lambda: ({}, {}))
    _masks: list[_Mask] = field(default_factory=list)
    _conditions: list[_Filter] = field(default_factory=list)

    def arguments(self) -> dict[str, Any]:
        """The arguments of the stage task; empty: nothing is drawn."""
        if not self._masks and not self._conditions:
            return {}
        return {"columns": self.columns, "filters": self.filters, "mask_secret": SECRET}

    def draw(self, chance: random.Random, names: Sequence[str], options: Options) -> None:
        """Draw all of it, and change the options that do not go with it.

        :param names: the tables at the beginning, ``schema.table``.
        """
        if chance.random() < 0.35:
            return
        columns = [each for each in self._published() if each.table_name in names]
        alike = slices.are_among(names)
        if chance.random() < 0.6:
            self._draw_masks(chance, columns, alike)
        if chance.random() < 0.6:
            self._draw_filters(chance, columns)
        self.say_again()
        if self.columns:
            options.stream |= {"two_phase": False, "streaming": None}
        if self.filters:
            options.stream["two_phase"] = False
        if chance.random() < 0.4:
            _draw_names(chance, columns, options)
        if chance.random() < 0.4:
            _draw_histories(chance, names, options)
        if chance.random() < 0.25:
            options.plan["target_names"] = chance.choice(
                ({r"public\.(.*)": "t_{1}"}, {r"(.+)\.(?P<name>.+)": "{1}_in_lake_{name}"})
            )
        if alike:
            slices.share(chance, alike, options)

    def words(self, options: Options) -> list[str]:
        """What is drawn, in words for counting."""
        found = [f"mask {word.partition('(')[0]}" for word in self.columns.values()]
        found += ["filter"] * len(self.filters) + ["names by pattern"] * (
            "target_names" in options.plan
        )
        modes = {
            "history"
            for each in (options.plan, *options.tables.values())
            if each.get("mode") == "history"
        }
        given = {name for table in options.tables.values() for name in table}
        found += ["shared"] if "shared" in given or "shared_names" in options.plan else []
        return [*found, *modes, *sorted(given & {"renamed_columns", "constant_columns"})]

    def _draw_masks(
        self, chance: random.Random, columns: Sequence[_Column], alike: Sequence[str]
    ) -> None:
        """Draw masks.

        :param alike: tables of one shape, which have the same masks.
        """
        of_first: dict[int, str] = {}
        for each in columns:
            if each.table_name in alike[1:]:
                word = of_first.get(each.number)
            elif chance.random() < (0.15 if each.is_key else 0.35):
                word = HASH if each.is_key else chance.choice(_MASKS)
            else:
                word = None
            if word is not None:
                self._masks.append(_Mask(each.table, each.number, "", word))
                if each.table_name in alike:
                    of_first[each.number] = word

    def _draw_filters(self, chance: random.Random, columns: Sequence[_Column]) -> None:
        for table in sorted({each.table for each in columns}):
            possible = [
                each for each in columns if each.table == table and each.is_sent and each.is_plain
            ]
            if not possible or chance.random() < 0.4:
                continue
            chosen = [chance.choice(possible) for _ in range(chance.choice((1, 1, 2)))]
            tests = [_test(chance, each, place) for place, each in enumerate(chosen)]
            joined = chance.choice((" AND ", " OR ")).join(each for each in tests if each)
            if joined:
                numbers = tuple(each.number for each in chosen)
                self._conditions.append(_Filter(table, "", joined, numbers))

    def _published(self) -> list[_Column]:
        with psycopg.connect(self.conninfo) as session:
            rows = session.execute(_COLUMNS.encode(), (list(self.publications),)).fetchall()
        return [_Column(*row) for row in rows]

    def say_again(self) -> bool:
        """Write the arguments with the names of now.

        A table may have been made again, so that its OID is gone. Then it is found by its name.

        :return: whether the arguments are others than before.
        """
        before = self.columns, self.filters
        published = self._published()
        by_number = {(each.table, each.number): each for each in published}
        by_name = {f"{each.table_name}.{each.name}": each for each in published}
        self.columns, self.filters = {}, {}
        for mask in self._masks:
            found = by_number.get((mask.table, mask.number)) or by_name.get(mask.said)
            if found is not None:
                mask.said = f"{found.table_name}.{found.name}"
                self.columns.setdefault(mask.said, mask.word)
        names = {each.table: each.table_name for each in published}
        oids = {name: oid for oid, name in names.items()}
        for each in self._conditions:
            oid = each.table if each.table in names else oids.get(each.said)
            columns = [by_number.get((oid or 0, number)) for number in each.numbers]
            if oid is not None and None not in columns:
                each.said = names[oid]
                shown = each.condition.format(*(column.name for column in columns if column))
                self.filters.setdefault(each.said, shown)
        if (self.columns, self.filters) == before:
            return False
        self._before = before
        return True

    def take(self, way: str, refusal: Refusal) -> list[str]:
        """Follow an advice; return the tables that have to be copied for it."""
        table = refusal.table
        if way == refusals.SAY_AGAIN:
            return [] if self.say_again() or table is None else [table]
        if way == refusals.SAID_BEFORE:
            self.columns, self.filters = self._before
            return []
        assert table is not None, refusal
        if way == refusals.USE_HASH:
            for mask in self._masks:
                if mask.said == f"{table}.{refusal.column}":
                    mask.word = HASH
        elif way == refusals.NO_FILTER:
            self._conditions = [each for each in self._conditions if each.said != table]
        self.say_again()
        return [table]


def _test(chance: random.Random, column: _Column, place: int) -> str:
    """A test of a column; empty: none is possible for its type."""
    possible = _TESTS.get(column.kind, ())
    if not possible or chance.random() < 0.1:
        return f"{{{place}}} IS NOT NULL" if possible else ""
    return chance.choice(possible).replace("{}", f"{{{place}}}")


def _draw_names(chance: random.Random, columns: Sequence[_Column], options: Options) -> None:
    """Other names in the lake, and columns that only the lake has."""
    for name in sorted({each.table_name for each in columns}):
        table = options.tables.setdefault(name, {})
        mine = [each.name for each in columns if each.table_name == name]
        if chance.random() < 0.5 and not table.get("partitioned_by"):
            chosen = chance.sample(mine, min(len(mine), chance.choice((1, 2))))
            table["renamed_columns"] = {each: f"lake_{each}" for each in chosen}
        if chance.random() < 0.4:
            table["constant_columns"] = {"came_from": name}


def _draw_histories(chance: random.Random, names: Sequence[str], options: Options) -> None:
    """Tables that keep each version of their rows."""
    if chance.random() < 0.3 and options.plan["mode"] == "upsert":
        options.plan |= {"mode": "history", "soft_delete": False}
        return
    for name in names:
        table = options.tables.setdefault(name, {})
        if "mode" not in table and chance.random() < 0.5:
            table["mode"] = "history"
