"""Warnings about columns of a batch that has no earlier one to begin at."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_pgoutput.batch.manifest import Column, Counts, Table, TableVersion
from airflow_provider_pgoutput.capture.schema.history import COPY, SchemaHistory, SchemaPolicy
from airflow_provider_pgoutput.capture.source.attributes import Attribute

INT4 = 23


def table(*versions: str) -> Table:
    def version(number: int, names: str) -> TableVersion:
        columns = tuple(Column(name, INT4, -1, "integer", "int") for name in names.split())
        return TableVersion(number, "public", "t", "d", columns, ("id",))

    found = tuple(version(number, names) for number, names in enumerate(versions, start=1))
    return Table(1, "public", "t", found, Counts())


def history(*columns: Attribute, older_rows: str = "null") -> SchemaHistory:
    return SchemaHistory(
        policy=SchemaPolicy(older_rows=older_rows),
        before={},
        attributes={1: columns},
        published={},
        type_name=lambda _oid, _modifier: "integer",
        constant_default=lambda _oid, _number: None,
    )


def attribute(number: int, name: str, *, dropped: bool = False, filled: bool = False) -> Attribute:
    return Attribute(number, name, dropped, INT4, -1, None, filled)


@pytest.mark.parametrize("older_rows", ["null", COPY])
def test_without_an_earlier_batch_a_column_added_between_two_rows_is_warned_of(
    older_rows: str, caplog: pytest.LogCaptureFixture
) -> None:
    now = [attribute(1, "id"), attribute(2, "a", filled=True)]
    history(*now, older_rows=older_rows).complete(table("id", "id a"))
    (message,) = caplog.messages
    assert "the added column a" in message
    assert "copy_tables=['public.t']" in message


def test_without_an_earlier_batch_a_column_that_was_dropped_or_renamed_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [attribute(1, "id"), attribute(2, "", dropped=True), attribute(3, "b")]
    with caplog.at_level(logging.WARNING):
        history(*now).complete(table("id a", "id b"))
    (message,) = caplog.messages
    assert "whether a" in message
    assert "by their names" in message
    assert "copy_tables=['public.t']" in message


def test_of_a_table_that_is_gone_no_copy_is_promised(caplog: pytest.LogCaptureFixture) -> None:
    history().complete(table("id a", "id b"))
    assert not any("copy_tables" in each for each in caplog.messages)
