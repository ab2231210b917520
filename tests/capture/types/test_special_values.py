"""Scenarios C61 and C62: the odd values of every type, as a real server prints them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.capture.types.type_info import BUILTIN_TYPES
from quickstart.binaries import find_installation
from quickstart.postgres import EmbeddedPostgres
from tests.capture.types.oracle import (
    STORED,
    assert_exact,
    assert_text,
    pin,
    render,
    stored_array,
    stored_vector,
)
from tests.capture.types.special_values import INTERNAL, VALUES

if TYPE_CHECKING:
    from pathlib import Path


def test_no_type_of_the_server_is_forgotten() -> None:
    named = {
        info.name
        for info in BUILTIN_TYPES.values()
        if info.typtype in "brm" and not info.element_oid
    }
    assert named == set(VALUES) | INTERNAL


def _skip_if_built_without(session: psycopg.Connection[Any], name: str) -> None:
    if name == "xml":
        try:
            session.execute("SELECT '<a/>'::xml")
        except psycopg.errors.FeatureNotSupported:
            pytest.skip("this server was built without libxml")


@pytest.mark.parametrize("name", VALUES)
def test_every_type_of_the_server_keeps_its_odd_values(
    session: psycopg.Connection[Any], name: str
) -> None:
    _skip_if_built_without(session, name)
    type_sql = '"char"' if name == "char" else name
    rendered = render(session, type_sql, [*VALUES[name], None])
    if rendered.column.lake_type == "string":
        assert_text(rendered)
        again = render(session, type_sql, rendered.cast().values.to_pylist())
        # What the lake holds is a value of the type, and the same one.
        assert again.raw.equals(rendered.raw)
    else:
        assert_exact(rendered, STORED[name])


@pytest.mark.parametrize("name", VALUES)
def test_every_array_of_the_server_keeps_the_text_of_its_elements(
    session: psycopg.Connection[Any], name: str
) -> None:
    _skip_if_built_without(session, name)
    if name in {"oidvector", "int2vector"}:
        pytest.skip("an array of these is an array of two dimensions to the server")
    type_sql = '"char"' if name == "char" else name
    elements = render(session, type_sql, [*VALUES[name], None])
    array = "ARRAY(SELECT e::{0} FROM jsonb_array_elements_text(s::jsonb) AS x(e))::{0}[]"
    one_by_one = [f"[{json.dumps(each)}]" for each in [*VALUES[name], None]]
    rendered = render(session, f"{type_sql}[]", one_by_one, array.format(type_sql))
    result = rendered.cast()
    alone = elements.cast()
    assert result.rejected.tolist() == alone.rejected.tolist()
    for row, (found, expected) in enumerate(zip(result.values, alone.values, strict=True)):
        if row in alone.rejected:
            assert not found.is_valid
        else:
            assert str(found.as_py()) == str([expected.as_py()])


C61 = {
    "public.mood": ["sad", 'very "happy"'],
    "public.pair": ['(1,"a ""quoted"", \\\\ text")', "(,)", '(2,"")'],
    "public.pair[]": ['{"(1,\\"a b\\")",NULL}'],
    "public.floats": ["[1.5,Infinity)", "empty"],
    "public.citext": ["MiXed", ""],
    '"Odd ""schema"."select"': ["x"],
}


@pytest.mark.parametrize("type_sql", C61)
def test_user_types_are_the_servers_text(session: psycopg.Connection[Any], type_sql: str) -> None:
    rendered = render(session, type_sql, [*C61[type_sql], None])
    if rendered.column.lake_type == "string":
        assert_text(rendered)
    else:
        assert rendered.column.lake_type == "list<string>"
        assert rendered.cast().values.to_pylist() == [['(1,"a b")', None], None]


def test_domains_over_arrays_and_enum_arrays_are_lists(session: psycopg.Connection[Any]) -> None:
    rendered = render(session, "public.names", ['{a,"b c",NULL}', "{{a},{b}}", "{}"])
    assert_exact(rendered, stored_array(bytes.decode))
    moods = render(session, "public.mood[]", ['{sad,"very \\"happy\\"",NULL}'])
    assert moods.cast().values.to_pylist() == [["sad", 'very "happy"', None]]
    nested = render(session, "public.names[]", ['{"{a,NULL}","{}",NULL}'])
    assert_exact(nested, stored_array(stored_array(bytes.decode)))


def test_box_arrays_are_lists_and_arrays_of_a_domain_over_box_are_text(
    session: psycopg.Connection[Any],
) -> None:
    boxes = render(session, "box[]", ["{(3,4),(1,2);(1,1),(0,0)}", "{NULL}", "{}"])
    assert boxes.cast().values.to_pylist() == [["(3,4),(1,2)", "(1,1),(0,0)"], [None], []]
    assert_text(render(session, "public.corner[]", ["{(3,4),(1,2);(1,1),(0,0)}"]))


def test_a_float_of_pgvector_keeps_its_bits(server_home: Path) -> None:
    # The package of PostgreSQL 16 brings pgvector.
    server = EmbeddedPostgres(server_home, installation=find_installation(16))
    try:
        server.start()
        with psycopg.connect(server.conninfo(), autocommit=True) as session:
            session.execute("CREATE EXTENSION vector SCHEMA public")
            pin(session)
            inputs = ["[1,2,3]", "[-0,1e-45,3.4028235e+38]", "[0.1,1e10,-5]", None]
            rendered = render(session, "public.vector(3)", inputs)
            assert rendered.column.type_name == "public.vector(3)"
            assert_exact(rendered, stored_vector)
            arrays = ['{"[1,2,3]",NULL}', "{}", '{"[1,2,3]","[4,5,6]"}']
            assert_exact(render(session, "public.vector(3)[]", arrays), stored_array(stored_vector))
            assert_exact(
                render(session, "public.vector(1)[]", ['{"[1]"}', "{[2]}"]),
                stored_array(stored_vector),
            )
    finally:
        server.destroy()
