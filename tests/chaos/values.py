"""Random values of any type of the source, as SQL expressions.

The catalog tells what a type is made of at this moment, so labels and attributes that were added are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import sql

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    import psycopg

_TYPE = """
SELECT t.typname, t.typtype::text, t.typcategory::text, format_type(t.oid, NULL), t.typelem::int,
       t.typbasetype::int, t.typrelid::int
  FROM pg_type t WHERE t.oid = %s
"""
_LABELS = "SELECT enumlabel FROM pg_enum WHERE enumtypid = %s ORDER BY enumsortorder"
_ATTRIBUTES = """
SELECT atttypid::int FROM pg_attribute
 WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
WORDS = (
    *(
        "",
        "a",
        "A",
        "b",
        "B",
        "ä",
        "Ä",
        "ß",
        "ss",
        "SS",
        "æ",
        "ae",
        "x y",
        "NULL",
        "null",
        "{}",
        "日本",
    ),
    *(
        "tab\there",
        "quote'",
        'double"',
        "back\\slash",
        "comma,",
        "(paren)",
        "🙂",
        " lead",
        "trail ",
    ),
)
#: About 4 kB that do not compress, so that a row of it is TOASTed.
_LARGE = "(SELECT string_agg(md5(({0} + i)::text), '') FROM generate_series(1, 130) i)"


class _Type(NamedTuple):
    name: str
    kind: str
    category: str
    written: str
    element: int
    base: int
    relation: int


class Values:
    """Makes expressions for one session.

    :param odd: how often a value is one that its type in the lake may not hold.
    """

    def __init__(self, session: psycopg.Connection[Any], chance: random.Random, odd: float) -> None:
        self._session, self._chance, self._odd = session, chance, odd

    def of(self, type_oid: int, *, nullable: bool, few: bool = False) -> str:
        """A value.

        :param few: one of a few, so that keys meet.
        """
        if nullable and self._chance.random() < 0.15:
            return "NULL"
        return self._of(type_oid, few, 0)

    def numbered(self, type_oid: int) -> str:
        """A value that differs from row to row, made of ``g``, where the type has so many; else any."""
        kind = self._type(type_oid)
        if kind.kind == "d":
            return f"CAST({self.numbered(kind.base)} AS {kind.written})"
        made = {
            "int2": "(g % 30000)::int2",
            "int4": "g",
            "int8": "g::int8",
            "numeric": "g",
            "text": "'t' || g",
            "varchar": "'v' || g",
            "uuid": "md5(g::text)::uuid",
            "date": "date '2021-01-01' + g",
            "timestamptz": "timestamptz '2021-01-01Z' + g * interval '1 minute'",
        }
        return made.get(kind.name) or self._of(type_oid, False, 0)

    def _type(self, oid: int) -> _Type:
        row = self._session.execute(_TYPE, (oid,)).fetchone()
        assert row is not None, f"type {oid} is gone"
        return _Type(*row)

    def _of(self, oid: int, few: bool, depth: int) -> str:
        kind = self._type(oid)
        if kind.kind == "d":
            return f"CAST({self._of(kind.base, few, depth)} AS {kind.written})"
        if kind.kind == "e":
            labels = [each for (each,) in self._session.execute(_LABELS, (oid,)).fetchall()]
            return f"{_quoted(self._chance.choice(labels))}::{kind.written}"
        if kind.kind == "c":
            rows = self._session.execute(_ATTRIBUTES, (kind.relation,)).fetchall()
            parts = [self._part(each, few, depth) for (each,) in rows]
            return f"ROW({', '.join(parts)})::{kind.written}"
        if kind.category == "A" and kind.element and kind.name.startswith("_"):
            return self._array(kind, few, depth)
        return self._scalar(kind.name, few)

    def _part(self, oid: int, few: bool, depth: int) -> str:
        if self._chance.random() < 0.1 and not few:
            return "NULL"
        return self._of(oid, few, depth + 1)

    def _array(self, kind: _Type, few: bool, depth: int) -> str:
        if self._chance.random() < self._odd and not few:
            # Two dimensions, or another lower bound, which a list of the lake does not have.
            one = self._of(kind.element, True, depth + 1)
            return self._chance.choice(
                (
                    f"ARRAY[[{one}], [{one}]]::{kind.written}",
                    f"array_fill({one}, ARRAY[2], ARRAY[5])",
                )
            )
        count = self._chance.randrange(4)
        parts = [self._part(kind.element, few, depth) for _ in range(count)]
        return f"ARRAY[{', '.join(parts)}]::{kind.written}"

    def _scalar(self, name: str, few: bool) -> str:
        odd = not few and self._chance.random() < self._odd
        make = (_ODD.get(name) if odd else None) or _SCALARS.get(name)
        return make(self._chance, few) if make else "NULL"


def _quoted(text: str) -> str:
    return sql.quote(text)


def _text(chance: random.Random, few: bool) -> str:
    if few:
        return f"{_quoted(chance.choice(WORDS[:14]))}::text"
    size = chance.random()
    if size < 0.08:
        return _LARGE.format(chance.randrange(1000))
    if size < 0.14:
        return f"repeat({_quoted(chance.choice('xyz'))}, {chance.choice((300, 9000))})"
    return f"{_quoted(chance.choice(WORDS))}::text"


def _number(low: int, high: int) -> Callable[[random.Random, bool], str]:
    return lambda chance, few: str(chance.randint(1, 25) if few else chance.randint(low, high))


def _one(*texts: str) -> Callable[[random.Random, bool], str]:
    return lambda chance, _few: chance.choice(texts)


def _date(chance: random.Random, few: bool) -> str:
    return f"date '2020-01-01' + {chance.randint(1, 12 if few else 20000)}"


def _moment(kind: str) -> Callable[[random.Random, bool], str]:
    def make(chance: random.Random, few: bool) -> str:
        seconds = chance.randint(0, 9) if few else chance.randint(0, 10**9)
        micros = 0 if few else chance.randint(0, 999999)
        return f"{kind} '1999-12-31 22:00:00' + interval '{seconds} seconds {micros} microseconds'"

    return make


def _uuid(chance: random.Random, few: bool) -> str:
    return f"md5({_quoted(str(chance.randint(1, 15 if few else 10**6)))})::uuid"


def _range(chance: random.Random, _few: bool) -> str:
    low = chance.randint(0, 20)
    return chance.choice(
        ("int4range(NULL, 5)", "'empty'::int4range", f"int4range({low}, {low + 4}, '[]')")
    )


_SCALARS: dict[str, Callable[[random.Random, bool], str]] = {
    "bool": _one("true", "false"),
    "int2": _number(-32768, 32767),
    "int4": _number(-(2**31), 2**31 - 1),
    "int8": _number(-(2**60), 2**60),
    "numeric": lambda chance, few: (
        str(chance.randint(1, 12))
        if few
        else f"{chance.randint(-99999, 99999)}.{chance.randint(0, 99):02}"
    ),
    "float4": _one(
        "1.5::real", "'NaN'::real", "'-0'::real", "'-Infinity'::real", "3.4e38::real", "0.1::real"
    ),
    "float8": _one("0.1::float8", "'NaN'::float8", "'-0'::float8", "1e-300::float8", "2.5::float8"),
    "text": _text,
    "varchar": lambda chance, few: f"left({_text(chance, few)}, 8)",
    "bpchar": lambda chance, _few: f"{_quoted(chance.choice(('a', 'b', 'ab', '')))}",
    "name": lambda chance, _few: f"{_quoted(chance.choice('abc'))}::name",
    "date": _date,
    "timestamp": _moment("timestamp"),
    "timestamptz": _moment("timestamptz"),
    "time": _one("time '00:00'", "time '24:00'", "time '12:34:56.789'"),
    "timetz": _one("timetz '12:00+02'", "timetz '24:00-08'"),
    "interval": _one("interval '1 mon -3 days 04:05:06'", "interval '-1 year'", "interval '0'"),
    "uuid": _uuid,
    "bytea": lambda chance, few: (
        f"decode(md5({_quoted(str(chance.randint(1, 9 if few else 10**6)))}), 'hex')"
    ),
    "json": _one("""'{"b": 1,  "a": [1, null]}'::json""", "'null'::json", "'[]'::json"),
    "jsonb": _one("""'{"b": 1.50, "a": "x"}'::jsonb""", "'null'::jsonb", "'[1, 2]'::jsonb"),
    "inet": _one("inet '10.0.0.1'", "inet '10.0.0.0/8'", "inet '::1'"),
    "bit": _one("B'1010'", "B'0000'"),
    "money": _one("'12.34'::money", "'-0.99'::money"),
    "point": _one("point '(1,2)'", "point '(-0.5,1e10)'"),
    "tsvector": _one("to_tsvector('simple', 'a b a')", "''::tsvector"),
    "int4range": _range,
    "tstzrange": _one("tstzrange('2020-01-01Z', NULL)", "'empty'::tstzrange"),
    "int4multirange": _one("'{[1,3),[5,7)}'::int4multirange", "'{}'::int4multirange"),
}
#: What the type in the lake cannot hold, or is easily taken for something else.
_ODD: dict[str, Callable[[random.Random, bool], str]] = {
    "numeric": _one("'NaN'::numeric"),
    "date": _one(
        "date 'infinity'",
        "date '-infinity'",
        "date '0044-03-15 BC'",
        "date '5874897-12-31'",
        "date '0001-01-01'",
    ),
    "timestamp": _one(
        "timestamp 'infinity'",
        "timestamp '4713-01-01 BC'",
        "timestamp '9999-12-31 23:59:59.999999'",
    ),
    "timestamptz": _one(
        "timestamptz '-infinity'",
        "timestamptz '10000-01-01 00:00Z'",
        "timestamptz '0001-01-01 00:00Z'",
    ),
}
