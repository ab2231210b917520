"""What Iceberg turns into what without writing a file again."""

from __future__ import annotations

import pytest

from airflow_provider_pgoutput.batch.lake_types import widens


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int", "long"),
        ("float", "double"),
        ("decimal(6, 2)", "decimal(20, 2)"),
        ("struct<a: int>", "struct<a: int, b: string>"),
        ("struct<a: struct<x: int>, b: int>", "struct<a: struct<x: int, y: int>, b: int>"),
        ("list<struct<a: int>>", "list<struct<a: int, b: list<int>>>"),
    ],
)
def test_a_type_widens_one_way(old: str, new: str) -> None:
    assert widens(old, new)
    assert not widens(new, old)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("int", "int"),
        ("int", "string"),
        ("decimal(6, 2)", "decimal(9, 3)"),
        # One field under another name, or one that went while another came: nobody can tell.
        ("struct<a: int, b: int>", "struct<a: int, c: int>"),
        ("struct<a: int, b: int>", "struct<b: int>"),
        ("struct<a: int>", "struct<a: string, b: int>"),
        ("list<int>", "list<long>"),
        ("struct<a: int>", "struct<a: long>"),
        ("list<int>", "struct<a: int>"),
        ("map<string, string>", "map<string, int>"),
    ],
)
def test_others_do_not(one: str, other: str) -> None:
    assert not widens(one, other)
    assert not widens(other, one)
