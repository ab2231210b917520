"""The columns of the oracle's table: every type, how its values are made, and what the lake must hold.

A column says how its stored value is read from the server's binary form, which shares no code with the text
that the pipeline carries; of a type that is text in the lake, the server's text is demanded instead.
"""

from __future__ import annotations

import ipaddress
import json
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.capture.types.oracle import (
    STORED,
    stored_array,
    stored_decimal,
    stored_halfvec,
    stored_hstore,
    stored_record,
    stored_vector,
)
from tests.capture.types.special_values import VALUES
from tests.capture.types.strategies import NASTY_TEXTS, SCALARS, TEXTS, UNBOUNDED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Values generated for each column, beside the special ones, and what they follow from.
EXAMPLES = int(os.environ.get("PGOUTPUT_TYPES_EXAMPLES", "15"))
SEED = int(os.environ.get("PGOUTPUT_TYPES_SEED", "1"))

TYPES = """
CREATE TYPE public.mood AS ENUM ('sad', 'ok', 'very "happy"');
CREATE TYPE public.pair AS (a int, "b c" text);
CREATE TYPE public.nested AS (p public.pair, ps public.pair[], i interval, t time, n numeric(8,3), l text[]);
CREATE TYPE public.floats AS RANGE (subtype = float8);
CREATE DOMAIN public.price AS numeric(12, 2) CHECK (VALUE > 0);
CREATE DOMAIN public.small_price AS public.price CHECK (VALUE < 100);
CREATE DOMAIN public.names AS text[];
CREATE DOMAIN public.a_pair AS public.pair;
CREATE DOMAIN public.corner AS box;
CREATE DOMAIN public.boxes AS box[];
"""
BOXES = "{(3,4),(1,2);(1,1),(0,0)}"
EXTENSIONS = ("hstore", "citext", "ltree", "vector")
#: Types that they bring; those of pgvector since its version 0.7.
EXTENSION_TYPES = (*EXTENSIONS, "halfvec", "sparsevec")


def missing_extensions(version: int) -> tuple[str, ...]:
    """Those that the tests' server of this version was packaged without; every other one must be there."""
    return () if version >= 18 else ("vector", "halfvec", "sparsevec")


def has_xml(session: psycopg.Connection[Any]) -> bool:
    """Whether the server was built with libxml, without which it has the type and no value of it."""
    try:
        session.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


_UUIDS = st.uuids().map(str) | st.sampled_from([*VALUES["uuid"]])
_TIMES = st.times().map(str) | st.just("24:00:00")
_FIELD = st.integers(-(10**6), 10**6)
_INTERVALS = st.one_of(
    st.builds(
        "{} months {} days {} microseconds".format, _FIELD, _FIELD, st.integers(-(10**15), 10**15)
    ),
    st.sampled_from(["-178000000 years", "1 year 2 mons", "0", "-0.000001 s", "1 mon -1 day"]),
)
_INTERVALS_17 = _INTERVALS | st.sampled_from(["infinity", "-infinity"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | NASTY_TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NASTY_TEXTS, inner, max_size=3),
    max_leaves=6,
).map(json.dumps)
_MOMENTS = st.datetimes().map(str)
_INT4 = st.integers(-(2**31), 2**31 - 1)
_COORDINATE = st.floats(-1e300, 1e300)


_SMALL = st.floats(-1e6, 1e6).map(repr)
_POINT = st.builds("({},{})".format, _SMALL, _SMALL)
_POINTS = st.lists(_POINT, min_size=1, max_size=4).map(",".join)
_LEXEMES = st.text("abZé' :&", min_size=1, max_size=6).map(lambda text: text.replace("'", "''"))
_SNAPSHOTS = st.lists(st.integers(1, 2**40), min_size=2, max_size=5, unique=True).map(
    lambda found: f"{min(found)}:{max(found)}:{','.join(map(str, sorted(found)[1:-1]))}"
)


def _range(values: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    def spell(bounds: list[Any], brackets: str) -> str:
        low, high = sorted(bounds)
        return f'{brackets[0]}"{low}","{high}"{brackets[1]}'

    pairs = st.lists(values, min_size=2, max_size=2)
    spelled = st.builds(spell, pairs, st.sampled_from(["[)", "()", "[]"]))
    return spelled | st.sampled_from(["empty", "(,)"])


def _multirange(ranges: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(ranges, max_size=3).map(lambda found: f"{{{','.join(found)}}}")


def _spaced(numbers: list[int]) -> str:
    return " ".join(map(str, numbers))


#: Of the types that are text in the lake; the others are in ``SCALARS``.
_AS_TEXT: dict[str, st.SearchStrategy[str]] = {
    "numeric": UNBOUNDED,
    "numeric(40,2)": st.integers(-(10**40) + 1, 10**40 - 1).map(lambda n: f"{n}e-2"),
    "json": _JSON,
    "jsonb": _JSON,
    "uuid": _UUIDS,
    "time": _TIMES,
    "time(3)": _TIMES,
    "timetz": st.builds("{}{:+03}:{:02}".format, _TIMES, st.integers(-15, 15), st.integers(0, 59)),
    "interval": _INTERVALS,
    "interval(2)": _INTERVALS,
    "money": st.decimals(-(10**14), 10**14, places=2).map(str),
    "bit(7)": st.text("01", min_size=7, max_size=7),
    "varbit": st.text("01", max_size=20),
    "inet": st.ip_addresses().map(str),
    "cidr": st.ip_addresses().map(str),
    "macaddr": st.binary(min_size=6, max_size=6).map(bytes.hex),
    "macaddr8": st.binary(min_size=8, max_size=8).map(bytes.hex),
    "point": st.builds("({},{})".format, _COORDINATE, _COORDINATE),
    "pg_lsn": st.builds("{:X}/{:X}".format, *(2 * [st.integers(0, 2**32 - 1)])),
    "name": st.text("ab\"é' ", max_size=20),
    "tsvector": st.lists(st.builds("'{}':{}{}".format, _LEXEMES, st.integers(1, 99),
                                   st.sampled_from("ABCD")), max_size=4).map(" ".join),
    "int4range": _range(st.integers(-(2**31), 2**31 - 2)),
    "int8range": _range(st.integers(-(2**63), 2**63 - 2)),
    "numrange": _range(st.decimals(allow_nan=False, allow_infinity=False, places=3)),
    "tsrange": _range(st.datetimes()),
    "tstzrange": _range(st.datetimes()),
    "daterange": _range(st.dates()),
    "public.floats": _range(st.floats(allow_nan=False, allow_infinity=False)),
    "int4multirange": _multirange(_range(st.integers(-(2**31), 2**31 - 2))),
    "int8multirange": _multirange(_range(st.integers(-(2**63), 2**63 - 2))),
    "nummultirange": _multirange(_range(st.integers(-99, 99))),
    "tsmultirange": _multirange(_range(st.datetimes())),
    "tstzmultirange": _multirange(_range(st.datetimes())),
    "datemultirange": _multirange(_range(st.dates())),
    "public.floats_multirange": _multirange(_range(st.floats(-1e9, 1e9))),
    "lseg": st.builds("[{},{}]".format, _POINT, _POINT),
    "path": st.builds("{0[0]}{1}{0[1]}".format, st.sampled_from(["()", "[]"]), _POINTS),
    "box": st.builds("{},{}".format, _POINT, _POINT),
    "polygon": _POINTS.map("({})".format),
    "line": st.builds("{{{},1,{}}}".format, _SMALL, _SMALL),
    "circle": st.builds("<{},{}>".format, _POINT, st.floats(0, 1e6).map(repr)),
    "int2vector": st.lists(st.integers(-(2**15), 2**15 - 1), max_size=5).map(_spaced),
    "oidvector": st.lists(st.integers(0, 2**32 - 1), max_size=5).map(_spaced),
    "tid": st.builds("({},{})".format, st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1)),
    "char": st.characters(min_codepoint=32, max_codepoint=126),
    "bpchar": TEXTS,
    "varchar": TEXTS,
    "bit": st.sampled_from("01"),
    "refcursor": TEXTS,
    "xml": st.text("abé ", max_size=6).map("<a b='&quot;'>{}&lt;</a>".format),
    "tsquery": st.lists(st.builds("'{}':{}".format, _LEXEMES, st.sampled_from(["*", "AB", "D"])),
                        min_size=1, max_size=4).map(" & !".join),
    "jsonpath": st.lists(st.sampled_from(['."k é"', "[*]", "[0 to 2]", "?(@ > 1)", ".size()"]),
                         max_size=4).map(lambda steps: "$" + "".join(steps)),
    "txid_snapshot": _SNAPSHOTS,
    "pg_snapshot": _SNAPSHOTS,
    "public.mood": st.sampled_from(["sad", "ok", 'very "happy"']),
    "public.citext": TEXTS,
    "public.ltree": st.lists(st.text("abZ9_", min_size=1, max_size=5), max_size=4).map(".".join),
    "public.corner": st.sampled_from(VALUES["box"]),
}  # fmt: skip


@dataclass(frozen=True)
class OracleColumn:
    """One column of the table."""

    sql_type: str
    #: Makes a value from the text ``s``.
    expression: str
    inputs: tuple[str, ...]
    #: Reads the server's binary form; None: the lake holds the server's text.
    stored: Callable[[bytes], Any] | None
    #: What ``column_types`` says; None: nothing.
    choice: str | None = None

    @property
    def label(self) -> str:
        """For people."""
        return self.sql_type + (f" as {self.choice}" if self.choice else "")


def generated(values: st.SearchStrategy[str], count: int = EXAMPLES) -> tuple[str, ...]:
    """Values of a strategy, the same in every run with one ``SEED``."""
    found: list[str] = []

    @seed(SEED)
    @settings(
        max_examples=4,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(values, min_size=count // 3, max_size=count))
    def take(some: list[str]) -> None:
        found.extend(some)

    take()
    return tuple(dict.fromkeys(found))[-count:]


def _column(
    sql_type: str,
    values: st.SearchStrategy[str] | None,
    stored: Callable[[bytes], Any] | None = None,
    *,
    special: Sequence[str] = (),
    expression: str | None = None,
    choice: str | None = None,
) -> OracleColumn:
    made = () if values is None else generated(values)
    inputs = tuple(dict.fromkeys((*special, *made)))
    return OracleColumn(sql_type, expression or f"s::{sql_type}", inputs, stored, choice)


#: An array from a JSON list: as it is, twice as rows of a matrix, that twice, or with another lower bound.
_ARRAY = """(SELECT CASE WHEN s::jsonb ->> 0 = 'matrix' AND cardinality(a) > 0 THEN ARRAY[a, a]
                    WHEN s::jsonb ->> 0 = 'cube' AND cardinality(a) > 0
                      THEN ARRAY[ARRAY[a, a], ARRAY[a, a], ARRAY[a, a]]
                    WHEN s::jsonb ->> 0 IN ('-3', '0', '2') AND cardinality(a) > 0
                      THEN format('[%%s:%%s]=%%s', s::jsonb ->> 0,
                                  (s::jsonb ->> 0)::int + cardinality(a) - 1, a)::{0}[]
                    ELSE a END
   FROM (SELECT ARRAY(SELECT {1} FROM jsonb_array_elements_text(s::jsonb -> 1)
                        WITH ORDINALITY AS x(e, o) ORDER BY o)::{0}[] AS a) AS y)"""
_SHAPES = st.sampled_from(["list", "list", "list", "list", "matrix", "cube", "-3", "0", "2"])


def _array(
    element: str,
    values: st.SearchStrategy[str],
    stored: Callable[[bytes], Any] | None,
    *,
    expression: str | None = None,
    choice: str | None = None,
) -> OracleColumn:
    lists = st.tuples(_SHAPES, st.lists(st.none() | values, max_size=4)).map(json.dumps)
    made = (expression or "s::{0}").format(element).replace("s::", "e::")
    read = None if choice == "string" or stored is None else stored_array(stored)
    special = ['["list", [null]]', '["list", []]', '["matrix", []]']
    whole = _ARRAY.format(element, made)
    return _column(f"{element}[]", lists, read, special=special, expression=whole, choice=choice)


_PAIRS = st.tuples(st.none() | _INT4, st.none() | NASTY_TEXTS).map(json.dumps)
_PAIR = "ROW((s::jsonb ->> 0)::int, s::jsonb ->> 1)::public.pair"
STORED_PAIR = stored_record(**{"a": STORED["int4"], "b c": STORED["text"]})
_NESTED = st.tuples(
    st.none() | _INT4,
    st.lists(st.none() | NASTY_TEXTS, max_size=3),
    st.none() | _INTERVALS,
    st.none() | _TIMES,
    st.sampled_from([None, "1.5", "-99999.999", "NaN"]),
).map(json.dumps)
_NESTED_SQL = """ROW(
    CASE WHEN s::jsonb ->> 0 IS NOT NULL THEN ROW((s::jsonb ->> 0)::int, 'x"\\,() ')::public.pair END,
    ARRAY(SELECT ROW(7, e)::public.pair FROM jsonb_array_elements_text(s::jsonb -> 1) AS x(e)),
    (s::jsonb ->> 2)::interval, (s::jsonb ->> 3)::time, (s::jsonb ->> 4)::numeric(8,3),
    ARRAY(SELECT e FROM jsonb_array_elements_text(s::jsonb -> 1) AS x(e)))::public.nested"""
STORED_NESTED = stored_record(
    p=STORED_PAIR,
    ps=stored_array(STORED_PAIR),
    # Only the composite is chosen to be a struct with ``type_options``; here the choice is of the column,
    # and ``struct`` is for intervals too.
    i=STORED["interval"],
    t=lambda payload: _clock(int.from_bytes(payload, signed=True)),
    n=STORED["numeric"],
    l=stored_array(STORED["text"]),
)
_HSTORES = st.dictionaries(NASTY_TEXTS, st.none() | NASTY_TEXTS, max_size=4).map(json.dumps)
_HSTORE = """(SELECT COALESCE(public.hstore(array_agg(key), array_agg(value)), '')
                FROM jsonb_each_text(s::jsonb))"""


def _box(payload: bytes) -> str:
    """A box as PostgreSQL prints it, of small whole numbers."""
    return "({:g},{:g}),({:g},{:g})".format(*struct.unpack("!4d", payload))


def _int4range(payload: bytes) -> str:
    """A range as PostgreSQL prints it, in its canonical form."""
    flags, position, bounds = payload[0], 1, []
    if flags & 1:
        return "empty"
    for unbounded in (flags & 8, flags & 16):
        bounds.append(
            ""
            if unbounded
            else str(int.from_bytes(payload[position + 4 : position + 8], signed=True))
        )
        position += 0 if unbounded else 8
    return f"{'[' if flags & 2 else '('}{bounds[0]},{bounds[1]}{']' if flags & 4 else ')'}"


def _inet(payload: bytes) -> str:
    """A host's address as PostgreSQL prints it."""
    return str(ipaddress.ip_address(payload[4:]))


def _clock(micros: int) -> str:
    """A time as PostgreSQL prints it."""
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text


def _pair(payload: bytes) -> str:
    """A composite of a number and a text as PostgreSQL prints it."""
    found = STORED_PAIR(payload)
    number = "" if found["a"] is None else str(found["a"])
    text = found["b c"] or ""
    if (
        found["b c"] == ""
        or not {*'"\\(),'}.isdisjoint(text)
        or any(c in " \t\n\r\v\f" for c in text)
    ):
        text = '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'
    return f"({number},{text})"


#: Of arrays whose elements are not text in the lake.
_ELEMENTS = (
    "bool", "int2", "int4", "int8", "float4", "float8", "numeric(12,2)", "date", "timestamp", "timestamptz",
    "bytea",
)  # fmt: skip


def _defaults(extensions: Sequence[str]) -> list[OracleColumn]:
    """Every type as it is without options."""
    found = []
    for name, special in VALUES.items():
        sql_type = '"char"' if name == "char" else name
        base, values = SCALARS.get(name, (name, _AS_TEXT.get(name)))
        stored = STORED[base] if name in SCALARS else None
        found.append(_column(sql_type, values, stored, special=special))
    for name, (base, values) in SCALARS.items():
        if name not in VALUES:
            found.append(_column(name, values, STORED[base]))
    for name, values in _AS_TEXT.items():
        if name not in VALUES and name not in {f"public.{each}" for each in EXTENSIONS}:
            found.append(_column(name, values))
    for element in _ELEMENTS:
        base, values = SCALARS[element]
        found.append(_array(element, values, STORED[base]))
    found += [
        _array("text", NASTY_TEXTS, STORED["text"]),
        _array("public.mood", _AS_TEXT["public.mood"], STORED["text"]),
        _array("public.price", SCALARS["public.price"][1], STORED["numeric"]),
        _array("uuid", _UUIDS, STORED["uuid"]),
        _array("jsonb", _JSON, lambda payload: payload[1:].decode()),
        _array("int4range", _AS_TEXT["int4range"], _int4range),
        _array("inet", _AS_TEXT["inet"], _inet),
        _column("public.boxes", None, stored_array(_box), special=[BOXES, "{NULL}", "{}"]),
        _column("public.names", None, stored_array(STORED["text"]), special=["{a,NULL}", "{}"]),
        _column("public.pair", _PAIRS, None, expression=_PAIR),
        _array("public.pair", _PAIRS, _pair, expression=_PAIR),
        _column("public.nested", _NESTED, None, expression=_NESTED_SQL),
    ]
    found += [_column(f"public.{name}", _AS_TEXT[f"public.{name}"])
              for name in ("citext", "ltree") if name in extensions]  # fmt: skip
    if "hstore" in extensions:
        found.append(_column("public.hstore", _HSTORES, stored_hstore, expression=_HSTORE))
        found.append(_array("public.hstore", _HSTORES, stored_hstore, expression=_HSTORE))
    if "citext" in extensions:
        found.append(_array("public.citext", NASTY_TEXTS, STORED["text"]))
    if "vector" in extensions:
        vectors = st.lists(
            st.floats(-(2.0**60), 2.0**60, width=32).map(repr), min_size=3, max_size=3
        )
        made = vectors.map(lambda parts: f"[{','.join(parts)}]")
        found.append(_column("public.vector(3)", made, stored_vector))
        found.append(_array("public.vector(3)", made, stored_vector))
        halves = st.lists(st.floats(width=16, allow_nan=False, allow_infinity=False).map(repr),
                          min_size=3, max_size=3)  # fmt: skip
        found.append(_column("public.halfvec(3)", halves.map(lambda parts: f"[{','.join(parts)}]"),
                             stored_halfvec))  # fmt: skip
        pairs = st.dictionaries(
            st.integers(1, 5), st.floats(-(2.0**60), 2.0**60, width=32), max_size=5
        )
        sparse = pairs.map(lambda p: "{" + ",".join(f"{n}:{p[n]!r}" for n in sorted(p)) + "}/5")
        found.append(_column("public.sparsevec(5)", sparse))
    return found


def _chosen(version: int) -> list[OracleColumn]:
    """Types with a choice."""
    intervals = _INTERVALS_17 if version >= 17 else _INTERVALS
    micros, text = STORED["time"], "string"
    pair = {"expression": _PAIR, "choice": "struct"}
    return [
        _column("numeric", UNBOUNDED, stored_decimal(20, 4), special=["1.5", "0.00005", "1.50000"],
                choice="decimal(20,4)"),
        _column("numeric", UNBOUNDED, stored_decimal(38, 38), special=["0." + "9" * 38, "1"],
                choice="decimal(38, 38)"),
        _column("numeric(12,2)", SCALARS["numeric(12,2)"][1], stored_decimal(6, 1),
                choice="decimal(6,1)"),
        _column("numeric(12,2)", SCALARS["numeric(12,2)"][1], choice=text),
        _array("numeric", UNBOUNDED, stored_decimal(38, 9), choice="decimal(38,9)"),
        _column("uuid", _UUIDS, STORED["uuid"], choice="uuid"),
        _array("uuid", _UUIDS, STORED["uuid"], choice="uuid"),
        _column("interval", intervals, STORED["interval"], choice="struct",
                special=VALUES["interval"]),
        _array("interval", intervals, STORED["interval"], choice="struct"),
        _column("time", _TIMES, micros, special=VALUES["time"], choice="micros"),
        _array("time", _TIMES, micros, choice="micros"),
        _column("public.pair", _PAIRS, STORED_PAIR, **pair),
        _array("public.pair", _PAIRS, STORED_PAIR, **pair),
        _column("public.a_pair", _PAIRS, STORED_PAIR, **pair),
        _column("public.nested", _NESTED, STORED_NESTED, expression=_NESTED_SQL, choice="struct"),
        _array("int4", SCALARS["int4"][1], STORED["int4"], choice=text),
        *(_column(name, SCALARS[name][1], special=VALUES[name], choice=text)
          for name in ("bool", "int8", "float4", "float8", "date", "timestamptz", "bytea")),
    ]  # fmt: skip


def chosen_by_kind(version: int) -> list[OracleColumn]:
    """Columns of which ``BY_KIND`` decides, and those that it leaves alone."""
    intervals = _INTERVALS_17 if version >= 17 else _INTERVALS
    pair, micros = {"expression": _PAIR}, STORED["time"]
    nested = stored_record(
        p=STORED_PAIR,
        ps=stored_array(STORED_PAIR),
        i=STORED["interval"],
        t=micros,
        n=STORED["numeric"],
        l=stored_array(STORED["text"]),
    )
    return [
        _column("numeric", UNBOUNDED, stored_decimal(20, 4), special=["1.5", "0.00005"]),
        _array("numeric", UNBOUNDED, stored_decimal(20, 4)),
        _column(
            "numeric(40,2)", _AS_TEXT["numeric(40,2)"], stored_decimal(20, 4), special=["1.25"]
        ),
        _column("numeric(12,2)", SCALARS["numeric(12,2)"][1], STORED["numeric"]),
        _column("uuid", _UUIDS, STORED["uuid"]),
        _array("uuid", _UUIDS, STORED["uuid"]),
        _column("time", _TIMES, micros),
        _array("time", _TIMES, micros),
        _column("interval", intervals, STORED["interval"]),
        _array("interval", intervals, STORED["interval"]),
        _column("public.pair", _PAIRS, STORED_PAIR, **pair),
        _array("public.pair", _PAIRS, STORED_PAIR, **pair),
        _column("public.a_pair", _PAIRS, STORED_PAIR, **pair),
        _column("public.nested", _NESTED, nested, expression=_NESTED_SQL),
        _column("text", NASTY_TEXTS, STORED["text"]),
    ]


#: A choice for every kind of type that there is one for.
BY_KIND = {
    "numeric": "decimal(20,4)",
    "uuid": "uuid",
    "interval": "struct",
    "composite": "struct",
    "time": "micros",
}


def columns(version: int, extensions: Sequence[str], *, with_xml: bool) -> list[OracleColumn]:
    """The columns of the table on a server of this major version."""
    found = [*_defaults(extensions), *_chosen(version)]
    return [each for each in found if with_xml or each.sql_type != "xml"]
