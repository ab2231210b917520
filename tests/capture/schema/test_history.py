"""What is said and done about columns of a batch, case by case, without a server."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from airflow_provider_pgoutput.batch.answers import COPY, FAIL, IGNORE
from airflow_provider_pgoutput.batch.manifest import Table
from airflow_provider_pgoutput.batch.shape import KEY, REMADE, KnownColumn, Shape
from airflow_provider_pgoutput.batch.table_version import Column, Counts, TableVersion
from airflow_provider_pgoutput.capture.schema.policy import CopyNeeded, SchemaPolicy
from airflow_provider_pgoutput.capture.source.attributes import Attribute
from airflow_provider_pgoutput.errors import ConfigurationError, SnapshotLost, TableRefused
from tests.capture.pipeline_support import history_of

INT4 = 23


def table(*versions: str) -> Table:
    def version(number: int, names: str) -> TableVersion:
        columns = tuple(Column(name, INT4, -1, "integer", "int") for name in names.split())
        return TableVersion(number, "public", "t", "d", columns, ("id",))

    found = tuple(version(number, names) for number, names in enumerate(versions, start=1))
    return Table(1, "public", "t", found, Counts())


def shape(names: str) -> Shape:
    """The columns of these names, numbered from 1."""
    columns = tuple(
        KnownColumn(number, name, "integer", "int")
        for number, name in enumerate(names.split(), start=1)
    )
    return Shape(columns, ("id",), "d")


def attribute(number: int, name: str, *, dropped: bool = False, filled: bool = False) -> Attribute:
    return Attribute(number, name, dropped, INT4, -1, None, filled)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


@pytest.mark.parametrize("on_unknown_default", [IGNORE, COPY])
def test_without_an_earlier_batch_a_column_added_between_two_rows_is_warned_of(
    on_unknown_default: str, caplog: pytest.LogCaptureFixture
) -> None:
    now = [attribute(1, "id"), attribute(2, "a", filled=True)]
    history_of(*now, policy=SchemaPolicy(on_unknown_default=on_unknown_default)).complete(
        table("id", "id a")
    )
    (message,) = warnings(caplog)
    assert "the added column a" in message
    assert "copy_tables=['public.t']" in message


def test_without_an_earlier_batch_a_column_that_was_dropped_or_renamed_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [attribute(1, "id"), attribute(2, "", dropped=True), attribute(3, "b")]
    history_of(*now).complete(table("id a", "id b"))
    (message,) = warnings(caplog)
    assert "whether a" in message
    assert "by their names" in message
    assert "copy_tables=['public.t']" in message


def test_of_a_table_that_is_gone_no_copy_is_promised(caplog: pytest.LogCaptureFixture) -> None:
    history_of().complete(table("id a", "id b"))
    assert not any("copy_tables" in each for each in caplog.messages)


def test_what_older_rows_show_goes_by_number_and_not_by_the_name_of_now() -> None:
    """Column 2 was c when its row was written, is d now, and another c has a default."""
    staged = table("id c")
    (version,) = staged.versions
    by_name = dataclasses.replace(version.columns[1], missing_value="7")
    versions = (dataclasses.replace(version, columns=(version.columns[0], by_name)),)
    now = [
        attribute(1, "id"),
        attribute(2, "d"),
        dataclasses.replace(attribute(3, "c"), missing_value="7"),
    ]
    found = history_of(*now, before=shape("id")).complete(
        dataclasses.replace(staged, versions=versions)
    )
    column = found.versions[0].columns[1]
    assert (column.attribute_number, column.missing_value) == (2, None)


def test_values_of_a_column_that_was_dropped_or_of_its_successor_are_not_guessed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The row may be older than the DROP or newer than the ADD."""
    now = [attribute(1, "id"), attribute(2, "", dropped=True), attribute(3, "a")]
    staged, before = table("id a"), shape("id a")
    with pytest.raises(TableRefused, match="took its place") as refused:
        history_of(*now, before=before).complete(staged)
    assert (refused.value.table, refused.value.column) == ("public.t", "a")
    assert "copy_tables=['public.t']" in str(refused.value)
    with pytest.raises(CopyNeeded):
        history_of(*now, before=before, policy=SchemaPolicy(on_unsure_column=COPY)).complete(staged)
    found = history_of(*now, before=before, policy=SchemaPolicy(on_unsure_column=IGNORE)).complete(
        staged
    )
    assert [each.attribute_number for each in found.versions[0].columns] == [1, 3]
    assert "whether a kept its values" in caplog.text
    assert SchemaPolicy().on_unsure_column == FAIL


def test_the_highest_number_outlives_its_column() -> None:
    """What came and went in a batch is known in the next, and no new column is taken for it."""
    now = [attribute(1, "id"), attribute(2, "", dropped=True)]
    gone = history_of(*now, before=shape("id")).complete(table("id", "id a", "id"))
    assert (gone.highest_number, gone.records_columns) == (2, True)
    before = then(gone)
    assert (before.highest_number, len(before.columns)) == (2, 1)
    now.append(attribute(3, "", dropped=True))
    later = history_of(*now, before=before).complete(table("id", "id b", "id"))
    assert [each.attribute_number for each in later.versions[1].columns] == [1, 3]
    assert later.highest_number == 3
    # The lake of an earlier version has no such number.
    old = Shape.from_json(shape("id a").to_json())
    assert old is not None
    assert old.highest_number == 0
    assert history_of(attribute(1, "id"), before=old).complete(table("id")).highest_number == 2


def then(found: Table) -> Shape:
    """The columns at the end of a batch, as the lake keeps them."""
    shape = Shape.from_json(found.shape.to_json())
    assert shape is not None
    return shape


def numbers(found: Table) -> list[list[int | None]]:
    return [[each.attribute_number for each in version.columns] for version in found.versions]


def test_a_number_that_may_have_been_a_later_columns_is_not_kept() -> None:
    """A backlog: a is 2 or 3, both of which are gone by now; b of the next batch may be 3 then."""
    now = [attribute(1, "id"), *(attribute(n, "", dropped=True) for n in (2, 3)), attribute(4, "z")]
    first = history_of(*now, before=shape("id")).complete(table("id a", "id"))
    assert (numbers(first), first.highest_number) == ([[1, 2], [1]], 2)
    second = history_of(*now, before=then(first)).complete(table("id b"))
    assert numbers(second) == [[1, 3]]
    third = history_of(*now, before=then(second)).complete(table("id", "id z"))
    assert numbers(third) == [[1], [1, 4]]


def test_a_column_that_left_the_column_list_may_come_back_and_be_dropped() -> None:
    now = [attribute(1, "id"), attribute(2, "a")]
    history = history_of(*now, before=shape("id a"))
    history = dataclasses.replace(history, published={1: frozenset({"id"})})
    first = history.complete(table("id a", "id"))
    assert (numbers(first), first.highest_number) == ([[1, 2], [1]], 1)
    now = [attribute(1, "id"), attribute(2, "", dropped=True), attribute(3, "z")]
    second = history_of(*now, before=then(first)).complete(table("id a", "id a z", "id z"))
    assert numbers(second) == [[1, 2], [1, 2, 3], [1, 3]]


@pytest.mark.parametrize("text", ["null", '"3"', "1e400", "3.5"])
def test_a_highest_number_that_is_none_is_not_known(text: str) -> None:
    body = Shape((), ("id",), "d", None, 7).to_json().replace("7", text)
    found = Shape.from_json(body)
    assert found is not None
    assert found.highest_number == 0


@pytest.mark.parametrize("name", ["on_unknown_default", "on_type_change", "on_unsure_column"])
def test_an_unknown_policy_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        SchemaPolicy(**{name: "guess"})


def test_a_new_key_whose_values_in_older_rows_nobody_tells_is_refused_or_copied() -> None:
    """A serial column that becomes the key: PostgreSQL filled it in without events."""
    staged, before = table("id k"), shape("id")
    versions = (dataclasses.replace(staged.versions[0], key_columns=("k",)),)
    staged = dataclasses.replace(staged, versions=versions)
    now = [attribute(1, "id"), attribute(2, "k", filled=True)]
    for word in ("ignore", "default"):
        policy = SchemaPolicy(on_unknown_default=word)
        with pytest.raises(TableRefused, match="cannot be found") as refused:
            history_of(*now, before=before, policy=policy).complete(staged)
        assert refused.value.column == "k"
    with pytest.raises(CopyNeeded):
        history_of(*now, before=before, policy=SchemaPolicy(on_unknown_default=COPY)).complete(
            staged
        )
    # Of one that was there before, all values are in the lake.
    before = shape("id k")
    assert history_of(*now, before=before).complete(staged).schema_changes[0].kind == KEY


def copied(staged: Table, **types: str) -> Table:
    """The table, whose first version was copied; columns of the last version have these types."""
    first, last = staged.versions
    numbered = tuple(
        dataclasses.replace(column, attribute_number=number)
        for number, column in enumerate(first.columns, start=1)
    )
    columns = tuple(
        dataclasses.replace(each, type_name=types[each.name], lake_type=types[each.name])
        if each.name in types
        else each
        for each in last.columns
    )
    versions = (
        dataclasses.replace(first, columns=numbered),
        dataclasses.replace(last, columns=columns),
    )
    return dataclasses.replace(staged, versions=versions, copy_lsn="0/100")


@pytest.mark.parametrize("on_type_change", [FAIL, COPY])
@pytest.mark.parametrize("past", [None, "id a"])
def test_a_type_that_changed_after_the_copy_is_refused_before_anything_is_sealed(
    on_type_change: str, past: str | None
) -> None:
    """Apply could not follow, and the sealed batch would come back with every attempt."""
    policy = SchemaPolicy(on_type_change=on_type_change)
    before = None if past is None else shape(past)
    now = [attribute(1, "id"), attribute(2, "a")]
    staged = copied(table("id a", "id a"), a="string")
    with pytest.raises(SnapshotLost, match="after the table was copied") as refused:
        history_of(*now, before=before, policy=policy).complete(staged)
    assert (refused.value.table, refused.value.column) == ("public.t", "a")
    # What changed before the copy is in it.
    alike = copied(table("id a", "id a"))
    assert history_of(*now, before=shape("id"), policy=policy).complete(alike).copy_lsn


@pytest.mark.parametrize("on_unknown_default", [IGNORE, COPY])
def test_of_a_column_added_after_the_copy_the_copied_rows_lack_what_it_was_filled_with(
    on_unknown_default: str, caplog: pytest.LogCaptureFixture
) -> None:
    now = [attribute(1, "id"), attribute(2, "a", filled=True)]
    history = history_of(*now, policy=SchemaPolicy(on_unknown_default=on_unknown_default))
    if on_unknown_default == COPY:
        with pytest.raises(SnapshotLost, match="run the task again"):
            history.complete(copied(table("id", "id a")))
        return
    history.complete(copied(table("id", "id a")))
    (message,) = warnings(caplog)
    assert "the added column a" in message


@pytest.mark.parametrize("past", [None, "id a"])
def test_values_after_the_copy_of_a_dropped_column_or_its_successor_are_not_guessed(
    past: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy's own columns are known, and a row after it may be of either all the same."""
    before = None if past is None else shape(past)
    now = [attribute(1, "id"), attribute(2, "", dropped=True), attribute(3, "a")]
    staged = copied(table("id a", "id a"))
    for word in (FAIL, COPY):
        policy = SchemaPolicy(on_unsure_column=word)
        with pytest.raises(SnapshotLost, match="after the table was copied") as refused:
            history_of(*now, before=before, policy=policy).complete(staged)
        assert (refused.value.table, refused.value.column) == ("public.t", "a")
    found = history_of(*now, before=before, policy=SchemaPolicy(on_unsure_column=IGNORE))
    versions = found.complete(staged).versions
    assert [[each.attribute_number for each in v.columns] for v in versions] == [[1, 2], [1, 3]]
    assert "whether a kept its values" in caplog.text
    # A row in between tells.
    apart = copied(table("id a", "id"))
    apart = dataclasses.replace(apart, versions=apart.versions + table("", "", "id a").versions[2:])
    assert history_of(*now, before=before).complete(apart).copy_lsn


def test_a_table_that_was_made_again_is_compared_with_the_former_one_by_name() -> None:
    """The numbers of its columns are its own: they say nothing about the fields of the former one."""
    now = [attribute(1, "b"), attribute(2, "id"), attribute(3, "c")]
    made_again = copied(table("b id c", "b id c"))
    shapes_by_name = dataclasses.replace(shape("id a b"), replica_identity="f")
    history = dataclasses.replace(history_of(*now), shapes_by_name={"public.t": shapes_by_name})
    changes = history.complete(made_again).schema_changes
    assert [str(each) for each in changes] == [
        "column a was dropped",
        "column c was added, integer",
        "the replica identity changed from f to d",
    ]
    assert {each.attribute_number for each in changes} == {None}
    # One whose own past is known is compared with that, and one that is not copied with nothing.
    known = dataclasses.replace(history, before={1: shape("b id c")})
    assert not known.complete(made_again).schema_changes
    assert not history.complete(table("b id c")).schema_changes


def test_a_lake_type_that_changed_under_one_name_is_said() -> None:
    """As when a composite gets an attribute, or another type is chosen for a column."""
    kinds = ("struct<x: int>", "struct<x: int, y: int>")
    key, held = shape("id a").columns
    before = dataclasses.replace(
        shape("id a"), columns=(key, dataclasses.replace(held, lake_type=kinds[0]))
    )
    (version,) = table("id a").versions
    columns = (version.columns[0], dataclasses.replace(version.columns[1], lake_type=kinds[1]))
    staged = dataclasses.replace(
        table("id a"), versions=(dataclasses.replace(version, columns=columns),)
    )
    history = history_of(attribute(1, "id"), attribute(2, "a"), before=before)
    (change,) = history.complete(staged).schema_changes
    assert (change.kind, change.column, change.attribute_number) == (REMADE, "a", 2)
    assert (change.before, change.after) == kinds


@pytest.mark.parametrize("key", [("a",), ("id",)])
def test_a_key_whose_struct_loses_an_attribute_is_copied_as_the_policy_says(
    key: tuple[str, ...],
) -> None:
    """The lake's rows have the attribute in their key, and would not be found without it."""
    first, held = shape("id a").columns
    held = dataclasses.replace(held, lake_type="struct<x: int, y: int>")
    before = Shape((first, held), key, "d")
    (version,) = table("id a").versions
    columns = (
        version.columns[0],
        dataclasses.replace(version.columns[1], lake_type="struct<x: int>"),
    )
    version = dataclasses.replace(version, columns=columns, key_columns=key)
    staged = dataclasses.replace(table("id a"), versions=(version,))
    now = (attribute(1, "id"), attribute(2, "a"))
    history = history_of(*now, before=before, policy=SchemaPolicy(on_type_change=COPY))
    if key == ("id",):
        (change,) = history.complete(staged).schema_changes
        assert change.kind == REMADE
        return
    with pytest.raises(CopyNeeded):
        history.complete(staged)
