"""A condition means the same to PostgreSQL, as SQL of ours, and for values of the stream in both forms."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from airflow_provider_pgoutput.capture.filters.conditions import TypedColumn, TypedCondition
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_types
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.filters import parse_condition
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo

#: By type: values, and constants to compare them with.
TYPES: dict[str, tuple[list[str], list[str]]] = {
    "smallint": (["-32768", "0", "7", "32767"], ["7", "7.5", "-0.1", "40000", "-7"]),
    "integer": (["-2147483648", "0", "10", "2147483647"], ["10", "9.99", "2147483648", "1e0"[0]]),
    "bigint": (
        ["-9223372036854775808", "-1", "9007199254740993", "9223372036854775807"],
        [
            "9007199254740993",
            "9223372036854775807",
            "9223372036854775808",
            "-9223372036854775809.5",
        ],
    ),
    "real": (
        ["NaN", "Infinity", "-Infinity", "-0", "0.1", "1.5", "3e38"],
        ["0.1", "1.5", "0", "-2"],
    ),
    "double precision": (
        ["NaN", "Infinity", "-Infinity", "-0", "0.1", "0.30000000000000004", "1e300"],
        ["0.1", "0.3", "0", "-1", "0.30000000000000004"],
    ),
    "numeric": (
        [
            "NaN",
            "Infinity",
            "-Infinity",
            "0",
            "0.00",
            "-0.5",
            "1.50",
            "10",
            "9.99",
            "123456789012345678901234",
        ],
        ["1.5", "10", "0", "-0.50", "9.990000001", "123456789012345678901234", "00.5"],
    ),
    "numeric(12,2)": (
        ["NaN", "0", "-3.10", "10.00", "9.99"],
        ["10", "9.990", "9.995", "-3.1", "0"],
    ),
    "boolean": (["true", "false"], ["TRUE", "false"]),
    "text": (
        ["", "eu", "EU", "eu ", "ü", "it's", "a\\b", '"'],
        ["'eu'", "''", "'it''s'", "'a\\b'", "'ü'"],
    ),
    "varchar(9)": (["", "eu", "eu "], ["'eu'", "'eu '"]),
    "char(4)": (["", "eu", " eu"], ["'eu'", "'eu  '", "''", "' eu'"]),
    "uuid": (
        ["00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
        ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'10000000-0000-0000-0000-000000000000'"],
    ),
    "date": (
        ["infinity", "-infinity", "0044-03-15 BC", "0001-01-01", "2026-01-31", "10000-01-01"],
        ["'2026-01-31'", "'0001-01-01'", "'9999-12-31'"],
    ),
    "timestamp": (
        [
            "infinity",
            "-infinity",
            "0044-03-15 BC",
            "2026-01-31 12:00",
            "2026-01-31 12:00:00.5",
            "10000-01-01",
        ],
        ["'2026-01-31 12:00:00'", "'2026-01-31T12:00:00.500'", "'9999-12-31 23:59:59.999999'"],
    ),
    "timestamptz": (
        [
            "infinity",
            "-infinity",
            "0044-03-15 BC",
            "2026-01-31 12:00+00",
            "2026-01-31 12:00:00.5+02",
        ],
        ["'2026-01-31 12:00:00+00'", "'2026-01-31 10:00:00.5Z'", "'2026-01-31 13:00:00+01:00'"],
    ),
    "whole": (["1", "99"], ["1", "50"]),
    "word": (["a", "b"], ["'a'", "'c'"]),
}
WITHOUT_ORDER = {"text", "varchar(9)", "char(4)", "word", "boolean"}
OPERATORS = ("=", "<>", "!=", "<", "<=", ">", ">=")


@pytest.fixture
def session(postgres_database: str) -> Iterator[Session]:
    with psycopg.connect(postgres_database, autocommit=True) as owner:
        owner.execute("CREATE DOMAIN public.whole AS int")
        owner.execute("CREATE DOMAIN public.word AS varchar(5)")
    with sessions.connect(postgres_database) as found:
        yield found


def of_type(kind: str) -> str:
    return f"public.{kind}" if kind in {"whole", "word"} else kind


class Rows:
    """A table of the server, and its values as the stream would have them."""

    def __init__(
        self, session: Session, kinds: Mapping[str, str], rows: list[tuple[str | None, ...]]
    ) -> None:
        self._session = session
        listed = ", ".join(f"{name} {of_type(kind)}" for name, kind in kinds.items())
        session.execute(f"CREATE TEMP TABLE t(n int, {listed})")
        places = ", ".join(f"%s::{of_type(kind)}" for kind in kinds.values())
        with session.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO t VALUES (%s, {places})",
                [(number, *row) for number, row in enumerate(rows)],
            )
        found = session.execute(
            "SELECT attname::text, atttypid::int8, atttypmod FROM pg_catalog.pg_attribute"
            " WHERE attrelid = 'pg_temp.t'::regclass AND attnum > 1 ORDER BY attnum"
        ).fetchall()
        self.columns = [TypedColumn(*each) for each in found]
        self.types: Mapping[int, TypeInfo] = read_types(session)
        self.text, self.binary = self._sent(binary=False), self._sent(binary=True)

    def _sent(self, *, binary: bool) -> dict[str, pa.Array]:
        with self._session.cursor(binary=binary) as cursor:
            cursor.execute("SELECT * FROM pg_temp.t ORDER BY n")
            result = cursor.pgresult
            assert result is not None
            return {
                each.name: pa.array(
                    [result.get_value(row, column + 1) for row in range(result.ntuples)],
                    pa.binary(),
                )
                for column, each in enumerate(self.columns)
            }

    def by_server(self, condition: str) -> set[int]:
        return {
            number
            for (number,) in self._session.execute(f"SELECT n FROM pg_temp.t WHERE {condition}")
        }

    def check(self, text: str) -> None:
        """The condition in the user's words, as SQL of ours, and for the stream's values, is the same."""
        typed = TypedCondition(
            parse_condition(text, "a test"), self.columns, self.types, "public.t"
        )
        expected = self.by_server(text)
        assert self.by_server(typed.sql) == expected, text
        again = TypedCondition(
            parse_condition(str(parse_condition(text, "a test")), "a test"),
            self.columns,
            self.types,
            "public.t",
        )
        assert again.sql == typed.sql
        for values, is_binary in ((self.text, False), (self.binary, True)):
            passes = typed.passes({name: (raw, is_binary) for name, raw in values.items()})
            assert {n for n, each in enumerate(passes) if each} == expected, (text, is_binary)
        mixed = {
            name: (
                pa.array(
                    [(raw if n % 2 else self.binary[name])[n].as_py() for n in range(len(raw))],
                    pa.binary(),
                ),
                pa.array([n % 2 == 0 for n in range(len(raw))]).to_numpy(zero_copy_only=False),
            )
            for name, raw in self.text.items()
        }
        assert {n for n, each in enumerate(typed.passes(mixed)) if each} == expected, text


@pytest.mark.parametrize("kind", TYPES)
def test_each_comparison_of_each_type_is_the_servers(session: Session, kind: str) -> None:
    values, constants = TYPES[kind]
    rows = Rows(session, {"v": kind}, [(each,) for each in (*values, None)])
    operators = OPERATORS[:3] if kind in WITHOUT_ORDER else OPERATORS
    for operator, constant in itertools.product(operators, constants):
        rows.check(f"v {operator} {constant}")
        rows.check(f"{constant} {operator} v")
        rows.check(f"NOT v {operator} {constant}")
    listed = constants[0] if kind == "real" else ", ".join(constants)
    rows.check(f"v IN ({listed})")
    rows.check(f"v NOT IN ({listed})")
    rows.check("v IS NULL")
    rows.check("v IS NOT NULL")
    if kind == "boolean":
        rows.check("v")
        rows.check("NOT v")


def some_condition(chance: random.Random, kinds: Mapping[str, str], depth: int = 0) -> str:
    form = chance.random()
    if depth < 4 and form < 0.55:
        parts = [some_condition(chance, kinds, depth + 1) for _ in range(chance.choice((2, 2, 3)))]
        joined = chance.choice((" AND ", " or ")).join(parts)
        if form < 0.2:
            # AND binds more than OR, for both.
            return joined
        return f"({joined})" if form < 0.4 else f"NOT ({joined})"
    name = chance.choice(list(kinds))
    kind = kinds[name]
    constant = chance.choice(TYPES[kind][1])
    if form < 0.62:
        return f"{name} IS {chance.choice(('', 'NOT '))}NULL"
    if form < 0.7:
        return f"{name} {chance.choice(('', 'not '))}in ({constant})"
    if kind == "boolean" and form < 0.9:
        return name
    return (
        f"{name} {chance.choice(OPERATORS[:3] if kind in WITHOUT_ORDER else OPERATORS)} {constant}"
    )


@pytest.mark.parametrize("seed", slow_but_each(6, range(12)))
def test_random_conditions_are_the_servers(session: Session, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test has to repeat itself
    kinds = {f"c{n}": kind for n, kind in enumerate(chance.sample(list(TYPES), 5))}
    rows = Rows(
        session,
        kinds,
        [
            tuple(chance.choice([None, *TYPES[kind][0]]) for kind in kinds.values())
            for _ in range(200)
        ],
    )
    for _ in range(40):
        text = some_condition(chance, kinds)
        rows.check(text)


@pytest.mark.parametrize(
    ("kind", "condition", "words"),
    [
        ("text", "v < 'a'", "< is not decided for this type"),
        ("text", "v = 1", "compared with a text in single quotes"),
        ("integer", "v = '1'", "compared with a number, without quotes"),
        ("real", "v IN (1, 0.1)", "IN with several numbers is not decided"),
        ("boolean", "v = 1", "compared with TRUE or FALSE"),
        ("boolean", "v > FALSE", "> is not decided"),
        ("integer", "v", "only a boolean column"),
        ("date", "v = '2026-02-30'", "no such day"),
        ("date", "v = '01/31/2026'", "a date is a text like"),
        ("timestamp", "v = '2026-01-31 12:00+00'", "without a time zone"),
        ("timestamptz", "v = '2026-01-31 12:00'", "with its offset"),
        ("uuid", "v = 'a'", "a uuid is a text like"),
        ("jsonb", "v = '1'", "values of this type are not compared"),
        ("interval", "v > '1 day'", "values of this type are not compared"),
        ("integer[]", "v IN ('{1}')", "values of this type are not compared"),
        ("double precision", f"v > {'9' * 99}{'9' * 9}", "at most 100 digits"),
        ("real", f"v > 0.{'0' * 97}1", ""),
        ("integer", "w = 1", "no such column is published"),
    ],
)
def test_what_cannot_be_decided_is_refused(
    session: Session, kind: str, condition: str, words: str
) -> None:
    rows = Rows(session, {"v": kind}, [(None,)])
    if not words:
        rows.check(condition)
        return
    with pytest.raises(ConfigurationError, match=words):
        TypedCondition(parse_condition(condition, "a test"), rows.columns, rows.types, "public.t")


def test_is_null_of_any_type_but_a_composite(session: Session) -> None:
    session.execute("CREATE TYPE pg_temp.pair AS (a int, b int)")
    rows = Rows(
        session,
        {"j": "jsonb", "a": "integer[]", "i": "interval"},
        [(None,) * 3, ("1", "{}", "1 s")],
    )
    for name in "jai":
        rows.check(f"{name} IS NULL")
    session.execute("ALTER TABLE t ADD pair pg_temp.pair")
    (column,) = session.execute(
        "SELECT attname::text, atttypid::int8, atttypmod FROM pg_catalog.pg_attribute"
        " WHERE attrelid = 'pg_temp.t'::regclass AND attname = 'pair'"
    ).fetchall()
    with pytest.raises(ConfigurationError, match="composite type"):
        TypedCondition(
            parse_condition("pair IS NULL", "a test"),
            [TypedColumn(*column)],
            read_types(session),
            "public.t",
        )
