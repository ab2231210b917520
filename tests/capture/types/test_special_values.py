"""Scenarios C61 and C62: the odd values of every type, as a real server prints them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgoutput.capture.types.type_info import BUILTIN_TYPES
from airflow_provider_pgoutput.quickstart.binaries import find_installation
from airflow_provider_pgoutput.quickstart.postgres import EmbeddedPostgres
from tests.capture.types.oracle import (
    STORED,
    assert_exact,
    assert_text,
    pin,
    render,
    stored_array,
    stored_vector,
)

pytestmark = pytest.mark.postgres

#: Values of every base type of the server that a table can have; the keys are its names in ``pg_type``.
VALUES: dict[str, list[str]] = {
    "bool": ["t", "f"],
    "bytea": [r"\x", r"\x00", r"\x5c78ff"],
    "char": ["a", "", r"\351", "\\\\"],
    "name": ["x" * 63, "", 'Odd "name"'],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "int2": ["-32768", "32767"],
    "int2vector": ["1 2 -3", ""],
    "int4": ["-2147483648", "2147483647"],
    "regproc": ["now", "-"],
    "text": ["", " ", "\t\n\r", "\\N", "é€😀", "a\u0301", "NULL", "\x01"],
    "oid": ["0", "4294967295"],
    "tid": ["(0,1)", "(4294967295,65535)"],
    "xid": ["0", "4294967295"],
    "cid": ["0", "4294967295"],
    "oidvector": ["1 4294967295", ""],
    "json": ["null", ' {"b": 1, "a": 2, "a": 3.10} ', r'"\u0041\n"', "1e1000"],
    "xml": ["<a>&lt;b/></a>", "text"],
    "point": ["(1.5,-0)", "(Infinity,NaN)", "(1e-310,1e+300)"],
    "lseg": ["[(1,2),(3,4)]"],
    "path": ["((1,2),(3,4))", "[(1,2),(3,4)]"],
    "box": ["(3,4),(1,2)"],
    "polygon": ["((1,2),(3,4),(5,6))"],
    "line": ["{1,-1,0}"],
    "cidr": ["10.0.0.0/8", "::/0", "2001:db8::/32"],
    "float4": ["-0", "NaN", "Infinity", "-Infinity", "1e-45", "3.4028235e38", "0.1"],
    "float8": ["-0", "NaN", "Infinity", "-Infinity", "5e-324", "1.7976931348623157e308", "0.1"],
    "circle": ["<(1,2),3>"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "money": ["-92233720368547758.08", "92233720368547758.07", "0"],
    "macaddr": ["08:00:2b:01:02:03"],
    "inet": ["192.168.0.1", "192.168.0.1/24", "::1", "::ffff:1.2.3.4/128"],
    "aclitem": ["postgres=r/postgres"],
    "bpchar": ["", "a  ", "  a"],
    "varchar": ["", "a  "],
    "date": ["infinity", "-infinity", "0044-03-15 BC", "4713-11-24 BC", "5874897-12-31", "9999-12-31"],
    "time": ["00:00:00", "24:00:00", "23:59:59.999999"],
    "timestamp": ["infinity", "-infinity", "4713-11-24 00:00:00 BC", "294276-12-31 23:59:59.999999", "1-1-1"],
    "timestamptz": ["infinity", "-infinity", "4713-11-24 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00",
                    "2024-03-31 02:30:00 Europe/Berlin", "1883-11-18 12:03:58 America/New_York"],
    "interval": ["-178000000 years", "178000000 years", "1 year -1 mon 3 days -04:05:06.000007", "0",
                 "-0.000001 s", "P1Y2M3DT4H5M6S"],
    "timetz": ["24:00:00-15:59:59", "00:00:00+15:59:59", "12:00:00.1+00"],
    "bit": ["0", "1"],
    "varbit": ["", "0", "10101010101"],
    "numeric": ["NaN", "Infinity", "-Infinity", "1e130", "-1e-130", "0.00", "0"],
    "refcursor": ["c1"],
    "regprocedure": ["abs(integer)"],
    "regoper": ["|/"],
    "regoperator": ["+(integer,integer)"],
    "regclass": ["pg_class"],
    "regtype": ["integer", "text[]"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"],
    "txid_snapshot": ["10:20:10,14"],
    "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF"],
    "tsvector": ["'a':1A 'it''s':2,3B", ""],
    "tsquery": ["'a' & !'b' <2> 'c':*A"],
    "regconfig": ["english"],
    "regdictionary": ["simple"],
    "jsonb": ["null", '{"b": 1, "a": {"c": [1, null, "\\u20ac"]}}', "1e100", '"\\""'],
    "jsonpath": ['$."a"[*]?(@ > 1)'],
    "regnamespace": ["pg_catalog"],
    "regrole": ["postgres"],
    "regcollation": ['"C"'],
    "pg_snapshot": ["10:20:10,14"],
    "xid8": ["0", "18446744073709551615"],
    "int4range": ["[1,10]", "empty", "(,)", "[5,)"],
    "numrange": ["[1.5,2.50)", "(,Infinity]"],
    "tsrange": ["[2024-01-01,infinity)", '["0044-03-15 00:00:00 BC",)'],
    "tstzrange": ["[2024-01-01 00:00:00+00,)"],
    "daterange": ["[2024-01-01,2024-02-01]", "empty"],
    "int8range": ["[1,9223372036854775807)"],
    "int4multirange": ["{[1,3),[5,7)}", "{}"],
    "nummultirange": ["{[1.5,2.5]}"],
    "tsmultirange": ["{[2024-01-01,2024-01-02)}"],
    "tstzmultirange": ["{[2024-01-01,2024-01-02)}"],
    "datemultirange": ["{[2024-01-01,2024-01-02]}"],
    "int8multirange": ["{(,5)}"],
}  # fmt: skip
#: Base types that no table can hold, or that have no input.
_INTERNAL = {
    "pg_node_tree",
    "gtsvector",
    "pg_ndistinct",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
}


def test_no_type_of_the_server_is_forgotten() -> None:
    named = {
        info.name
        for info in BUILTIN_TYPES.values()
        if info.typtype in "brm" and not info.element_oid
    }
    assert named == set(VALUES) | _INTERNAL


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


def test_a_float_of_pgvector_keeps_its_bits() -> None:
    # The package of PostgreSQL 16 brings pgvector.  Only root may enter pytest's own folder.
    home = Path(tempfile.mkdtemp(prefix="pgoutput-tests-vector-"))
    server = EmbeddedPostgres(home, installation=find_installation(16))
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
