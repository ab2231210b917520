"""Templated arguments arrive as text; each form a user may write is tried, and each wrong one."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.operators.retire import PgoutputDropSlotOperator
from airflow_provider_pgoutput.tasks import arguments


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        (["a", "b"], ("a", "b")),
        (("a",), ("a",)),
        ('["a", "b"]', ("a", "b")),
        ("a, b", ("a", "b")),
        ("a", ("a",)),
        # Of names in a list every character counts, as of a table that is called so.
        ([" a", "b "], (" a", "b ")),
        ('[" a", "b ", ""]', (" a", "b ")),
    ],
)
def test_a_list_may_be_a_list_json_or_text(value: Any, meaning: tuple[str, ...]) -> None:
    assert arguments.text_list(value, "publication_names") == meaning


@pytest.mark.parametrize("value", ["", "[]", [], None, 3, [1], "[1]", "[broken", {"a": 1}, " , "])
def test_what_is_no_list_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="publication_names"):
        arguments.text_list(value, "publication_names")


@pytest.mark.parametrize("value", [None, "", "None", "[]", []])
def test_an_optional_list_may_be_missing(value: Any) -> None:
    assert arguments.optional_text_list(value, "metadata_columns") == ()


@pytest.mark.parametrize(
    ("value", "meaning"),
    [(5, 5), ("5", 5), (5.0, 5), (0, 0), ("", None), (None, None), ("None", None)],
)
def test_a_number_may_be_its_digits_or_missing(value: Any, meaning: int | None) -> None:
    assert arguments.whole_number(value, "max_changes") == meaning


@pytest.mark.parametrize("value", ["five", -1, "-1", [1], True, "1.5", 1.5, float("inf")])
def test_what_is_no_number_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_changes"):
        arguments.whole_number(value, "max_changes")


@pytest.mark.parametrize(
    ("value", "meaning"), [(True, True), ("False", False), ("true", True), (0, False)]
)
def test_a_flag_may_be_text(value: Any, meaning: bool) -> None:
    assert arguments.flag(value, "two_phase") is meaning


@pytest.mark.parametrize("value", ["maybe", None, ""])
def test_what_is_no_flag_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="two_phase"):
        arguments.flag(value, "two_phase")


@pytest.mark.parametrize(
    ("value", "meaning"), [("0.01", 0.01), (1, 1), ("90", 90), (0.5, 0.5), (None, None), ("", None)]
)
def test_a_number_with_a_point_may_be_a_text(value: Any, meaning: float | None) -> None:
    assert str(arguments.number(value, "share")) == str(meaning)


@pytest.mark.parametrize("value", ["-0.1", "nan", "inf", "x", True, [1]])
def test_what_is_no_number_with_a_point_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="share"):
        arguments.number(value, "share")


@pytest.mark.parametrize(
    ("value", "meaning"), [({"a": 1}, {"a": 1}), ('{"a": 1}', {"a": 1}), (None, {}), ("", {})]
)
def test_a_mapping_may_be_json(value: Any, meaning: dict[str, Any]) -> None:
    assert arguments.mapping(value, "tables") == meaning


@pytest.mark.parametrize("value", ["[1]", "{", [1], "__import__('os')", {1: 2}])
def test_what_is_no_mapping_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="tables"):
        arguments.mapping(value, "tables")


def test_a_mapping_of_lists_may_be_json() -> None:
    for given in ({"s.t": ["a", "b"]}, {"s.t": ("a", "b")}, '{"s.t": ["a", "b"]}'):
        assert arguments.text_list_mapping(given, "key_columns") == {"s.t": ("a", "b")}
    assert arguments.text_list_mapping(None, "key_columns") == {}


@pytest.mark.parametrize("value", ["order_id", None, [1], {"a": "b"}])
def test_what_is_no_list_in_a_mapping_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"key_columns has no list of texts for public\.t"):
        arguments.text_list_mapping({"public.t": value, "public.u": ["a"]}, "key_columns")


@pytest.mark.parametrize("value", [None, "", "  ", "None"])
def test_a_missing_text_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="slot_name is missing"):
        arguments.required_text(value, "slot_name")


def test_a_name_that_airflow_rendered_to_a_number_is_refused_with_a_way_out() -> None:
    with DAG("native", schedule=None, render_template_as_native_obj=True):
        plain = PgoutputDropSlotOperator(task_id="plain", slot_name="1_000")
        quoted = PgoutputDropSlotOperator(task_id="quoted", slot_name="'1_000'")
    for operator in (plain, quoted):
        operator.render_template_fields({})
    with pytest.raises(ConfigurationError, match="slot_name is not a text but of type int"):
        arguments.required_text(plain.slot_name, "slot_name")
    assert arguments.required_text(quoted.slot_name, "slot_name") == "1_000"


def test_a_position_is_read_as_postgresql_writes_it() -> None:
    assert arguments.lsn("16/B374D848", "start_lsn") == 0x16_B374D848
    assert arguments.lsn("00000016B374D848", "start_lsn") == 0x16_B374D848
    for given in (["0/10", "1/0"], '["0/10", "1/0"]', "0/10,1/0"):
        assert arguments.lsn_list(given, "skip_lsns") == (0x10, 1 << 32)
    assert arguments.lsn_list("", "skip_lsns") == ()
    with pytest.raises(ConfigurationError, match="skip_lsns"):
        arguments.lsn_list("0/10,somewhere", "skip_lsns")
    for nothing in (None, "", "None"):
        assert arguments.lsn(nothing, "start_lsn") is None
    for wrong in ("16", "16-B374D848", 7, 1000000000000016, "0x16/1"):
        with pytest.raises(ConfigurationError, match="start_lsn"):
            arguments.lsn(wrong, "start_lsn")
