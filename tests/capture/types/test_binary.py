"""Binary mode gives what text mode gives: one test body, two forms of the same values from one server.

The vectors and the generated values are those of the tests of text; what does not fit is the same rows,
and what is kept of it the same text.
"""

from __future__ import annotations

import dataclasses
import json
import random
import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.source.binary_forms import check_binary_forms
from airflow_provider_pgoutput.capture.source.catalog import PublishedColumn, PublishedTable
from airflow_provider_pgoutput.capture.source.keys import RowIdentity
from airflow_provider_pgoutput.capture.types.cast import (
    ColumnCaster,
    ValuePolicy,
    binary_caster,
    can_be_sent,
    column_caster,
    has_binary_form,
)
from airflow_provider_pgoutput.capture.types.mapping import CATALOG_QUERY, lake_type, type_catalog
from airflow_provider_pgoutput.capture.types.type_info import (
    ATTRIBUTE_QUERY,
    BUILTIN_TYPES,
    Attribute,
    TypeInfo,
    with_attributes,
)
from airflow_provider_pgoutput.errors import NoBinaryForm
from tests.capture.types.oracle import Rendered, assert_same, pin, render
from tests.capture.types.special_values import VALUES
from tests.capture.types.strategies import NASTY_TEXTS, SCALARS, TEXTS, UNBOUNDED, decimals
from tests.capture.types.test_types_oracle import _ARRAY, exactly
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What the documentation promises.
SUPPORTED = [
    "bool", "bytea", "name", "int8", "int2", "int4", "text", "oid", "json", "float4", "float8", "bpchar",
    "varchar", "date", "time", "timestamp", "timestamptz", "numeric", "uuid", "jsonb",
]  # fmt: skip
ODD_VALUES = {
    **{name: VALUES[name] for name in SUPPORTED},
    "numeric": [*VALUES["numeric"], "10000", "9999.9999", "-0.0001", "0.00010000", "1e-16383", "1e131071",
                "12345678901234567890.123456789", "100000000", "-5", "0.5"],
    "numeric(12,2)": ["NaN", "0", "0.01", "-9999999999.99", "1000", "-0.5"],
    "numeric(4,4)": ["NaN", "0.1234", "-0.0001"],
    "numeric(19,0)": ["-9999999999999999999", "1", "NaN", "10000"],
    "numeric(38,20)": ["-1", "999999999999999999.99999999999999999999", "0.00000000000000000001"],
    "numeric(38,3)": ["-99999999999999999999999999999999999.999", "18446744073709551616", "0.5"],
    "date": [*VALUES["date"], "0001-01-01", "0001-12-31 BC", "10000-01-01", "1999-12-31", "2000-01-01"],
    "time": [*VALUES["time"], "00:00:00.1", "12:34:56.000100", "01:02:03.12"],
    "timestamp": [*VALUES["timestamp"], "0001-12-31 23:59:59.999999 BC", "9999-12-31 23:59:59.999999",
                  "10000-01-01 00:00:00.5", "1999-12-31 23:59:59.9"],
    "public.mood": ["sad", 'very "happy"'],
    "public.price": ["0.01", "9999999999.99"],
    "public.names": ["{a,NULL}", "{{a},{b}}", "[0:0]={x}", "{}"],
    "public.names[]": ['{"{a,NULL}","{}",NULL}', '{"{{a},{b}}"}'],
    "public.mood[]": ['{sad,"very \\"happy\\"",NULL}'],
    "public.price[]": ["{1.50,NULL,0.01}"],
}  # fmt: skip


def types_of(session: psycopg.Connection[Any]) -> Mapping[int, TypeInfo]:
    catalog = type_catalog(session.execute(CATALOG_QUERY).fetchall())
    return with_attributes(catalog, session.execute(ATTRIBUTE_QUERY).fetchall())


def casters(session: psycopg.Connection[Any], column: Column) -> tuple[ColumnCaster, ColumnCaster]:
    policy = ValuePolicy()
    types = types_of(session)
    return column_caster(column, policy, types=types), binary_caster(column, policy, types=types)


def assert_forms_agree(session: psycopg.Connection[Any], rendered: Rendered) -> None:
    """Values, rejected rows and their text are those of the text form, also in a slice and row by row."""
    text, binary = casters(session, rendered.column)
    wire = pa.array(rendered.stored, pa.binary())
    assert wire.null_count == rendered.raw.null_count
    expected = text.cast(rendered.raw)
    assert_same(binary.cast(wire), expected)
    assert binary.texts(wire).equals(text.texts(rendered.raw))
    padded = pa.array([b"junk", *rendered.stored, b"junk"], pa.binary())[1:-1]
    assert_same(binary.cast(padded), expected)
    assert binary.texts(padded).equals(rendered.raw)
    for row in range(len(wire)):
        alone = text.cast(rendered.raw[row : row + 1])
        assert_same(binary.cast(wire[row : row + 1]), alone)


@pytest.mark.parametrize("name", ODD_VALUES)
def test_odd_values_are_the_same(session: psycopg.Connection[Any], name: str) -> None:
    values = ODD_VALUES[name]
    assert_forms_agree(session, render(session, name, [None, *values, None]))
    assert_forms_agree(session, render(session, name, values))


@pytest.mark.parametrize("lake_type", ["decimal(38, 9)", "decimal(18, 3)", "list<decimal(38, 9)>"])
def test_zeros_at_the_end_of_a_fraction_are_no_digits(
    session: psycopg.Connection[Any], lake_type: str
) -> None:
    type_sql, inputs = "numeric(90,40)", ["0.125", "-0.125", "0", "-1234567890123456789", "1e29"]
    inputs += ["0.0000000001", "12345678901234.5", "NaN", "100"]
    expression = None
    if lake_type.startswith("list"):
        type_sql, expression = f"{type_sql}[]", f"ARRAY[s::{type_sql}, NULL]"
    rendered = render(session, type_sql, inputs, expression)
    column = dataclasses.replace(rendered.column, lake_type=lake_type)
    assert_forms_agree(session, dataclasses.replace(rendered, column=column))
    found = column_caster(column, ValuePolicy()).cast(rendered.raw).values[0].as_py()
    assert (found if expression is None else found[0]) == Decimal("0.125")


@pytest.mark.parametrize("name", [name for name in ODD_VALUES if not name.endswith("[]")])
def test_arrays_of_odd_values_are_the_same(session: psycopg.Connection[Any], name: str) -> None:
    values = ODD_VALUES[name]
    shapes = ["list", "matrix", "bounds"]
    inputs = [json.dumps([shape, [value, None]]) for value in values for shape in shapes]
    inputs += [json.dumps([shape, values]) for shape in shapes]
    expression = f"CASE WHEN s IS NOT NULL THEN {_ARRAY.format(name)} END"
    assert_forms_agree(
        session, render(session, f"{name}[]", [None, "[0, []]", *inputs, None], expression)
    )


NUMBERS = {
    "numeric": UNBOUNDED,
    "numeric(40,2)": decimals(40, 2),
    "numeric(18,4)": decimals(18, 4),
    "numeric(19,3)": decimals(19, 3),
    "numeric(38,18)": decimals(38, 18),
}
CLOCKS = st.one_of(
    st.times().map(str),
    st.builds("{:02}:00:00.{}".format, st.integers(0, 23), st.integers(0, 999_999)),
)
GENERATED: dict[str, st.SearchStrategy[str]] = {
    **{
        type_sql: texts
        for type_sql, (base, texts) in SCALARS.items()
        if base not in {"xid", "cid", "xid8"}
    },
    **NUMBERS,
    "uuid": st.uuids().map(str),
    "time": CLOCKS,
    "time(3)": CLOCKS,
    "json": TEXTS.map(json.dumps),
    "jsonb": st.recursive(
        st.none() | TEXTS, lambda some: st.lists(some) | st.dictionaries(TEXTS, some), max_leaves=5
    ).map(json.dumps),
    "name": TEXTS,
}


@pytest.mark.parametrize("type_sql", slow_but_each(2, GENERATED))
def test_generated_values_are_the_same(session: psycopg.Connection[Any], type_sql: str) -> None:
    @exactly
    @given(st.lists(st.none() | GENERATED[type_sql], min_size=1, max_size=40))
    def check(inputs: list[str | None]) -> None:
        assert_forms_agree(session, render(session, type_sql, inputs))

    check()


ELEMENTS = {
    **{name: GENERATED[name] for name in ("bool", "int2", "float4", "float8", "numeric", "uuid")},
    **{
        name: GENERATED[name] for name in ("numeric(12,2)", "date", "timestamptz", "bytea", "jsonb")
    },
    "text": NASTY_TEXTS,
}


@pytest.mark.parametrize("element", ELEMENTS)
def test_generated_arrays_are_the_same(session: psycopg.Connection[Any], element: str) -> None:
    shapes = st.sampled_from(["list", "list", "list", "matrix", "bounds"])
    arrays = st.tuples(shapes, st.lists(st.none() | ELEMENTS[element], max_size=6)).map(json.dumps)
    expression = f"CASE WHEN s IS NOT NULL THEN {_ARRAY.format(element)} END"

    @exactly
    @given(st.lists(st.none() | arrays, min_size=1, max_size=40))
    def check(inputs: list[str | None]) -> None:
        assert_forms_agree(session, render(session, f"{element}[]", inputs, expression))

    check()


@pytest.mark.parametrize("element", ["int8", "text"])
def test_arrays_of_very_different_lengths_are_the_same(
    session: psycopg.Connection[Any], element: str
) -> None:
    # More rows than are walked one by one, with and without NULLs, and a few that go on alone.
    chosen = random.Random(61)  # noqa: S311
    lengths = [chosen.choice([0, 1, 3, 40]) for _ in range(150)] + [5000, 5001]
    inputs = [
        json.dumps(["list", [chosen.choice([None, "7", str(n)]) for n in range(length)]])
        for length in lengths
    ]
    expression = _ARRAY.format(element)
    assert_forms_agree(session, render(session, f"{element}[]", inputs, expression))


def _old_float_bits() -> list[bytes]:
    """Floats whose shortest text is disputed: near powers of two and ten, and half-way texts."""
    chosen = random.Random(62)  # noqa: S311
    values = [
        2.0**power * factor
        for power in range(-1074, 1024, 7)
        for factor in (1.0, 1.0 - 2.0**-53, 1.0 + 2.0**-52)
    ]
    values += [10.0**power for power in range(-323, 309)]
    values += [struct.unpack("!d", chosen.randbytes(8))[0] for _ in range(3000)]
    return [struct.pack("!d", each) for each in values]


@pytest.mark.parametrize(("name", "receiver", "width"), [("float8", "!d", 8), ("float4", "!f", 4)])
def test_floats_are_printed_as_the_server_does(
    session: psycopg.Connection[Any], name: str, receiver: str, width: int
) -> None:
    if width == 8:
        stored = _old_float_bits()
    else:
        chosen = random.Random(63)  # noqa: S311
        bits = [power << 23 | low for power in range(255) for low in (0, 1, (1 << 23) - 1)]
        stored = [struct.pack("!I", each) for each in bits]
        stored += [struct.pack("!f", 10.0**power) for power in range(-44, 39)]
        stored += [chosen.randbytes(4) for _ in range(3000)]
    with session.cursor() as cursor:
        cursor.execute(f"CREATE TEMP TABLE floats (v {name})")
        try:
            with cursor.copy("COPY floats FROM STDIN (FORMAT binary)") as copy:
                copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
                copy.write(b"".join(struct.pack("!hi", 1, width) + each for each in stored))
                copy.write(b"\xff\xff")
            cursor.execute("SELECT v FROM floats ORDER BY ctid")
            result = cursor.pgresult
            assert result is not None
            texts = [result.get_value(row, 0) for row in range(result.ntuples)]
        finally:
            cursor.execute("DROP TABLE floats")
    column = Column("v", 701 if width == 8 else 700, -1, name, "double" if width == 8 else "float")
    text, binary = casters(session, column)
    wire = pa.array(stored, pa.binary())
    assert_same(binary.cast(wire), text.cast(pa.array(texts, pa.binary())))
    assert binary.texts(wire).to_pylist() == texts


def test_pgoutput_sends_what_the_send_functions_make(postgres_database: str) -> None:
    """The tuple of an Insert, with option ``binary``, decoded by hand."""
    values = {name: odd[0] for name, odd in ODD_VALUES.items() if not name.startswith("public.")}
    with psycopg.connect(postgres_database, autocommit=True) as session:
        pin(session)
        columns = [f"c{place} {name}" for place, name in enumerate(values)]
        session.execute(f"CREATE TABLE public.t ({', '.join(columns)}, a int4[], b text[])")
        session.execute("CREATE PUBLICATION p FOR TABLE public.t")
        session.execute("SELECT pg_create_logical_replication_slot('binary_form', 'pgoutput')")
        marks = ", ".join(["%s"] * len(values))
        session.execute(
            f"INSERT INTO public.t VALUES ({marks}, '{{1,NULL}}', '{{{{a,b}}}}')",
            list(values.values()),
        )
        messages = session.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('binary_form', NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'p', 'binary', 'true')"
        ).fetchall()
        rows = session.execute(
            "SELECT attname, atttypid::int8, atttypmod, format_type(atttypid, atttypmod)"
            "  FROM pg_attribute WHERE attrelid = 'public.t'::regclass AND attnum > 0 ORDER BY attnum"
        ).fetchall()
        result = session.execute("SELECT * FROM public.t").pgresult
        assert result is not None
        texts = [result.get_value(0, place) for place in range(result.nfields)]
        (insert,) = [data for (data,) in messages if data[:1] == b"I"]
        position = 8
        for (name, oid, modifier, type_name), expected in zip(rows, texts, strict=True):
            column = Column(name, oid, modifier, type_name, lake_type(oid, modifier, {}))
            kind, length = struct.unpack_from("!ci", insert, position)
            assert kind == b"b"
            wire = pa.array([insert[position + 5 : position + 5 + length]], pa.binary())
            position += 5 + length
            raw = pa.array([expected], pa.binary())
            text, binary = casters(session, column)
            assert_same(binary.cast(wire), text.cast(raw))
            assert binary.texts(wire).equals(raw)
        assert position == len(insert)


def test_every_type_of_the_server_is_read_in_binary_or_refused() -> None:
    assert [info.name for info in BUILTIN_TYPES.values() if _is_read(info)] == SUPPORTED
    arrays = [info for info in BUILTIN_TYPES.values() if info.element_oid]
    for info in arrays:
        assert has_binary_form(info.oid, {}) == _is_read(BUILTIN_TYPES[info.element_oid])


def _is_read(info: TypeInfo) -> bool:
    return not info.element_oid and has_binary_form(info.oid, {})


USER_TYPES = {
    90001: TypeInfo(90001, "public", "mood", "e"),
    90002: TypeInfo(90002, "public", "pair", "c", attributes=(Attribute("a", 23, -1),)),
    90003: TypeInfo(90003, "public", "price", "d", base_oid=1700, base_type_modifier=786438),
    90004: TypeInfo(90004, "public", "corner", "d", base_oid=603, delimiter=";"),
    90005: TypeInfo(90005, "public", "_corner", "b", element_oid=90004),
    90006: TypeInfo(90006, "public", "hstore", "b", has_send=True),
    # Anybody may name a type so; only its OID says what it is.
    90007: TypeInfo(90007, "public", "uuid", "b", has_send=True),
    90008: TypeInfo(90008, "public", "_mood", "b", element_oid=90001),
    90009: TypeInfo(90009, "public", "names", "d", base_oid=1009),
    90011: TypeInfo(90011, "public", "floats", "r", part_oid=701),
}
USER_TYPES_READ = {90001, 90003, 90008, 90009}


@pytest.mark.parametrize("type_oid", USER_TYPES)
def test_users_types_are_read_as_what_they_are_made_of_or_refused(type_oid: int) -> None:
    assert has_binary_form(type_oid, USER_TYPES) == (type_oid in USER_TYPES_READ)
    assert not has_binary_form(type_oid, {})


def _table(*columns: tuple[str, int]) -> PublishedTable:
    return PublishedTable(
        relation_oid=1,
        schema_name="public",
        table_name="orders",
        kind="r",
        replica_identity="d",
        columns=tuple(
            PublishedColumn(name, oid, -1, None, False, number)
            for number, (name, oid) in enumerate(columns, 1)
        ),
        row_identity=RowIdentity("d", ("id",), frozenset({"id"})),
        row_filters=(),
    )


def test_tables_with_other_types_are_refused_before_the_start() -> None:
    check_binary_forms([_table(("id", 20), ("mood", 90001), ("tags", 1009))], USER_TYPES)
    refused = _table(("id", 20), ("place", 3614), ("pair", 90002), ("rights", 1034))
    with pytest.raises(NoBinaryForm) as caught:
        check_binary_forms([_table(("id", 20)), refused], USER_TYPES)
    message = str(caught.value)
    assert "public.orders.place (tsvector), public.orders.pair (public.pair)" in message
    assert "public.orders.rights (aclitem[])" in message
    assert "3 published column(s)" in message
    assert "binary=False" in message


def test_types_without_a_send_function_are_sent_as_text() -> None:
    """In binary mode, too; but not in an array, which the server then refuses to send."""
    types = {
        90020: TypeInfo(90020, "public", "shy", "b"),
        90021: TypeInfo(90021, "public", "shy_domain", "d", base_oid=90020),
        90022: TypeInfo(90022, "public", "_shy", "b", element_oid=90020),
        90023: TypeInfo(90023, "public", "open", "b", has_send=True),
    }
    found = {oid: can_be_sent(oid, types) for oid in (1033, 1034, *types)}
    assert found == {1033: True, 1034: False, 90020: True, 90021: True, 90022: False, 90023: False}


def test_a_column_of_another_type_that_comes_later_is_refused() -> None:
    with pytest.raises(NoBinaryForm, match=r"Type tsvector .*text mode \(binary=False\)") as caught:
        binary_caster(
            Column("amount", 3614, -1, "tsvector", "string"),
            ValuePolicy(),
            types={},
            table="public.orders",
        )
    assert (caught.value.table, caught.value.column) == ("public.orders", "amount")
