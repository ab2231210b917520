"""Bytes that are not the binary form of their type: the typed error that names the column, nothing else."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.types.cast import (
    FAIL,
    ValuePolicy,
    binary_caster,
    column_caster,
)
from airflow_provider_pgoutput.capture.types.mapping import lake_type
from airflow_provider_pgoutput.errors import NoBinaryForm, ProtocolError, ValueRefused
from tests.capture.types.oracle import assert_same
from tests.capture.types.test_types_oracle import exactly
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from collections.abc import Sequence


def _column(type_sql: str, type_oid: int, type_modifier: int = -1) -> Column:
    return Column(
        "amount", type_oid, type_modifier, type_sql, lake_type(type_oid, type_modifier, {})
    )


def _array(
    element_oid: int, *elements: bytes | None, shape: Sequence[tuple[int, int]] = ()
) -> bytes:
    """What ``array_send`` makes."""
    bounds = shape or [(len(elements), 1)]
    head = struct.pack("!iiI", len(bounds), int(None in elements), element_oid)
    sizes = b"".join(struct.pack("!ii", *each) for each in bounds)
    parts = (
        struct.pack("!i", -1) if each is None else struct.pack("!i", len(each)) + each
        for each in elements
    )
    return head + sizes + b"".join(parts)


_NUMERIC = struct.pack("!hhHh2h", 2, 1, 0x4000, 2, 12, 3400)
_INT = struct.pack("!i", 7)
_DECIMAL_MODIFIER = (12 << 16 | 2) + 4

#: Values of which no beginning, and nothing longer, is a value.
WHOLE = {
    "bool": (_column("boolean", 16), b"\x01"),
    "int2": (_column("smallint", 21), bytes(2)),
    "int4": (_column("integer", 23), bytes(4)),
    "int8": (_column("bigint", 20), bytes(8)),
    "oid": (_column("oid", 26), bytes(4)),
    "float4": (_column("real", 700), bytes(4)),
    "float8": (_column("double precision", 701), bytes(8)),
    "date": (_column("date", 1082), bytes(4)),
    "time": (_column("time", 1083), bytes(8)),
    "timestamp": (_column("timestamp", 1114), bytes(8)),
    "timestamptz": (_column("timestamptz", 1184), struct.pack("!q", 2**63 - 1)),
    "uuid": (_column("uuid", 2950), bytes(16)),
    "numeric": (_column("numeric", 1700), _NUMERIC),
    "decimal": (_column("numeric(12,2)", 1700, _DECIMAL_MODIFIER), _NUMERIC),
    "int4[]": (_column("integer[]", 1007), _array(23, _INT, _INT)),
    "int4[] with NULL": (_column("integer[]", 1007), _array(23, _INT, None)),
    "int4[] of two dimensions": (_column("integer[]", 1007), _array(23, _INT, _INT, shape=[(1, 1), (2, 1)])),
    "int4[] from 0": (_column("integer[]", 1007), _array(23, _INT, shape=[(1, 0)])),
    "int4[] empty": (_column("integer[]", 1007), struct.pack("!iiI", 0, 0, 23)),
    "text[]": (_column("text[]", 1009), _array(25, b"abc", None, b"", b"de")),
    "numeric[]": (_column("numeric[]", 1231), _array(1700, _NUMERIC)),
}  # fmt: skip


def _refused(column: Column, wire: bytes, times: int) -> None:
    caster = binary_caster(column, ValuePolicy(), types={}, table="public.orders")
    for work in (caster.cast, caster.texts):
        with pytest.raises(ProtocolError, match="not in the binary form") as caught:
            work(pa.array([wire] * times, pa.binary()))
        assert (caught.value.table, caught.value.column) == ("public.orders", "amount")
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("times", [1, 50])
def test_a_value_cut_short_or_too_long_is_refused(name: str, times: int) -> None:
    column, wire = WHOLE[name]
    binary_caster(column, ValuePolicy(), types={}).cast(pa.array([wire] * times, pa.binary()))
    for size in range(len(wire)):
        _refused(column, wire[:size], times)
    _refused(column, wire + b"\x00", times)
    _refused(column, wire + wire, times)


MALFORMED = {
    "bool 2": (_column("boolean", 16), b"\x02"),
    "jsonb empty": (_column("jsonb", 3802), b""),
    "jsonb of version 2": (_column("jsonb", 3802), b"\x02{}"),
    "time past midnight": (_column("time", 1083), struct.pack("!q", 86_400_000_001)),
    "time below zero": (_column("time", 1083), struct.pack("!q", -1)),
    "date before the first": (_column("date", 1082), struct.pack("!i", -2_451_546)),
    "date after the last": (_column("date", 1082), struct.pack("!i", 2_145_031_949)),
    "timestamp before the first": (_column("timestamp", 1114), struct.pack("!q", -211_813_488_000_000_001)),
    "timestamp after the last": (_column("timestamptz", 1184), struct.pack("!q", 9_223_371_331_200_000_001)),
    "numeric of an unknown sign": (_column("numeric", 1700), struct.pack("!hhHh", 0, 0, 0x8000, 0)),
    "NaN with digits": (_column("numeric", 1700), struct.pack("!hhHhh", 1, 0, 0xC000, 0, 1)),
    "numeric with a scale too large": (_column("numeric", 1700), struct.pack("!hhHH", 0, 0, 0, 0x4000)),
    "numeric with a group of 10000": (_column("numeric", 1700), struct.pack("!hhHhh", 1, 0, 0, 0, 10_000)),
    "numeric with a negative group": (_column("numeric", 1700), struct.pack("!hhHhh", 1, 0, 0, 0, -1)),
    "numeric with a negative count": (_column("numeric", 1700), struct.pack("!hhHh", -1, 0, 0, 0)),
    "array of another type": (_column("integer[]", 1007), _array(25, _INT)),
    "array of seven dimensions": (_column("integer[]", 1007), _array(23, _INT, shape=[(1, 1)] * 7)),
    "array of minus one dimensions": (_column("integer[]", 1007), struct.pack("!iiI", -1, 0, 23)),
    "array with an unknown flag": (_column("integer[]", 1007), struct.pack("!iiI", 0, 2, 23)),
    "array of a negative length": (_column("integer[]", 1007), _array(23, shape=[(-1, 1)])),
    "array of too many elements": (_column("integer[]", 1007), _array(23, _INT, shape=[(2**31 - 1, 1)] * 6)),
    "array with a length of -2": (_column("text[]", 1009), _array(25, shape=[(1, 1)]) + b"\xff\xff\xff\xfe"),
    "array whose element is too long": (_column("integer[]", 1007), _array(23, _INT + b"\x00")),
    "array that ends in an element": (_column("text[]", 1009), _array(25, shape=[(1, 1)]) + b"\0\0\0\x09"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("times", [1, 50])
def test_bytes_of_another_form_are_refused(name: str, times: int) -> None:
    _refused(*MALFORMED[name], times)


GARBLED = [
    *(column for column, _ in WHOLE.values()),
    _column("jsonb", 3802),
    _column("text", 25),
    _column("bytea", 17),
]


@exactly
@given(
    st.sampled_from(GARBLED), st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=5)
)
def test_garbage_is_a_value_or_refused_and_nothing_else(
    column: Column, rows: list[bytes | None]
) -> None:
    _cast_or_refuse(column, pa.array(rows, pa.binary()))


@pytest.mark.parametrize("name", slow_but_each(7, WHOLE))
def test_a_changed_byte_is_a_value_or_refused_and_nothing_else(name: str) -> None:
    column, wire = WHOLE[name]
    # Zeros past the scale: the digits of the decimal are still there, its text is too long for one.
    display_scale = range(6, 8) if name == "decimal" else ()
    for place in set(range(len(wire))) - set(display_scale):
        for byte in (0, 1, 2, 0x3F, 0x7F, 0x80, 0xC0, 0xFF):
            changed = wire[:place] + bytes([byte]) + wire[place + 1 :]
            _cast_or_refuse(column, pa.array([wire, changed, None], pa.binary()))


def _cast_or_refuse(column: Column, wire: pa.Array) -> None:
    caster = binary_caster(column, ValuePolicy(), types={})
    try:
        result = caster.cast(wire)
    except (NoBinaryForm, ProtocolError, ValueRefused):
        return
    result.values.validate(full=True)
    # What was cast can be printed, and the text gives the same again.
    assert_same(column_caster(column, ValuePolicy()).cast(caster.texts(wire)), result)


#: Weight, sign, display scale and groups of numbers that no column of numeric(12,2) stores, and their text.
ODD_NUMBERS = [
    ((0, 0, 3, 1, 10), "1.001"),
    ((0, 0, 1, 1, 5000), "1.5"),
    ((0, 0, 0, 7), "7"),
    ((0, 0x4000, 4, 1, 2300), "-1.2300"),
    ((0, 0, 6, 1, 0, 100), "1.000001"),
    ((-1, 0, 1, 5678), "0.5"),
    ((0, 0, 2, 1, 2399, 9999), "1.23"),
    ((2, 0, 2, 100), "10000000000.00"),
    ((2, 0, 2, 99, 9999, 9999, 9900), "9999999999.99"),
    ((3, 0, 2, 1), "1000000000000.00"),
    ((0, 0xC000, 0), "NaN"),
    ((0, 0xD000, 32), "Infinity"),
]


def test_a_decimal_of_another_scale_is_what_its_text_is() -> None:
    wires = [struct.pack(f"!hhHH{len(each) - 3}h", len(each) - 3, *each) for each, _ in ODD_NUMBERS]
    raw = pa.array([text.encode() for _, text in ODD_NUMBERS], pa.binary())
    column = _column("numeric(12,2)", 1700, _DECIMAL_MODIFIER)
    caster = binary_caster(column, ValuePolicy(), types={})
    assert caster.texts(pa.array(wires, pa.binary())).equals(raw)
    expected = column_caster(column, ValuePolicy()).cast(raw)
    assert_same(caster.cast(pa.array(wires, pa.binary())), expected)
    assert [ODD_NUMBERS[row][1] for row in expected.rejected] == [
        "1.001", "1.000001", "10000000000.00", "1000000000000.00", "NaN", "Infinity",
    ]  # fmt: skip


def test_bytes_that_are_not_utf8_are_refused_as_in_text() -> None:
    for column, wire in (
        (_column("text", 25), b"caf\xe9"),
        (_column("text[]", 1009), _array(25, b"caf\xe9")),
        (_column("jsonb", 3802), b'\x01"\xe9"'),
    ):
        caster = binary_caster(column, ValuePolicy(), types={}, table="public.orders")
        with pytest.raises(ValueRefused, match=r"not valid UTF-8.*SQL_ASCII"):
            caster.cast(pa.array([wire], pa.binary()))


def test_the_policy_fail_refuses_binary_values_too() -> None:
    caster = binary_caster(
        _column("date", 1082), ValuePolicy(FAIL), types={}, table="public.orders"
    )
    with pytest.raises(ValueRefused, match=r"1 value\(s\) of type date do not fit"):
        caster.cast(pa.array([struct.pack("!i", 2**31 - 1), bytes(4)], pa.binary()))


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("rows", [[], [None], [None, None, None]])
def test_a_column_without_values_keeps_its_type(name: str, rows: list[None]) -> None:
    column, _ = WHOLE[name]
    caster = binary_caster(column, ValuePolicy(), types={})
    result = caster.cast(pa.array(rows, pa.binary()))
    assert result.values.type == caster.arrow_type
    assert result.values.to_pylist() == rows
    assert len(result.rejected) == 0
    assert caster.texts(pa.array(rows, pa.binary())).to_pylist() == rows


@pytest.mark.parametrize("name", WHOLE)
def test_bytes_under_a_null_change_nothing(name: str) -> None:
    column, wire = WHOLE[name]
    full = pa.array([b"junk", wire, b"hidden", wire], pa.binary())
    _, offsets, data = full.buffers()
    bitmap = pa.array([False, True, False, True]).buffers()[1]
    hidden = pa.Array.from_buffers(pa.binary(), 4, [bitmap, offsets, data])
    caster = binary_caster(column, ValuePolicy(), types={})
    plain_rows = pa.array([None, wire, None, wire], pa.binary())
    assert_same(caster.cast(hidden), caster.cast(plain_rows))
    assert caster.texts(hidden).equals(caster.texts(plain_rows))
