"""The notation of lake types: what is put together is taken apart again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_pgoutput.batch.lake_types import (
    decimal_type,
    list_element,
    map_entry,
    struct_fields,
    struct_type,
)

_SIMPLE = st.sampled_from(["int", "string", "decimal(12, 2)", "map<string, string>"])
_NAMES = st.text(min_size=1, max_size=6) | st.text('<>,:" ()"', min_size=1, max_size=6)
_TYPES = st.recursive(
    _SIMPLE,
    lambda inner: st.one_of(
        inner.map(lambda kind: f"list<{kind}>"),
        st.lists(st.tuples(_NAMES, inner), min_size=1, max_size=3).map(struct_type),
    ),
    max_leaves=5,
)


@pytest.mark.slow
@settings(derandomize=True, database=None, deadline=None)
@given(st.lists(st.tuples(_NAMES, _TYPES), min_size=1, max_size=4))
def test_a_struct_gives_its_fields_back(fields: list[tuple[str, str]]) -> None:
    assert struct_fields(struct_type(fields)) == tuple(fields)
    assert list_element(f"list<{struct_type(fields)}>") == struct_type(fields)


def test_a_plain_name_is_written_plainly() -> None:
    assert struct_type([("a", "int"), ('b "c"', "long")]) == 'struct<a: int, "b ""c""": long>'


@pytest.mark.parametrize(
    ("lake_type", "expected"),
    [
        ("decimal(38,9)", (38, 9)),
        ("decimal(1, 0)", (1, 0)),
        ("decimal(39, 9)", None),
        ("decimal(3, 5)", None),
        ("decimal(0, 0)", None),
        ("decimal", None),
    ],
)
def test_a_decimal_has_a_precision_that_iceberg_has(
    lake_type: str, expected: tuple[int, int] | None
) -> None:
    assert decimal_type(lake_type) == expected


def test_a_map_has_two_types() -> None:
    assert map_entry("map<string, list<int>>") == ("string", "list<int>")
    assert map_entry("list<int>") is None
