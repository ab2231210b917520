"""The description of a batch stays small, however many tables the batch has."""

from __future__ import annotations

import dataclasses
import json

import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest, Table
from airflow_provider_pgoutput.batch.shape import ADDED, SchemaChange
from airflow_provider_pgoutput.batch.table_version import Counts, TableVersion
from airflow_provider_pgoutput.batch.xcom import batch_xcom, largest, totals


def with_tables(number: int) -> Manifest:
    """Table ``t7`` has seven inserts, and so on."""
    tables = tuple(
        Table(
            n + 1, "public", f"t{n}", (TableVersion(1, "public", f"t{n}", "d", (), ()),), Counts(n)
        )
        for n in range(number)
    )
    return Manifest("s", "7", 1, "db", ("p",), Lsn(1), Lsn(2), tables)


@pytest.mark.parametrize(("number", "shown"), [(0, 0), (200, 200), (201, 200), (4000, 200)])
def test_it_has_the_tables_with_most_changes_and_says_how_many_are_left_out(
    number: int, shown: int
) -> None:
    value = batch_xcom(with_tables(number), "uri")
    assert value["tables"].keys() == {f"public.t{n}" for n in range(number - shown, number)}
    assert value.get("tables_left_out") == (number - shown or None)
    assert value["changes"] == sum(range(number))


def test_tables_that_were_compared_and_did_not_differ_are_left_out() -> None:
    found = with_tables(3)
    compared = tuple(dataclasses.replace(each, is_difference=True) for each in found.tables)
    value = batch_xcom(dataclasses.replace(found, tables=compared), "uri")
    assert value["tables"].keys() == {"public.t1", "public.t2"}


@pytest.mark.slow
def test_schema_changes_of_thousands_of_tables_are_limited() -> None:
    def with_changes(tables: int, changes: int) -> Manifest:
        found = with_tables(tables)
        added = tuple(SchemaChange(ADDED, f"c{n}", "", "integer", n) for n in range(changes))
        altered = tuple(dataclasses.replace(each, schema_changes=added) for each in found.tables)
        return dataclasses.replace(found, tables=altered)

    few = batch_xcom(with_changes(10, 101), "uri")["schema_changes"]
    assert [len(each) for each in few.values()] == [101] * 10
    assert few["public.t0"][-1].startswith("and 1 more")
    many = batch_xcom(with_changes(4000, 20), "uri")
    assert [len(each) for each in many["schema_changes"].values()] == [6] * 200
    assert len(json.dumps(many)) < 100_000


def test_tables_with_the_same_counts_are_ordered_by_name() -> None:
    counts = {"b": {"inserts": 1}, "c": {"copied": 5}, "a": {"deletes": 1}}
    assert list(largest(counts, 2)) == ["c", "a"]
    assert list(largest(counts, 3)) == ["b", "c", "a"]


def test_totals_are_the_sums_by_kind() -> None:
    assert totals([{"inserts": 1, "copied": 2}, {"inserts": 3}]) == {"inserts": 4, "copied": 2}
