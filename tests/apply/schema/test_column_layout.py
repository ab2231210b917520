"""Which field of the target is which column of the source, case by case, without Spark."""

from __future__ import annotations

import dataclasses
import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_pgoutput.apply.schema.column_layout import Layout, lay_out
from airflow_provider_pgoutput.apply.schema.column_map import columns_property
from airflow_provider_pgoutput.batch.checkpoint import PROPERTY_COLUMNS
from airflow_provider_pgoutput.batch.manifest import Table
from airflow_provider_pgoutput.batch.shape import ADDED, UNPUBLISHED, SchemaChange
from airflow_provider_pgoutput.batch.table_version import Column, StagedFile, TableVersion
from airflow_provider_pgoutput.errors import TableRefused
from tests.simulation.java import JavaList


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
            staged,
            None,
            starts=("0/1",),
            copies=True,
            keeps_retyped=False,
            drop_columns=False,
            metadata={},
        )
        return found.left_out

    with pytest.raises(TableRefused, match="one of three") as refused:
        laid_out(table("int", "string", copied=0))
    assert refused.value.column == "b"
    # Of a change before the copy, the older values are in no row any more.
    assert laid_out(table("int", "string", copied=1)) == {"b__old_2"}


@pytest.mark.parametrize(
    ("key", "identity", "is_log", "is_sought"),
    [
        (("b",), "d", False, True),
        # Without a key, rows are found by all that they hold.
        ((), "f", False, True),
        ((), "f", True, False),
        ((), "d", False, False),
        (("id",), "f", False, False),
    ],
)
def test_no_row_is_found_by_a_struct_without_its_last_attribute(
    key: tuple[str, ...], identity: str, is_log: bool, is_sought: bool
) -> None:
    wide, narrow = "struct<x: int, y: int>", "struct<x: int>"
    found = table(wide, narrow)
    versions = tuple(
        dataclasses.replace(each, key_columns=key, replica_identity=identity)
        for each in found.versions
    )

    def laid_out(*staged: TableVersion) -> dict[tuple[int, int], str]:
        return dict(
            lay_out(
                dataclasses.replace(found, versions=staged),
                None,
                starts=("0/1",),
                copies=False,
                keeps_retyped=False,
                drop_columns=False,
                metadata={},
                is_log=is_log,
            ).numbered
        )

    names = {(1, 0): "id", (2, 0): "b"}
    if is_sought:
        with pytest.raises(TableRefused, match="one of three") as refused:
            laid_out(*versions)
        assert refused.value.column == "b"
    else:
        assert laid_out(*versions) == names
    # One that comes is NULL in the older rows, here and at the source.
    assert laid_out(*reversed(versions)) == names


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

    columns = JavaList(java(name, number, kind) for name, (number, kind) in fields.items())
    return SimpleNamespace(
        name=SimpleNamespace(slice=None),
        java=SimpleNamespace(
            schema=lambda: SimpleNamespace(columns=lambda: columns),
            specs=lambda: SimpleNamespace(entrySet=JavaList),
            sortOrder=lambda: SimpleNamespace(fields=JavaList),
        ),
        schema={
            "fields": [
                {"id": number, "name": name, "type": kind}
                for name, (number, kind) in fields.items()
            ]
        },
        properties={PROPERTY_COLUMNS: json.dumps({"relation_oid": 1, **recorded})},
    )


def as_new_column(staged: Table, lake: Any, keeps: bool = True, *starts: str) -> Layout:
    return lay_out(
        staged,
        lake,
        starts=starts or ("0/1",),
        copies=False,
        keeps_retyped=keeps,
        drop_columns=False,
        metadata={},
    )


def test_a_target_that_has_the_new_column_already_gets_no_other() -> None:
    staged = table("int", "string")
    before = target({"fields": {"1": 1, "2": 2}}, id=(1, "int"), b=(2, "int"))
    first = as_new_column(staged, before)
    assert first.renamed == {2: "b__old_2"}
    assert first.numbered == {(1, 0): "id", (2, 0): "b", (2, 1): "b__old_2"}
    after = evolved(first, id=(1, "int"), b__old_2=(2, "int"), b=(3, "string"))
    second = as_new_column(staged, after)
    assert not second.renamed
    assert second.numbered == first.numbered
    assert second.table == first.table
    # A change back, in a later batch, is one of its own; the same batch, staged shorter, makes none.
    back = as_new_column(table("int"), after, True, "0/2")
    assert back.renamed == {3: "b__old_2_2"}
    assert back.not_in_batch == {"b__old_2", "b__old_2_2"}
    assert as_new_column(table("int"), after).retiring_batch == first.retiring_batch
    with pytest.raises(TableRefused, match="one of three"):
        as_new_column(table("int"), after, False, "0/2")


def evolved(by: Layout, **fields: tuple[int, str]) -> Any:
    """The target after the first attempt, with the property that it set."""
    ids = {slot: fields[name][0] for slot, name in by.numbered.items()}
    former, unnumbered = (
        [fields[e][0] for e in names] for names in (by.of_earlier_table, by.unnumbered)
    )
    text = columns_property(1, ids, by.unsent, by.retiring_batch, former, unnumbered)
    return target(json.loads(text), **fields)


@pytest.mark.parametrize("start_lsn", ["0/1", "0/2"])
def test_a_type_that_changed_and_changed_back_is_where_one_attempt_alone_would_have_it(
    start_lsn: str,
) -> None:
    """Also on a target whose column had the same types in the same order before."""
    staged = table("int", "string", "int")
    before = target({"fields": {"1": 1, "2": 2}}, id=(1, "int"), b=(2, "int"))
    lake: dict[str, tuple[int, str]] = {"id": (1, "int")}
    lake |= {"b__old_2": (2, "int"), "b__old_2_2": (3, "string"), "b": (4, "int")}
    first = as_new_column(staged, before)
    assert [each.columns[1].name for each in first.table.versions] == list(lake)[1:]
    if start_lsn == "0/2":
        # The batch that follows has the same types.
        before = evolved(first, **lake)
        first = as_new_column(staged, before, True, start_lsn)
        names = [each.columns[1].name for each in first.table.versions]
        assert names == ["b__old_2_3", "b__old_2_4", "b"]
        del lake["b"]
        lake |= {"b__old_2_3": (4, "int"), "b__old_2_4": (5, "string"), "b": (6, "int")}
    for _ in range(2):
        again = as_new_column(staged, evolved(first, **lake), True, start_lsn)
        assert (again.table, again.numbered) == (first.table, first.numbered)
        assert (again.retiring_batch, again.renamed) == (first.retiring_batch, {})


def test_attempts_that_start_before_the_checkpoint_and_at_it_make_the_same_columns() -> None:
    """One of them read the slot again, and the other goes on where it was killed."""
    staged = table("int", "string")
    before = target({"fields": {"1": 1, "2": 2}}, id=(1, "int"), b=(2, "int"))
    lake: dict[str, tuple[int, str]] = {"id": (1, "int")}
    lake |= {"b__old_2": (2, "int"), "b": (3, "string")}
    for one, other in itertools.permutations([("0/2", "0/1"), ("0/2",)]):
        first = as_new_column(staged, before, True, *one)
        again = as_new_column(staged, evolved(first, **lake), True, *other)
        assert (again.table, again.numbered) == (first.table, first.numbered)
        assert (again.retiring_batch, again.renamed) == (first.retiring_batch, {})


def test_a_column_added_at_the_source_does_not_take_over_one_that_somebody_added_here() -> None:
    added = SchemaChange(ADDED, "b", "", "integer", 2)
    staged = dataclasses.replace(table("int"), schema_changes=(added,))
    fields = {"id": (1, "int"), "b": (7, "int")}
    with pytest.raises(TableRefused, match="added at the source under the name") as refused:
        as_new_column(staged, target({"fields": {"1": 1}}, **fields))
    assert (refused.value.table, refused.value.column) == ("public.t", "b")
    # Once it is the source's, the same batch finds it so.
    again = as_new_column(staged, target({"fields": {"1": 1, "2": 7}}, **fields))
    assert again.numbered == {(1, 0): "id", (2, 0): "b"}


def renamed_without_numbers() -> tuple[Layout, dict[str, tuple[int, str]]]:
    """What a batch leaves that knew no ``attnum``, and in which ``b`` got the name ``c``; and the fields."""
    columns = tuple(
        dataclasses.replace(each, name=name, attribute_number=None)
        for each, name in zip(table("int").versions[0].columns, ("id", "c"), strict=True)
    )
    versions = (dataclasses.replace(table("int").versions[0], columns=columns),)
    before = target({"fields": {"1": 1, "2": 2}}, id=(1, "int"), b=(2, "int"), theirs=(4, "int"))
    found = as_new_column(dataclasses.replace(table("int"), versions=versions), before)
    assert (found.numbered, found.unnumbered) == ({(1, 0): "id", (2, 0): "b"}, {"c"})
    return found, {"id": (1, "int"), "b": (2, "int"), "c": (3, "int"), "theirs": (4, "int")}


def called(name: str, number: int, *, copied: int | None = None) -> Table:
    """A table whose second column has this name and ``attnum``."""
    found = table("int", copied=copied)
    first, second = found.versions[0].columns
    columns = (first, dataclasses.replace(second, name=name, attribute_number=number))
    return dataclasses.replace(
        found, versions=(dataclasses.replace(found.versions[0], columns=columns),)
    )


def test_a_column_that_came_without_its_number_makes_room_once_numbers_are_known() -> None:
    first, fields = renamed_without_numbers()
    before = evolved(first, **fields)
    # The field came from the source, so nobody could rename it at the target.
    later = as_new_column(called("c", 2), before, False, "0/2")
    assert later.renamed == {2: "c", 3: "c__old"}
    assert later.unnumbered == {"c__old"}
    assert later.numbered == {(1, 0): "id", (2, 0): "c"}
    assert later.user_columns == {"theirs"}
    # A copy brings all rows, so nothing is left in that field.
    copied = lay_out(
        called("c", 2, copied=0),
        before,
        starts=("0/2",),
        copies=True,
        keeps_retyped=False,
        drop_columns=False,
        metadata={},
    )
    assert (copied.renamed, copied.dropped, copied.unnumbered) == ({2: "c"}, {3}, set())
    # The attempt that follows finds it so.
    after = evolved(copied, id=(1, "int"), c=(2, "int"), theirs=(4, "int"))
    again = as_new_column(called("c", 2), after, False, "0/2")
    assert (again.renamed, again.numbered) == ({}, copied.numbered)


def test_a_field_without_a_number_that_makes_room_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, fields = renamed_without_numbers()
    as_new_column(called("c", 2), evolved(first, **fields), False, "0/2")
    (warning,) = [each for each in caplog.messages if "did not know which column" in each]
    assert "public.t" in warning
    assert "c__old" in warning
    assert "copy_tables" in warning


def test_a_type_that_changed_while_no_number_was_known_keeps_the_number_of_the_field() -> None:
    """The batch may be tried again, and others follow."""
    columns = tuple(
        dataclasses.replace(each, attribute_number=None)
        for each in table("string").versions[0].columns
    )
    versions = (dataclasses.replace(table("string").versions[0], columns=columns),)
    staged = dataclasses.replace(table("string"), versions=versions)
    before = target({"fields": {"1": 1, "2": 2}}, id=(1, "int"), b=(2, "int"))
    first = as_new_column(staged, before)
    assert first.numbered == {(1, 0): "id", (2, 0): "b", (2, 1): "b__old_2"}
    assert first.unnumbered == set()
    after = evolved(first, id=(1, "int"), b__old_2=(2, "int"), b=(3, "string"))
    assert as_new_column(staged, after).numbered == first.numbered
    assert as_new_column(table("string"), after, True, "0/2").numbered == first.numbered


def test_a_column_that_came_without_its_number_keeps_its_field_when_it_gets_one() -> None:
    first, fields = renamed_without_numbers()
    before = evolved(first, **fields)
    found = as_new_column(called("c", 3), before, False, "0/2")
    assert (found.renamed, found.unnumbered) == ({}, set())
    assert found.numbered == {(1, 0): "id", (2, 0): "b", (3, 0): "c"}
    # Another column that was added under the name since then is a new one.
    added = SchemaChange(ADDED, "c", "", "integer", 3)
    staged = dataclasses.replace(called("c", 3), schema_changes=(added,))
    other = as_new_column(staged, before, False, "0/2")
    assert (other.renamed, other.unnumbered) == ({3: "c__old"}, {"c__old"})
    assert other.numbered == found.numbered


@pytest.mark.parametrize("keys", [(), ("id",)])
def test_a_row_that_all_of_its_values_identify_has_no_value_in_another_column(
    keys: tuple[str, ...],
) -> None:
    """A delete of an older row brings its values of the new type, and the target has those of the old."""
    staged = table("int", "string")
    staged = dataclasses.replace(
        staged,
        versions=tuple(
            dataclasses.replace(e, replica_identity="f", key_columns=keys) for e in staged.versions
        ),
    )
    if keys:
        assert as_new_column(staged, None).numbered[2, 1] == "b__old_2"
    else:
        with pytest.raises(TableRefused, match="one of three"):
            as_new_column(staged, None)


def test_a_key_of_a_change_log_may_have_any_type() -> None:
    """No row of a log is looked for, so older rows need no value in the new column."""
    staged = table("int", "string")
    versions = tuple(dataclasses.replace(e, key_columns=("b",)) for e in staged.versions)
    staged = dataclasses.replace(staged, versions=versions)
    with pytest.raises(TableRefused, match="one of three"):
        as_new_column(staged, None)
    found = lay_out(
        staged,
        None,
        starts=("0/1",),
        copies=False,
        keeps_retyped=True,
        drop_columns=False,
        metadata={},
        is_log=True,
    )
    assert found.numbered == {(1, 0): "id", (2, 0): "b", (2, 1): "b__old_2"}


def test_a_column_that_is_no_longer_sent_is_remembered_until_it_is_sent_again() -> None:
    full = table("int")
    narrow = tuple(dataclasses.replace(e, columns=e.columns[:1], version=2) for e in full.versions)
    change = SchemaChange(UNPUBLISHED, "b", attribute_number=2)
    fields = {"id": (1, "int"), "b": (2, "int")}
    recorded = {"fields": {"1": 1, "2": 2}}
    first = as_new_column(
        dataclasses.replace(full, versions=full.versions + narrow, schema_changes=(change,)),
        target(recorded, **fields),
    )
    assert (first.unsent, first.not_in_batch) == ({2}, set())
    later = dataclasses.replace(full, versions=narrow)
    # What was dropped is not kept in rows that are written again; what is only not sent is.
    assert as_new_column(later, target(recorded, **fields)).not_in_batch == set()
    known = target({**recorded, "unsent": [2]}, **fields)
    assert as_new_column(later, known).not_in_batch == {"b"}
    assert as_new_column(full, known).unsent == set()


def made_again(staged: Table, *, is_log: bool = False, drop_columns: bool = False) -> Layout:
    """The first batch of a table that took the name of another, whose target somebody gave a column."""
    recorded = {"relation_oid": 7, "fields": {"1": 1, "2": 2}, "retired": {"2": [3]}, "former": [4]}
    fields = {"id": (1, "int"), "b": (2, "int"), "b__old_2": (3, "string"), "c": (4, "int")}
    return lay_out(
        staged,
        target(recorded, **fields, theirs=(5, "int")),
        starts=("0/1",),
        copies=not is_log,
        keeps_retyped=False,
        drop_columns=drop_columns,
        metadata={},
        is_log=is_log,
    )


def without_b(staged: Table) -> Table:
    first = dataclasses.replace(staged.versions[0], columns=staged.versions[0].columns[:1])
    return dataclasses.replace(staged, versions=(first, *staged.versions[1:]))


@pytest.mark.parametrize("is_log", [False, True])
def test_columns_of_a_former_table_make_room_for_those_that_come_later(is_log: bool) -> None:
    """Nobody added them to the target, so nobody could rename them."""
    narrow = without_b(table("int", copied=0))
    first = made_again(narrow, is_log=is_log)
    assert (first.of_earlier_table, first.renamed, first.dropped) == (
        {"b", "b__old_2", "c"},
        {},
        set(),
    )
    fields = {"id": (1, "int"), "b": (2, "int"), "b__old_2": (3, "string"), "c": (4, "int")}
    added = SchemaChange(ADDED, "b", "", "integer", 2)
    staged = dataclasses.replace(table("int"), schema_changes=(added,))
    before = evolved(first, **fields, theirs=(5, "int"))
    later = as_new_column(staged, before, False, "0/2")
    assert later.renamed == {2: "b__old"}
    assert later.numbered == {(1, 0): "id", (2, 0): "b"}
    # As those of dropped columns, in rows that are written again they are NULL.
    assert later.not_in_batch == {"theirs"}
    # The attempt that follows finds it so.
    fields = {"id": (1, "int"), "b__old": (2, "int"), "b__old_2": (3, "string"), "c": (4, "int")}
    after = evolved(later, **fields, theirs=(5, "int"), b=(6, "int"))
    again = as_new_column(staged, after, False, "0/2")
    assert (again.renamed, again.numbered) == ({}, later.numbered)
    assert again.of_earlier_table == later.of_earlier_table == {"b__old", "b__old_2", "c"}
    # What somebody added is theirs.
    columns = (staged.versions[0].columns[0], dataclasses.replace(added_column(), name="theirs"))
    versions = (dataclasses.replace(staged.versions[0], columns=columns),)
    with pytest.raises(TableRefused, match="added at the source under the name"):
        as_new_column(dataclasses.replace(staged, versions=versions), before, False, "0/2")


def added_column() -> Column:
    return table("int").versions[0].columns[1]


def test_columns_of_a_former_table_are_taken_over_by_the_copy_alone() -> None:
    """A column that comes after it, in the same batch, is a new one, and may have another type."""
    assert made_again(table("int", copied=0)).of_earlier_table == {"b__old_2", "c"}
    found = made_again(without_b(table("int", "string", copied=0)))
    assert found.renamed == {2: "b__old"}
    assert found.numbered == {(1, 0): "id", (2, 0): "b"}
    assert found.of_earlier_table == {"b__old", "b__old_2", "c"}


def test_columns_of_a_former_table_are_dropped_on_request() -> None:
    found = made_again(without_b(table("int", copied=0)), drop_columns=True)
    assert (found.dropped, found.of_earlier_table) == ({2, 3, 4}, set())
