# ruff: noqa: E501  a vector is one line
"""Exact vectors per type, policies, and text that is not of the type."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.types.cast import (
    FAIL,
    FAMILIES,
    NULL_AND_KEEP,
    CastResult,
    ValuePolicy,
    column_caster,
)
from airflow_provider_pgoutput.capture.types.mapping import BOX_ARRAY_OID, arrow_type
from airflow_provider_pgoutput.errors import ConfigurationError, ProtocolError, ValueRefused

UTC = dt.UTC


def column(lake_type: str, type_oid: int = 0) -> Column:
    return Column("amount", type_oid, -1, f"pg {lake_type}", lake_type)


def cast(lake_type: str, texts: list[str | None], type_oid: int = 0) -> CastResult:
    raw = pa.array([None if each is None else each.encode() for each in texts], pa.binary())
    return column_caster(column(lake_type, type_oid), ValuePolicy()).cast(raw)


VECTORS: list[tuple[str, list[str | None], list[Any]]] = [
    ("boolean", ["t", None, "f"], [True, None, False]),
    ("int", ["0", "-2147483648", None, "2147483647"], [0, -(2**31), None, 2**31 - 1]),
    ("long", ["-9223372036854775808", "9223372036854775807"], [-(2**63), 2**63 - 1]),
    ("long", ["4294967295", "0"], [4294967295, 0]),
    ("float", ["3.4028235e+38", "1e-45", "Infinity"], [3.4028234663852886e38, 1.401298464324817e-45, float("inf")]),
    ("double", ["-0", "5e-324", "-Infinity", "0.1"], [-0.0, 5e-324, float("-inf"), 0.1]),
    ("decimal(12, 2)", ["0.00", "-0.01", "9999999999.99", None], [Decimal("0.00"), Decimal("-0.01"), Decimal("9999999999.99"), None]),
    ("decimal(20, 0)", ["18446744073709551615"], [Decimal(2**64 - 1)]),
    ("decimal(38, 38)", ["0." + "9" * 38], [Decimal("0." + "9" * 38)]),
    ("decimal(38, 9)", ["0.125" + "0" * 37, "-5." + "0" * 200, None, "1" * 29 + ".5" + "0" * 12],
     [Decimal("0.125000000"), Decimal("-5.000000000"), None, Decimal("1" * 29 + ".500000000")]),
    ("string", ["", "é€😀", " pad  ", None], ["", "é€😀", " pad  ", None]),
    ("binary", ["\\x", "\\x00ff7f", None], [b"", b"\x00\xff\x7f", None]),
    ("date", ["0001-01-01", "2024-02-29", None, "9999-12-31"], [dt.date(1, 1, 1), dt.date(2024, 2, 29), None, dt.date(9999, 12, 31)]),
    ("timestamp", ["0001-01-01 00:00:00", "1969-12-31 23:59:59.5", "9999-12-31 23:59:59.999999"],
     [dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 500000), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)]),
    ("timestamptz", ["2024-02-29 12:34:56.000001+00", None], [dt.datetime(2024, 2, 29, 12, 34, 56, 1, UTC), None]),
    ("list<int>", ["{1,-2,NULL}", "{}", None], [[1, -2, None], [], None]),
    ("list<boolean>", ["{t,f,NULL}"], [[True, False, None]]),
    ("list<string>", ['{"",NULL,"NULL","null",a}', '{"{",",","}"," b "}'], [["", None, "NULL", "null", "a"], ["{", ",", "}", " b "]]),
    ("list<string>", [r'{"a\"b\\c","\\\\","\""}', "{é,€}"], [['a"b\\c', "\\\\", '"'], ["é", "€"]]),
    ("list<binary>", [r'{"\\x00ff","\\x",NULL}'], [[b"\x00\xff", b"", None]]),
    ("list<decimal(12, 2)>", ["{1.00,NULL}"], [[Decimal("1.00"), None]]),
    ("list<timestamp>", ['{"2024-02-29 00:00:00"}'], [[dt.datetime(2024, 2, 29)]]),
    ("list<float>", ["[1,2.5,-3e-05]", None], [[1.0, 2.5, -2.9999999242136255e-05], None]),
    ("list<float>", ["{1,NULL}", "{}"], [[1.0, None], []]),
    ("list<list<float>>", ['{"[1,2]",[3],NULL}', "{}"], [[[1.0, 2.0], [3.0], None], []]),
    ("list<list<int>>", ['{"{1,2}","{}",NULL}'], [[[1, 2], [], None]]),
    ("map<string, string>", ['"a"=>"1", "b"=>NULL', "", None], [[("a", "1"), ("b", None)], [], None]),
    ("map<string, string>", [r'"=>"=>"\"", "\\"=>", ", ""=>""', '"k"=>NULL'], [[("=>", '"'), ("\\", ", "), ("", "")], [("k", None)]]),
]  # fmt: skip


@pytest.mark.parametrize(("lake_type", "texts", "expected"), VECTORS)
def test_text_becomes_this_value(
    lake_type: str, texts: list[str | None], expected: list[Any]
) -> None:
    result = cast(lake_type, texts)
    result.values.validate(full=True)
    assert result.values.type == arrow_type(lake_type)
    assert (
        repr(result.values.to_pylist()) == repr(expected) or result.values.to_pylist() == expected
    )
    assert result.rejected.tolist() == []
    assert result.rejected.dtype == np.int64


@pytest.mark.parametrize(("lake_type", "texts", "expected"), VECTORS)
def test_a_slice_and_null_slots_with_bytes_change_nothing(
    lake_type: str, texts: list[str | None], expected: list[Any]
) -> None:
    encoded = [None if each is None else each.encode() for each in texts]
    # Hide a value under a null: its bytes stay in the buffer.
    full = pa.array([b"junk", *[each or b"{junk" for each in encoded], b"junk"], pa.binary())
    present = pa.array([False, *[each is not None for each in encoded], True])
    _, offsets, data = full.buffers()
    hidden = pa.Array.from_buffers(pa.binary(), len(full), [present.buffers()[1], offsets, data])[
        1:-1
    ]
    if "" in texts:
        hidden = pa.array([b"junk", *encoded], pa.binary())[1:]
    result = column_caster(column(lake_type), ValuePolicy()).cast(hidden)
    result.values.validate(full=True)
    assert result.values.to_pylist() == cast(lake_type, texts).values.to_pylist()


@pytest.mark.parametrize("lake_type", sorted({each[0] for each in VECTORS}))
@pytest.mark.parametrize("texts", [[], [None], [None, None, None]])
def test_a_column_without_values_keeps_its_type(lake_type: str, texts: list[str | None]) -> None:
    result = cast(lake_type, texts)
    assert result.values.type == arrow_type(lake_type)
    assert result.values.to_pylist() == texts
    assert len(result.rejected) == 0


def test_a_box_array_is_cut_at_semicolons() -> None:
    result = cast("list<string>", ["{(3,4),(1,2);(1,1),(0,0)}"], BOX_ARRAY_OID)
    assert result.values.to_pylist() == [["(3,4),(1,2)", "(1,1),(0,0)"]]


UNHOLDABLE = [
    ("decimal(12, 2)", "1.00", ["NaN", "Infinity", "-Infinity", "10000000000.00", "-10000000000.00", "1.001"]),
    # Arrow alone reads 0.00 and 1.00 here.
    ("decimal(12, 2)", "1.00", ["1" + "0" * 130 + ".00", "1" + "0" * 130 + "1.00", "-" + "9" * 300]),
    ("decimal(2, 2)", "0.01", ["1.00", "NaN"]),
    ("date", "2024-02-29", ["infinity", "-infinity", "0001-12-31 BC", "10000-01-01", "5874897-12-31", "4713-01-01 BC"]),
    ("timestamp", "2024-02-29 00:00:00", ["infinity", "-infinity", "0044-03-15 00:00:00 BC", "294276-12-31 23:59:59.999999"]),
    ("timestamptz", "2024-02-29 00:00:00+00", ["infinity", "-infinity", "0044-03-15 00:00:00+00 BC", "10000-01-01 00:00:00.5+00"]),
    ("list<int>", "{1}", ["{{1,2},{3,4}}", "[0:1]={1,2}", "[2:2][3:4]={{1,2}}"]),
    ("list<date>", "{2024-02-29}", ["{infinity}", '{2024-02-29,"0044-03-15 BC"}', "{{2024-02-29}}"]),
    ("list<decimal(12, 2)>", "{1.00}", ["{NaN}", "{1.00,NaN,NULL}"]),
]  # fmt: skip


@pytest.mark.parametrize(("lake_type", "good", "bad"), UNHOLDABLE)
def test_a_value_that_does_not_fit_is_null_and_reported(
    lake_type: str, good: str, bad: list[str]
) -> None:
    texts = [good, None]
    for each in bad:
        texts += [each, good]
    result = cast(lake_type, texts)
    result.values.validate(full=True)
    assert result.rejected.tolist() == list(range(2, len(texts), 2))
    fitting = cast(lake_type, [good]).values.to_pylist()[0]
    assert result.values.to_pylist() == [fitting, None] + [None, fitting] * len(bad)


@pytest.mark.parametrize(("lake_type", "good", "bad"), UNHOLDABLE)
def test_under_the_policy_fail_it_is_refused_without_being_shown(
    lake_type: str, good: str, bad: list[str]
) -> None:
    family = next(each for each in FAMILIES if lake_type.startswith(each))
    policy = ValuePolicy(NULL_AND_KEEP, {family: FAIL})
    caster = column_caster(column(lake_type), policy, table="public.orders")
    for each in bad:
        with pytest.raises(ValueRefused, match="do not fit") as caught:
            caster.cast(pa.array([good.encode(), each.encode()], pa.binary()))
        assert caught.value.table == "public.orders"
        assert caught.value.column == "amount"
        assert f"pg {lake_type}" in str(caught.value)
        assert each not in str(caught.value)
    assert len(caster.cast(pa.array([good.encode()], pa.binary())).rejected) == 0


def test_a_family_can_be_exempt_from_a_policy_of_fail() -> None:
    policy = ValuePolicy(FAIL, {"timestamp": NULL_AND_KEEP})
    raw = pa.array([b"infinity"], pa.binary())
    assert len(column_caster(column("timestamptz"), policy).cast(raw).rejected) == 1
    with pytest.raises(ValueRefused):
        column_caster(column("date"), policy).cast(raw)


@pytest.mark.parametrize(
    ("default", "by_family"), [("clamp", {}), (FAIL, {"date": "zero"}), (FAIL, {"uuid": FAIL})]
)
def test_an_unknown_policy_is_refused(default: str, by_family: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="Unknown"):
        ValuePolicy(default, by_family)


MALFORMED = [
    ("boolean", ["true", "", "x", "1"]),
    ("int", ["", "secret", "2147483648", "1.0", "1 "]),
    ("long", ["9223372036854775808", "NaN"]),
    ("double", ["", "1,5", "$1"]),
    ("decimal(12, 2)", ["", "1,00", "secret", "$1.00", "1.0.0", "1.0." + "0" * 60, "1-1.0"]),
    ("binary", ["", "\\", "secret", "\\x0", "\\x0g", "\\000abc", "0x00", "00"]),
    ("date", ["", "02/29/2024", "29.02.2024", "2023-02-29", "20240229", "Infinity"]),
    ("timestamp", ["02/29/2024 00:00:00", "2024-02-29 25:00:00", "Thu Feb 29 00:00:00 2024", "2024-02-29 00:00:00.1234567"]),
    ("timestamptz", ["2024-02-29 00:00:00", "02/29/2024 00:00:00 UTC"]),
    ("list<int>", ["", "{", "1", "{1", "1}", "{1,}", "{,}", "{x}", "[1,2]x", "1,2"]),
    ("list<string>", ['{"a}', '{"a"b}', '{a"b"}', '{"a""b"}', r'{","NULL\"}', "{}}", "{a}}", '"']),
    ("list<float>", ["[1,2", "[1,,2]", "[]]", "[[1]]"]),
    ("map<string, string>", ["a=>1", '"a"', '"a"=>', '"a"=>"1"x', '"a"=>"1","b"=>"2"', '"a"=>"b"=>"c"', '=>"a"', '"a"=>NUL']),
]  # fmt: skip


@pytest.mark.parametrize(("lake_type", "texts"), MALFORMED)
def test_text_of_another_form_is_an_error_that_does_not_show_it(
    lake_type: str, texts: list[str]
) -> None:
    for each in texts:
        with pytest.raises(ProtocolError, match="not in the text form") as caught:
            cast(lake_type, [each])
        assert caught.value.column == "amount"
        assert "secret" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


@pytest.mark.parametrize("lake_type", ["string", "list<string>", "map<string, string>"])
def test_bytes_that_are_not_utf8_are_refused_with_advice(lake_type: str) -> None:
    text = {"string": b"caf\xe9", "list<string>": b"{caf\xe9}"}.get(lake_type, b'"a"=>"\xe9"')
    caster = column_caster(column(lake_type), ValuePolicy(), table="public.orders")
    with pytest.raises(ValueRefused, match=r"not valid UTF-8.*SQL_ASCII"):
        caster.cast(pa.array([text], pa.binary()))


def test_everything_survives_parquet(tmp_path: Any) -> None:
    columns = {f"c{i}": cast(lake, [*texts, *[None] * (4 - len(texts))]).values
               for i, (lake, texts, _) in enumerate(VECTORS)}  # fmt: skip
    for i, (lake, good, bad) in enumerate(UNHOLDABLE):
        columns[f"u{i}"] = cast(lake, [good, bad[0], bad[1], None]).values
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "all.parquet", compression="zstd")
    assert pq.read_table(tmp_path / "all.parquet").equals(table)
