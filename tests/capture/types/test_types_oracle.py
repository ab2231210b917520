"""Generated values: what the server prints, cast, is what the server stores."""

from __future__ import annotations

import json
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
from tests.capture.types.strategies import NASTY_TEXTS, SCALARS, TEXTS, UNBOUNDED, decimals

if TYPE_CHECKING:
    import psycopg

exactly = settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


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


@pytest.mark.parametrize("type_sql", ["numeric", "numeric(40,2)"])
def test_a_numeric_without_a_fitting_decimal_is_its_text(
    session: psycopg.Connection[Any], type_sql: str
) -> None:
    texts = UNBOUNDED if type_sql == "numeric" else decimals(40, 2)

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
