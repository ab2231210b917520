"""Which field of the target is which column of the source, case by case, without Spark."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_pgoutput.apply.layout import Layout, lay_out
from airflow_provider_pgoutput.apply.recorded import COLUMNS_PROPERTY
from airflow_provider_pgoutput.batch.manifest import Column, StagedFile, Table, TableVersion
from airflow_provider_pgoutput.batch.shape import ADDED, SchemaChange
from airflow_provider_pgoutput.errors import TableRefused


def table(*types: str, copied: int | None = None) -> Table:
    """A table with versions in which column ``b`` has these types; one of them is the copy's."""

    def version(place: int, kind: str) -> TableVersion:
        columns = (
            Column("id", 23, -1, "integer", "int", attribute_number=1),
            Column("b", 25, -1, kind, kind, attribute_number=2),
        )
        staged = "copy" if place == copied else "changes"
        files = (StagedFile(staged, f"{place}.parquet", 1, 1, "", ()),)
        return TableVersion(place + 1, "public", "t", "d", columns, ("id",), files)

    versions = tuple(version(place, kind) for place, kind in enumerate(types))
    return Table(1, "public", "t", versions, copy_lsn=None if copied is None else "0/100")


def test_a_type_that_changed_after_the_copy_does_not_drop_the_copied_values() -> None:
    def laid_out(staged: Table) -> frozenset[str]:
        found = lay_out(
            staged, None, copies=True, type_changes="fail", drop_columns=False, metadata={}
        )
        return found.left_out

    with pytest.raises(TableRefused, match="one of three") as refused:
        laid_out(table("int", "string", copied=0))
    assert refused.value.column == "b"
    # Of a change before the copy, the older values are in no row any more.
    assert laid_out(table("int", "string", copied=1)) == {"b__old_2"}


def target(recorded: dict[str, Any], **fields: tuple[int, str]) -> Any:
    """A target with these fields, by name: id and type."""

    def java(name: str, number: int, kind: str) -> Any:
        of_type = SimpleNamespace(
            isListType=lambda: False,
            isMapType=lambda: False,
            isStructType=lambda: False,
            toString=lambda: kind,
        )
        return SimpleNamespace(fieldId=lambda: number, name=lambda: name, type=lambda: of_type)

    columns = [java(name, number, kind) for name, (number, kind) in fields.items()]
    return SimpleNamespace(
        java=SimpleNamespace(
            schema=lambda: SimpleNamespace(columns=lambda: columns),
            spec=lambda: SimpleNamespace(fields=list),
        ),
        properties={COLUMNS_PROPERTY: json.dumps({"relation_oid": 1, **recorded})},
    )


def as_new_column(staged: Table, lake: Any, policy: str = "new_column") -> Layout:
    return lay_out(staged, lake, copies=False, type_changes=policy, drop_columns=False, metadata={})


def test_a_target_that_has_the_new_column_already_gets_no_other() -> None:
    staged = table("int", "string")
    before = target({"fields": {"1": 1, "2": 2}}, id=(1, "int"), b=(2, "int"))
    first = as_new_column(staged, before)
    assert first.renamed == {2: "b__old_2"}
    assert first.numbered == {(1, 0): "id", (2, 0): "b", (2, 1): "b__old_2"}
    after = target(
        {"fields": {"1": 1, "2": 3}, "retired": {"2": [2]}},
        id=(1, "int"),
        b__old_2=(2, "int"),
        b=(3, "string"),
    )
    second = as_new_column(staged, after)
    assert not second.renamed
    assert second.numbered == first.numbered
    assert second.table == first.table
    # A change back, in a later batch, is one of its own.
    back = as_new_column(table("int"), after)
    assert back.renamed == {3: "b__old_2_2"}
    assert back.foreign == {"b__old_2", "b__old_2_2"}
    with pytest.raises(TableRefused, match="one of three"):
        as_new_column(table("int"), after, "fail")


def test_a_column_added_at_the_source_does_not_take_over_one_that_somebody_added_here() -> None:
    added = SchemaChange(ADDED, "b", "", "integer", 2)
    staged = dataclasses.replace(table("int"), schema_changes=(added,))
    fields = {"id": (1, "int"), "b": (7, "int")}
    with pytest.raises(TableRefused, match="added at the source under a name") as refused:
        as_new_column(staged, target({"fields": {"1": 1}}, **fields))
    assert (refused.value.table, refused.value.column) == ("public.t", "b")
    # Once it is the source's, the same batch finds it so.
    again = as_new_column(staged, target({"fields": {"1": 1, "2": 7}}, **fields))
    assert again.numbered == {(1, 0): "id", (2, 0): "b"}
