"""Choices about types: what is a choice, which column it is for, and what it makes of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.column_choices import check_column_types
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.capture.source.catalog import PublishedColumn, PublishedTable
from airflow_provider_pgoutput.capture.source.keys import RowIdentity
from airflow_provider_pgoutput.capture.types.cast import ValuePolicy
from airflow_provider_pgoutput.capture.types.mapping import TypeInfo, lake_type
from airflow_provider_pgoutput.capture.types.missing_value import lake_text
from airflow_provider_pgoutput.capture.types.options import TypeOptions
from airflow_provider_pgoutput.capture.types.type_info import Attribute
from airflow_provider_pgoutput.errors import ConfigurationError, ValueRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

NUMERIC, NUMERIC_12_2, UUID, INTERVAL, TIME = 1700, (12 << 16 | 2) + 4, 2950, 1186, 1083
PAIR = TypeInfo(
    90001, "public", "pair", "c", attributes=(Attribute("n", NUMERIC, -1), Attribute("é", UUID, -1))
)
TYPES = {
    90001: PAIR,
    90002: TypeInfo(90002, "public", "_pair", "b", element_oid=90001),
    90003: TypeInfo(90003, "public", "a_pair", "d", base_oid=90001),
    90004: TypeInfo(90004, "public", "mood", "e"),
}
EVERYTHING = {
    "numeric": "decimal(38,9)",
    "json": "string",
    "uuid": "uuid",
    "composite": "struct",
    "interval": "struct",
    "time": "micros",
}
INTERVAL_STRUCT = "struct<months: int, days: int, micros: long>"
PAIR_STRUCT = 'struct<n: decimal(38, 9), "é": uuid>'


def lake(type_oid: int, options: TypeOptions, column: str = "c", modifier: int = -1) -> str:
    return lake_type(type_oid, modifier, TYPES, options.of("public.t", column))


@pytest.mark.parametrize(
    ("type_oid", "expected"),
    [
        (NUMERIC, "decimal(38, 9)"),
        (1231, "list<decimal(38, 9)>"),
        (114, "string"),
        (UUID, "uuid"),
        (2951, "list<uuid>"),
        (INTERVAL, INTERVAL_STRUCT),
        (1187, f"list<{INTERVAL_STRUCT}>"),
        (TIME, "long"),
        (1183, "list<long>"),
        (1266, "string"),
        (90001, PAIR_STRUCT),
        (90002, f"list<{PAIR_STRUCT}>"),
        (90003, PAIR_STRUCT),
        (90004, "string"),
        (20, "long"),
        (71, "string"),
    ],
)
def test_a_kind_of_type_is_what_was_chosen(type_oid: int, expected: str) -> None:
    assert lake(type_oid, TypeOptions(EVERYTHING)) == expected


def test_a_numeric_that_a_decimal_holds_is_left_alone_unless_its_column_is_named() -> None:
    for_all = TypeOptions({"numeric": "decimal(38,9)"})
    assert lake(NUMERIC, for_all, modifier=NUMERIC_12_2) == "decimal(12, 2)"
    for_one = TypeOptions({}, {"public.t.c": "decimal(20,4)"})
    assert lake(NUMERIC, for_one, modifier=NUMERIC_12_2) == "decimal(20, 4)"
    assert lake(NUMERIC, for_one, "other") == "string"


@pytest.mark.parametrize("type_oid", [16, 20, 701, 1007, NUMERIC, 1184, 90001, 90002])
def test_string_keeps_the_text_of_a_column_of_any_type(type_oid: int) -> None:
    options = TypeOptions(EVERYTHING, {"public.t.c": "string"})
    assert lake(type_oid, options) == "string"


def test_the_choice_of_a_column_wins() -> None:
    options = TypeOptions(
        {"uuid": "uuid", "numeric": "decimal(9,0)"}, {"public.t.c": "decimal(38,1)"}
    )
    assert lake(NUMERIC, options) == "decimal(38, 1)"
    assert lake(UUID, options) == "uuid"


@pytest.mark.parametrize(
    ("by_kind", "by_column", "words"),
    [
        ({"money": "decimal(9,2)"}, {}, "unknown kind of type 'money'"),
        ({"numeric": "double"}, {}, "'double'"),
        ({"numeric": "decimal"}, {}, "'decimal'"),
        ({"numeric": "decimal(39,2)"}, {}, r"decimal\(39,2\)"),
        ({"numeric": "decimal(2,3)"}, {}, r"decimal\(2,3\)"),
        ({"numeric": "uuid"}, {}, "type_options\\['numeric'\\] is 'uuid'"),
        ({"time": "struct"}, {}, "micros"),
        ({"json": "variant"}, {}, "pyiceberg"),
        ({}, {"public.t.c": "variant"}, "pyiceberg"),
        ({}, {"public.t.c": "float"}, "'float'"),
    ],
)
def test_what_is_no_choice_is_refused_before_anything_is_opened(
    by_kind: Mapping[str, str], by_column: Mapping[str, str], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        CaptureRequest("", "s", ("p",), "file:///s", type_options=by_kind, column_types=by_column)


def published(*columns: tuple[str, int]) -> PublishedTable:
    described = tuple(
        PublishedColumn(name, oid, -1, None, False, number)
        for number, (name, oid) in enumerate(columns, 1)
    )
    return PublishedTable(
        1, "public", "t", "r", "d", described, RowIdentity("d", (), frozenset()), ()
    )


def test_a_choice_that_a_column_does_not_have_is_refused() -> None:
    options = TypeOptions({}, {"public.t.c": "uuid"})
    with pytest.raises(ConfigurationError, match=r"column_types says 'uuid'.*integer"):
        check_column_types([published(("c", 23))], TYPES, options, is_first=False)
    check_column_types([published(("c", UUID))], TYPES, options, is_first=True)
    check_column_types([published(("c", 90002))], TYPES, options, is_first=True)


def test_a_name_of_no_column_is_refused_before_the_first_batch_and_warned_of_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = TypeOptions({}, {"public.t.typo": "string"})
    with pytest.raises(ConfigurationError, match=r"public\.t\.typo"):
        check_column_types([published(("c", 23))], TYPES, options, is_first=True)
    check_column_types([published(("c", 23))], TYPES, options, is_first=False)
    assert "public.t.typo" in caplog.text


def missing(type_oid: int, lake_type: str, text: str, policy: str = "", **options: bool) -> Any:
    column = Column("c", type_oid, -1, "pg type", lake_type, missing_value=text)
    chosen = ValuePolicy(policy) if policy else None
    return lake_text(column, TYPES, "public.t", chosen, **options)


def test_what_older_rows_show_is_text_of_the_lake_type() -> None:
    assert missing(TIME, "long", "01:00:00.5") == "3600500000"
    assert missing(TIME, "string", "01:00:00.5") == "01:00:00.5"
    assert missing(NUMERIC, "decimal(9, 2)", "1.50") == "1.50"
    assert missing(23, "int", "7") == "7"
    with pytest.raises(ValueRefused, match="does not fit"):
        missing(NUMERIC, "decimal(9, 2)", "1.505")


@pytest.mark.parametrize(
    ("type_oid", "lake_type", "text", "expected"),
    [
        (1009, "list<string>", r'{a,"b,\"\\",NULL,""}', ["a", 'b,"\\', None, ""]),
        (1007, "list<int>", "{}", []),
        (1000, "list<boolean>", "{t,f}", ["True", "False"]),
        (1001, "list<binary>", r'{"\\x00ff"}', [r"\x00ff"]),
        (1182, "list<date>", "{2024-02-29}", ["2024-02-29"]),
        (1185, "list<timestamptz>", '{"2024-02-29 01:02:03+00"}', ["2024-02-29 01:02:03+00:00"]),
        (1022, "list<double>", "{1.5,NaN,-Infinity}", ["1.5", "nan", "-inf"]),
        (90001, PAIR_STRUCT, "(1.5,)", ["1.500000000", None]),
        (90002, f"list<{PAIR_STRUCT}>", '{"(1,)",NULL}', [["1.000000000", None], None]),
        (90003, PAIR_STRUCT, "(,)", [None, None]),
    ],
)
def test_of_a_type_that_is_made_of_others_it_is_json(
    type_oid: int, lake_type: str, text: str, expected: object
) -> None:
    assert json.loads(missing(type_oid, lake_type, text)) == expected


@pytest.mark.parametrize(
    ("type_oid", "lake_type", "text"),
    [
        (1007, "list<int>", "{{1,2},{3,4}}"),
        (90001, PAIR_STRUCT, "(NaN,)"),
        (1184, "timestamptz", "infinity"),
        (1114, "timestamp", "-infinity"),
        (1114, "timestamp", "10000-01-01 00:00:00"),
        (1082, "date", "0044-03-15 BC"),
    ],
)
def test_a_value_that_older_rows_show_and_the_lake_cannot_hold_goes_by_the_policy(
    type_oid: int, lake_type: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert missing(type_oid, "string", text) == text
    assert not caplog.records
    assert missing(type_oid, lake_type, text) is None
    assert "public.t" in caplog.text
    assert "NULL" in caplog.text
    with pytest.raises(ValueRefused, match="'null_and_keep'") as refused:
        missing(type_oid, lake_type, text, "fail")
    assert refused.value.column == "c"
    with pytest.raises(ValueRefused, match="column_types"):
        missing(type_oid, lake_type, text, is_key=True)


def test_a_date_that_older_rows_show_and_the_lake_holds_is_left_as_it_is() -> None:
    assert missing(1082, "date", "2024-02-29", "fail") == "2024-02-29"
    assert missing(1184, "timestamptz", "2024-02-29 01:02:03.5+00", "fail").endswith("+00")
    # The column is of the type of now, the version is older.
    assert missing(1114, "timestamp", "2024-02-29 01:02:03+00").endswith("+00")


def test_a_struct_of_the_catalog_is_an_arrow_struct() -> None:
    from airflow_provider_pgoutput.lake.arrow_types import arrow_type

    assert arrow_type(PAIR_STRUCT) == pa.struct([("n", pa.decimal128(38, 9)), ("é", pa.string())])
