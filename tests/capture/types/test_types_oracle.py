"""Generated values: what the server prints, cast, is what the server stores."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.capture.types.oracle import (
    STORED,
    assert_exact,
    assert_text,
    render,
    stored_array,
    stored_hstore,
)

if TYPE_CHECKING:
    import psycopg

pytestmark = pytest.mark.postgres
exactly = settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _moments(least_year: int = 1, most_year: int = 9999) -> st.SearchStrategy[str]:
    return st.builds(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:06}".format,
        st.integers(least_year, most_year),
        st.integers(1, 12),
        st.integers(1, 28),
        st.integers(0, 23),
        st.integers(0, 59),
        st.integers(0, 59),
        st.one_of(
            st.just(0), st.integers(0, 999_999), st.integers(0, 99).map(lambda n: n * 10_000)
        ),
    )


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
NASTY_TEXTS = st.one_of(TEXTS, st.text('{}[]",\\= >NULnul1;\n', max_size=8), st.just("NULL"))
TIMESTAMPS = st.one_of(
    _moments(),
    _moments(1, 4712).map(lambda text: f"{text} BC"),
    _moments(10_000, 294_275),
    st.sampled_from(
        [
            "infinity",
            "-infinity",
            "0001-01-01 00:00:00",
            "9999-12-31 23:59:59.999999",
            "10000-01-01 00:00:00",
            "0001-12-31 23:59:59.999999 BC",
            "4713-11-24 00:00:00 BC",
            "294276-12-31 23:59:59.999999",
            "1582-10-10 12:00:00",
        ]
    ),
)
DATES = st.one_of(
    TIMESTAMPS.map(lambda text: text.split(" ")[0] + (" BC" if text.endswith("BC") else "")),
    st.just("5874897-12-31"),
)
FLOATS = st.one_of(
    st.floats(),
    st.sampled_from([-0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1e22, 1e23, math.pi]),
)


def _decimals(digits: int, scale: int) -> st.SearchStrategy[str]:
    bound = 10**digits - 1
    return st.one_of(
        st.integers(-bound, bound).map(lambda n: f"{n}e-{scale}"),
        st.sampled_from(
            ["NaN", "0", "-0.01", f"{bound}e-{scale}", f"-{bound}e-{scale}", f"1e-{scale}"]
        ),
    )


SCALARS: dict[str, tuple[str, st.SearchStrategy[str]]] = {
    "bool": ("bool", st.sampled_from(["true", "false"])),
    "int2": ("int2", st.integers(-(2**15), 2**15 - 1).map(str)),
    "int4": ("int4", st.integers(-(2**31), 2**31 - 1).map(str)),
    "int8": ("int8", st.integers(-(2**63), 2**63 - 1).map(str)),
    "oid": ("oid", st.integers(0, 2**32 - 1).map(str)),
    "xid": ("xid", st.integers(0, 2**32 - 1).map(str)),
    "cid": ("cid", st.integers(0, 2**32 - 1).map(str)),
    "xid8": ("xid8", st.integers(0, 2**64 - 1).map(str)),
    "float4": ("float4", st.floats(width=32).map(str)),
    "float8": ("float8", FLOATS.map(repr)),
    "numeric(1,0)": ("numeric", _decimals(1, 0)),
    "numeric(12,2)": ("numeric", _decimals(12, 2)),
    "numeric(18,18)": ("numeric", _decimals(18, 18)),
    "numeric(38,0)": ("numeric", _decimals(38, 0)),
    "numeric(38,37)": ("numeric", _decimals(38, 37)),
    "numeric(3,-2)": ("numeric", st.integers(-999, 999).map(lambda n: f"{n}00")),
    "numeric(3,5)": ("numeric", st.integers(-999, 999).map(lambda n: f"{n}e-5")),
    "date": ("date", DATES),
    "timestamp": ("timestamp", TIMESTAMPS),
    "timestamp(3)": ("timestamp", TIMESTAMPS),
    "timestamptz": ("timestamptz", TIMESTAMPS),
    "bytea": ("bytea", st.binary(max_size=40).map(lambda value: rf"\x{value.hex()}")),
    "text": ("text", TEXTS),
    "varchar(12)": ("text", TEXTS),
    "char(5)": ("text", st.text("abé ", max_size=5)),
    "public.price": ("numeric", st.integers(1, 10**12 - 1).map(lambda n: f"{n}e-2")),
    "public.small_price": ("numeric", st.integers(1, 9999).map(lambda n: f"{n}e-2")),
}


@pytest.mark.parametrize("type_sql", SCALARS)
def test_a_scalar_is_what_the_server_stores(
    session: psycopg.Connection[Any], type_sql: str
) -> None:
    base, texts = SCALARS[type_sql]

    @exactly
    @given(st.lists(st.none() | texts, min_size=1, max_size=40))
    def check(inputs: list[str | None]) -> None:
        assert_exact(render(session, type_sql, inputs), STORED[base])

    check()


UNBOUNDED = st.one_of(
    st.integers(-(10**45), 10**45).map(str),
    st.builds("{}e{}".format, st.integers(-(10**20), 10**20), st.integers(-200, 200)),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "1e130", "0.10"]),
)


@pytest.mark.parametrize("type_sql", ["numeric", "numeric(40,2)"])
def test_a_numeric_without_a_fitting_decimal_is_its_text(
    session: psycopg.Connection[Any], type_sql: str
) -> None:
    texts = UNBOUNDED if type_sql == "numeric" else _decimals(40, 2)

    @exactly
    @given(st.lists(st.none() | texts, min_size=1, max_size=40))
    def check(inputs: list[str | None]) -> None:
        assert_text(render(session, type_sql, inputs))

    check()


ELEMENTS: dict[str, tuple[str, st.SearchStrategy[str]]] = {
    name: SCALARS[name]
    for name in ("bool", "int4", "int8", "float8", "numeric(12,2)", "date", "timestamptz", "bytea")
} | {
    "text": ("text", NASTY_TEXTS),
    "varchar(20)": ("text", NASTY_TEXTS),
    "public.citext": ("text", NASTY_TEXTS),
}

#: An array from a JSON list: as it is, twice as the rows of a matrix, or with lower bound 0.
_ARRAY = """(SELECT CASE WHEN s::jsonb ->> 0 = 'matrix' AND a <> '{{}}' THEN ARRAY[a, a]
                    WHEN s::jsonb ->> 0 = 'bounds' AND a <> '{{}}'
                      THEN format('[0:%%s]=%%s', cardinality(a) - 1, a)::{0}[]
                    ELSE a END
   FROM (SELECT ARRAY(SELECT e::{0} FROM jsonb_array_elements_text(s::jsonb -> 1)
                        WITH ORDINALITY AS x(e, o) ORDER BY o)::{0}[] AS a) AS y)"""


@pytest.mark.parametrize("element", ELEMENTS)
def test_an_array_is_what_the_server_stores(session: psycopg.Connection[Any], element: str) -> None:
    base, texts = ELEMENTS[element]
    shapes = st.sampled_from(["list", "list", "list", "list", "matrix", "bounds"])
    arrays = st.tuples(shapes, st.lists(st.none() | texts, max_size=6)).map(json.dumps)

    @exactly
    @given(st.lists(st.none() | arrays, min_size=1, max_size=30))
    def check(inputs: list[str | None]) -> None:
        expression = f"CASE WHEN s IS NOT NULL THEN {_ARRAY.format(element)} END"
        rendered = render(session, f"{element}[]", inputs, expression)
        assert_exact(rendered, stored_array(STORED[base]))

    check()


def test_an_hstore_is_what_the_server_stores(session: psycopg.Connection[Any]) -> None:
    maps = st.dictionaries(NASTY_TEXTS, st.none() | NASTY_TEXTS, max_size=5).map(json.dumps)

    @exactly
    @given(st.lists(st.none() | maps, min_size=1, max_size=30))
    def check(inputs: list[str | None]) -> None:
        expression = """CASE WHEN s IS NOT NULL THEN (
            SELECT COALESCE(public.hstore(array_agg(key), array_agg(value)), '')
              FROM jsonb_each_text(s::jsonb)) END"""
        assert_exact(render(session, "public.hstore", inputs, expression), stored_hstore)

    check()


def test_a_list_of_hstores_is_what_the_server_stores(session: psycopg.Connection[Any]) -> None:
    maps = st.dictionaries(NASTY_TEXTS, st.none() | NASTY_TEXTS, max_size=3)
    lists = st.lists(st.none() | maps, max_size=4).map(json.dumps)

    @exactly
    @given(st.lists(st.none() | lists, min_size=1, max_size=15))
    def check(inputs: list[str | None]) -> None:
        expression = """CASE WHEN s IS NOT NULL THEN ARRAY(
            SELECT CASE WHEN e <> 'null' THEN (
                     SELECT COALESCE(public.hstore(array_agg(key), array_agg(value)), '')
                       FROM jsonb_each_text(e)) END
              FROM jsonb_array_elements(s::jsonb) WITH ORDINALITY AS x(e, o) ORDER BY o) END"""
        rendered = render(session, "public.hstore[]", inputs, expression)
        assert rendered.column.lake_type == "list<map<string, string>>"
        assert_exact(rendered, stored_array(stored_hstore))

    check()


NASTY_ENOUGH = {"json": json.dumps, "jsonb": json.dumps}


@pytest.mark.parametrize("type_sql", ["text", "public.citext", "name", "json", "jsonb", "bpchar"])
def test_text_stays_the_servers_bytes(session: psycopg.Connection[Any], type_sql: str) -> None:
    texts = TEXTS.map(NASTY_ENOUGH.get(type_sql, str))

    @exactly
    @given(st.lists(st.none() | texts, min_size=1, max_size=40))
    def check(inputs: list[str | None]) -> None:
        assert_text(render(session, type_sql, inputs))

    check()
