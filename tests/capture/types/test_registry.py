"""The rows of the registry are types of the server, and what they say holds together."""

from __future__ import annotations

from collections import Counter

import pytest

from airflow_provider_pgoutput.capture.types.mapping import lake_type
from airflow_provider_pgoutput.capture.types.options import CHOICES, Choice
from airflow_provider_pgoutput.capture.types.registry import ROWS, TypeRow, row_of
from airflow_provider_pgoutput.capture.types.type_info import BUILTIN_TYPES, TypeInfo
from airflow_provider_pgoutput.lake.arrow_types import arrow_type
from tests.capture.types.special_values import VALUES

BUILT_IN = [row for row in ROWS if row.oid]


@pytest.mark.parametrize("row", BUILT_IN, ids=lambda row: row.name)
def test_a_row_names_a_type_of_the_server_and_has_odd_values(row: TypeRow) -> None:
    assert BUILTIN_TYPES[row.oid].name == row.name
    assert VALUES[row.name]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_found_by_its_type_and_says_its_lake_type(row: TypeRow) -> None:
    info = BUILTIN_TYPES.get(row.oid) or TypeInfo(90001, "public", row.name, "b")
    assert row_of(info) is row
    assert lake_type(info.oid, -1, {info.oid: info}) == row.lake_type
    assert arrow_type(row.lake_type)
    if row.choice is not None and not row.choice.refused:
        chosen = Choice({row.choice.kind: row.choice.word})
        assert arrow_type(lake_type(info.oid, -1, {info.oid: info}, chosen))


def test_no_type_has_two_rows() -> None:
    assert [name for name, times in Counter(row.name for row in ROWS).items() if times > 1] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_types_of_one_kind_have_the_same_choice(row: TypeRow) -> None:
    assert row.choice is None or CHOICES[row.choice.kind] is row.choice


def test_a_users_type_with_the_name_of_a_built_in_one_is_text() -> None:
    assert row_of(TypeInfo(90001, "public", "uuid", "b")).binary is None
    assert row_of(TypeInfo(90001, "public", "vector", "c")).lake_type == "string"


def test_what_a_copy_lets_the_send_function_make_has_a_binary_form() -> None:
    sent = [row for row in ROWS if row.copied.sent]
    assert sent
    assert [row.name for row in sent if row.binary is None] == []
