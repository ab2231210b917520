"""The tables that a run refuses before it reads a row of them: no server."""

from __future__ import annotations

import pytest

from airflow_provider_pgoutput.capture.refused import RefusedTables
from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
from airflow_provider_pgoutput.capture.source.keys import RowIdentity
from airflow_provider_pgoutput.errors import TableRefused


def table(relation_oid: int, name: str) -> PublishedTable:
    identity = RowIdentity("d", (), frozenset())
    return PublishedTable(relation_oid, "public", name, "r", "d", (), identity, ())


ONE, TWO = table(1, "one"), table(2, "two")
ERROR = TableRefused("It was dropped and made again.", table=ONE.name)


def test_a_refused_table_ends_the_run_unless_it_is_set_aside() -> None:
    with pytest.raises(TableRefused) as raised:
        RefusedTables().adding(ONE, ERROR)
    assert raised.value is ERROR


def test_each_step_returns_the_refused_tables_with_its_own() -> None:
    first = RefusedTables(goes_on=True).following([ONE.relation_oid, TWO.relation_oid])
    second = first.adding(ONE, ERROR)
    assert second.has(ONE)
    assert not second.has(TWO)
    assert second.errors == {1: ("public.one", ERROR)}
    # A step that comes to nothing, such as a batch that is staged once more, goes on from what there was.
    assert not first.has(ONE)
    assert second.followed == first.followed == {1, 2}
