"""Composites, intervals and times by choice: exact vectors, what is rejected, and what is no such text."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.types.cast import CastResult, ValuePolicy, column_caster
from airflow_provider_pgoutput.capture.types.mapping import INTERVAL_STRUCT, TypeInfo, lake_type
from airflow_provider_pgoutput.capture.types.options import TypeOptions
from airflow_provider_pgoutput.capture.types.type_info import Attribute
from airflow_provider_pgoutput.errors import ProtocolError, ValueRefused

PAIR, PAIRS, ONE, INTERVAL, TIME = 90001, 90002, 90003, 1186, 1083
TYPES = {
    PAIR: TypeInfo(PAIR, "public", "pair", "c",
                   attributes=(Attribute("a", 1700, 786438), Attribute("b c", 25, -1))),
    PAIRS: TypeInfo(PAIRS, "public", "_pair", "b", element_oid=PAIR),
    ONE: TypeInfo(ONE, "public", "one", "c", attributes=(Attribute("a", 1009, -1),)),
}  # fmt: skip
OPTIONS = TypeOptions({"composite": "struct", "interval": "struct", "time": "micros"})


def cast(type_oid: int, texts: list[str | None], policy: ValuePolicy | None = None) -> CastResult:
    kind = lake_type(type_oid, -1, TYPES, OPTIONS.of("t", "c"))
    column = Column("c", type_oid, -1, "pg type", kind)
    raw = pa.array([None if each is None else each.encode() for each in texts], pa.binary())
    result = column_caster(column, policy or ValuePolicy(), types=TYPES, table="t").cast(raw)
    result.values.validate(full=True)
    return result


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('(1.50,"")', {"a": Decimal("1.50"), "b c": ""}),
        ("(,)", {"a": None, "b c": None}),
        (r'(-1.00,"a ""q"" \\ ,() b")', {"a": Decimal("-1.00"), "b c": r'a "q" \ ,() b'}),
        ('(0.00,"""")', {"a": Decimal("0.00"), "b c": '"'}),
        (r'(0.00,"\\")', {"a": Decimal("0.00"), "b c": "\\"}),
        (r'(0.00,"\\""")', {"a": Decimal("0.00"), "b c": '\\"'}),
        ("(0.00,é€)", {"a": Decimal("0.00"), "b c": "é€"}),
    ],
)
def test_a_composite_is_its_attributes(text: str, expected: dict[str, Any]) -> None:
    found = cast(PAIR, [None, text, "(9.00,x)", text])
    assert found.values.to_pylist() == [None, expected, {"a": Decimal(9), "b c": "x"}, expected]


def test_composites_and_arrays_nest() -> None:
    found = cast(PAIRS, [r'{"(1.00,\"a,\"\"b\"\"\")",NULL,"(,)"}', "{}", None])
    first = [{"a": Decimal(1), "b c": 'a,"b"'}, None, {"a": None, "b c": None}]
    assert found.values.to_pylist() == [first, [], None]
    one = cast(ONE, ['("{x,NULL,""y z""}")', "()", "({})"])
    assert one.values.to_pylist() == [{"a": ["x", None, "y z"]}, {"a": None}, {"a": []}]


def test_a_composite_that_does_not_fit_is_rejected_as_a_whole() -> None:
    texts: list[str | None] = ["(NaN,x)", None, "(1.00,y)", "(1.00,y,z)", "(1.00)"]
    found = cast(PAIR, texts)
    assert found.rejected.tolist() == [0, 3, 4]
    assert [each is None for each in found.values.to_pylist()] == [True, True, False, True, True]
    assert cast(PAIR, ["(NaN,x)"]).rejected.tolist() == [0]
    with pytest.raises(ValueRefused, match="1 value"):
        cast(PAIR, ["(NaN,x)"], ValuePolicy(by_family={"struct": "fail"}))


@pytest.mark.parametrize("text", ["", "(", "1,2", "(1.00,x", '(1.00,"x)', '(1.00,"x"y)', "(x,y)"])
def test_what_is_no_composite_is_an_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="not in the text form"):
        cast(PAIR, ["(1.00,x)", text])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00:00:00", (0, 0, 0)),
        ("1 year", (12, 0, 0)),
        ("-1 years", (-12, 0, 0)),
        ("1 year 2 mons", (14, 0, 0)),
        ("-11 mons +3 days -04:05:06.7", (-11, 3, -14_706_700_000)),
        ("1 mon -1 days +00:00:00.000001", (1, -1, 1)),
        ("1 day 04:00:00", (0, 1, 14_400_000_000)),
        ("-178000000 years", (-2_136_000_000, 0, 0)),
        ("2562047788:00:54.775807", (0, 0, 2**63 - 1)),
        ("-2562047788:00:54.775808", (0, 0, -(2**63))),
        ("-2147483648 days", (0, -(2**31), 0)),
    ],
)
def test_an_interval_is_three_numbers(text: str, expected: tuple[int, int, int]) -> None:
    found = cast(INTERVAL, [None, text]).values
    assert found.to_pylist() == [
        None,
        dict(zip(("months", "days", "micros"), expected, strict=True)),
    ]
    assert INTERVAL_STRUCT == "struct<months: int, days: int, micros: long>"


def test_an_infinite_interval_is_rejected() -> None:
    found = cast(INTERVAL, ["infinity", "1 day", None, "-infinity"])
    assert found.rejected.tolist() == [0, 3]
    assert [each is None for each in found.values.to_pylist()] == [True, False, True, True]


@pytest.mark.parametrize(
    "text", ["", "1", "1 eon", "P1Y", "1-2 3 4:05:06", "01:60:00", "999999999 years"]
)
def test_what_is_no_interval_is_an_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="not in the text form"):
        cast(INTERVAL, ["1 day", text])


def test_a_time_is_microseconds() -> None:
    found = cast(TIME, ["00:00:00", "24:00:00", None, "12:34:56.7", "23:59:59.999999"])
    assert found.values.to_pylist() == [0, 86_400_000_000, None, 45_296_700_000, 86_399_999_999]
    with pytest.raises(ProtocolError, match="not in the text form"):
        cast(TIME, ["12:00"])
