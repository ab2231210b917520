"""The grammar of filters, and what a manifest and the lake write down of them."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_provider_pgoutput.batch.shape import Shape
from airflow_provider_pgoutput.batch.table_version import Column, TableVersion
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.filters import (
    ColumnOfSource,
    columns_of,
    is_same_condition,
    parse_condition,
    parse_filters,
    read_recorded,
    recorded,
)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a = 1", '"a" = 1'),
        ("Region='eu' and Amount>=10.50", '("region" = \'eu\') AND ("amount" >= 10.5)'),
        ("a = 1 or b = 2 and not c", '("a" = 1) OR (("b" = 2) AND (NOT ("c")))'),
        ("(a = 1 or b = 2) and c", '(("a" = 1) OR ("b" = 2)) AND ("c")'),
        ("10 < a", '"a" > 10'),
        ("a != -0.0", '"a" <> 0'),
        ("a <> +.50", '"a" <> 0.5'),
        ("a IS NULL", '"a" IS NULL'),
        ("a is not null", 'NOT ("a" IS NULL)'),
        ("a IN ('x', 'it''s')", "\"a\" IN ('x', 'it''s')"),
        ("a NOT IN (-1,2)", 'NOT ("a" IN (-1, 2))'),
        ('"Mixed ""Case"""=TRUE', '"Mixed ""Case""" = TRUE'),
        ("größe = 'Ü'", "\"größe\" = 'Ü'"),
        ("\n((a))\t", '"a"'),
    ],
)
def test_what_is_understood(text: str, read: str) -> None:
    found = parse_condition(text, "a test")
    assert str(found) == read
    assert parse_condition(read, "a test") == found


@pytest.mark.parametrize(
    ("text", "character", "expected"),
    [
        ("", 1, "a column"),
        ("a = ", 5, "a constant"),
        ("a = b", 5, "a constant"),
        ("a = NULL", 5, "NULL is found by IS NULL only"),
        ("a IS 1", 6, "NULL"),
        ("1 = 1", 5, "a column"),
        ("TRUE", 5, "an operator"),
        ("a = 1 b = 2", 7, "AND, OR or the end"),
        ("(a = 1", 7, "a closing parenthesis"),
        ("a IN ()", 7, "a constant"),
        ("a IN (1 2)", 9, "a comma or a closing parenthesis"),
        ("a IN 1", 6, "an opening parenthesis"),
        ("a NOT 1", 7, "IN"),
        ("a = 1e5", 5, "a column, a constant or an operator"),
        ("a = 'open", 5, "a column, a constant or an operator"),
        ("a = 1; DROP TABLE t", 6, "a column, a constant or an operator"),
        ("a LIKE 'x%'", 3, "AND, OR or the end"),
        ("lower(a) = 'x'", 6, "AND, OR or the end"),
        ("a::text = 'x'", 2, "a column, a constant or an operator"),
        ("a = - 'x'", 7, "a number"),
        ("a + 1 = 2", 3, "AND, OR or the end"),
        (f"a = {'9' * 101}", 5, "at most 100 digits"),
        ("a = '\0'", 5, "without the character NUL"),
    ],
)
def test_what_is_not_understood_is_refused_where_it_stands(
    text: str, character: int, expected: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_filters({"public.orders": text})
    assert f"filters['public.orders'] is not understood at character {character}. " in str(
        refused.value
    )
    assert expected in refused.value.message


@pytest.mark.parametrize("name", ["orders", ".orders", "public."])
def test_a_filter_names_a_table(name: str) -> None:
    with pytest.raises(ConfigurationError, match="not the name of a table"):
        parse_filters({name: "a = 1"})


def test_a_condition_has_a_limit() -> None:
    deep = 40
    assert parse_condition("(" * deep + "a" + ")" * deep, "a test") == parse_condition(
        "a", "a test"
    )
    with pytest.raises(ConfigurationError, match="nested more than 50 times"):
        parse_condition("(" * 2000 + "a" + ")" * 2000, "a test")
    with pytest.raises(ConfigurationError, match="nested more than 50 times"):
        parse_condition("NOT " * 2000 + "a", "a test")
    with pytest.raises(ConfigurationError, match="more than 10,000 characters"):
        parse_condition(" OR ".join(["a"] * 3000), "a test")


def test_what_is_written_down_says_which_columns_were_meant() -> None:
    condition = parse_condition("b = 'ü' AND a > 1.0 AND b <> ''", "a test")
    assert columns_of(condition) == ("b", "a")
    columns = {"a": ColumnOfSource(2, 1700, -1), "b": ColumnOfSource(7, 25, -1)}
    text = recorded(condition, columns)
    assert text.isascii()
    assert read_recorded(text) == (condition, columns)
    assert text == recorded(parse_condition("B='ü' and 1 < a and b != ''", "x"), columns)
    for other in (
        ColumnOfSource(3, 1700, -1),
        ColumnOfSource(2, 20, -1),
        ColumnOfSource(2, 1700, 6),
    ):
        changed = recorded(condition, {**columns, "a": other})
        assert text != changed
        assert is_same_condition(text, changed)
    assert not is_same_condition(text, recorded(parse_condition("b = 'u' AND a > 1", "x"), columns))
    assert not is_same_condition(text, None)


@pytest.mark.parametrize("text", [f"a IN ({','.join(map(str, range(2000)))})", "NOT " * 30 + "a"])
def test_what_is_written_down_may_be_longer_than_what_was_written(text: str) -> None:
    condition = parse_condition(text, "a test")
    columns = {"a": ColumnOfSource(1, 23, -1)}
    assert read_recorded(recorded(condition, columns)) == (condition, columns)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '["a = 1", [["a"]]]', '["a LIKE 1", [["a", 1, 23, -1]]]']
)
def test_what_somebody_changed_in_the_lake_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        read_recorded(text)


def test_a_shape_keeps_the_filter() -> None:
    column = Column("a", 23, -1, "integer", "int", attribute_number=2)
    text = recorded(parse_condition("a = 1", "a test"), {"a": ColumnOfSource(2, 23, -1)})
    version = TableVersion(1, "s", "t", "f", (column,), (), row_filter=text)
    shape = dataclasses.replace(Shape.of(version), types=())
    assert shape.row_filter == text
    assert Shape.from_json(shape.to_json()) == shape
    plain = dataclasses.replace(shape, row_filter=None)
    assert Shape.from_json(plain.to_json()) == plain
