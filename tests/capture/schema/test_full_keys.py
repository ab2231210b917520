"""Keys under REPLICA IDENTITY FULL: which rows may be applied by the key of now, without a server."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from airflow_provider_pgoutput.batch.answers import COPY
from airflow_provider_pgoutput.batch.manifest import Table
from airflow_provider_pgoutput.batch.shape import Shape
from airflow_provider_pgoutput.batch.table_version import Column, Counts, TableVersion
from airflow_provider_pgoutput.capture.schema.full_keys import FullKeys
from airflow_provider_pgoutput.capture.schema.policy import CopyNeeded, SchemaPolicy
from airflow_provider_pgoutput.capture.source.attributes import Attribute
from airflow_provider_pgoutput.errors import TableRefused
from tests.capture.pipeline_support import history_of

NAME, FAIL = "public.t", SchemaPolicy()


def version(identity: str, *key: str, columns: tuple[str, ...] = ("id", "code")) -> TableVersion:
    described = tuple(
        Column(name, 23, -1, "integer", "int", attribute_number=number)
        for number, name in enumerate(columns, start=1)
    )
    return TableVersion(1, "public", "t", identity, described, key)


def table(*versions: TableVersion, copied: bool = False) -> Table:
    found = Table(1, "public", "t", versions, Counts())
    return dataclasses.replace(found, copy_lsn="0/1") if copied else found


OLD = Shape.of(version("f", "id"))
CHANGED = table(version("f", "code"))


def test_another_key_is_refused_or_copied() -> None:
    """All rows of the batch have the key of now: two that were one by it then would be one."""
    now = (
        Attribute(1, "id", False, 23, -1, None, False),
        Attribute(2, "code", False, 23, -1, None, False),
    )
    with pytest.raises(TableRefused, match=r"from \(id\) to \(code\)") as refused:
        history_of(*now, before=OLD).complete(CHANGED)
    assert refused.value.table == NAME
    assert "copy_tables=['public.t']" in str(refused.value)
    with pytest.raises(CopyNeeded):
        history_of(*now, before=OLD, policy=SchemaPolicy(on_unknown_default=COPY)).complete(CHANGED)


@pytest.mark.parametrize(
    ("before", "changed"),
    [
        (Shape.of(version("d", "id")), CHANGED),
        (Shape.of(version("f")), CHANGED),
        (OLD, table(version("f", "id", "code"))),
        (None, table(version("d", "id"), version("f", "code"))),
        (OLD, table(version("f", "id"), version("f", "code"), copied=True)),
    ],
)
def test_a_key_that_rows_of_the_batch_may_not_have_had_is_refused(
    before: Shape | None, changed: Table
) -> None:
    with pytest.raises(TableRefused):
        FullKeys().check(changed, before, FAIL)


@pytest.mark.parametrize(
    "fine",
    [
        table(version("f", "id")),
        table(version("f", "key", columns=("key", "code"))),
        # Before the column was renamed the key of now is none.
        table(version("f"), version("f", "key", columns=("key", "code"))),
        table(version("d", "code")),
        table(version("d", "code"), version("f", "code")),
        table(version("f")),
        table(version("f", "code"), copied=True),
        table(version("f", "code"), version("f", "code"), copied=True),
    ],
)
def test_the_same_key_an_announced_one_none_and_a_copied_one_are_fine(fine: Table) -> None:
    FullKeys().check(fine, OLD, FAIL)


def test_a_configured_key_is_the_users() -> None:
    FullKeys(configured=frozenset({NAME})).check(CHANGED, OLD, FAIL)


def test_a_key_that_no_batch_recorded_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    FullKeys().check(CHANGED, None, FAIL)
    FullKeys(held=frozenset({1})).check(table(version("f", "code"), copied=True), None, FAIL)
    assert not caplog.records
    FullKeys(held=frozenset({1})).check(CHANGED, None, FAIL)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "copy_tables=['public.t']" in record.getMessage()


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize(
    ("found", "names"),
    [
        ((), ("k", "code")),
        # They changed places, so that the key has a name that was the other column's.
        (("code",), ("code", "id")),
    ],
)
def test_a_key_that_was_renamed_is_of_the_same_columns_before(
    found: tuple[str, ...], names: tuple[str, str], copied: bool
) -> None:
    """The catalog has its name of now, by which earlier rows have no key, or a wrong one."""
    then, now = version("f", *found), version("f", names[0], columns=names)
    attributes = [
        Attribute(number, name, False, 23, -1, None, False)
        for number, name in enumerate(names, start=1)
    ]
    first = version("f", "id")
    staged = table(*((first,) if copied else ()), then, now, copied=copied)
    completed = history_of(*attributes, before=None if copied else OLD).complete(staged)
    keys = [each.key_columns for each in completed.versions]
    assert keys == [*((("id",),) if copied else ()), ("id",), names[:1]]
    assert "key_changed" not in {each.kind for each in completed.schema_changes}


@pytest.mark.parametrize(
    ("past", "now"),
    [
        # Another key, none, and one of an index, which tells nothing of the primary key.
        (Shape.of(version("f", "code")), version("f", "k", columns=("k", "code"))),
        (Shape.of(version("f")), version("f", "k", columns=("k", "code"))),
        (OLD, version("f", columns=("k", "code"))),
        (OLD, version("i", "k", columns=("k", "code"))),
        (None, version("f", "k", columns=("k", "code"))),
    ],
)
def test_a_key_that_is_not_known_to_be_of_the_same_columns_is_left(
    past: Shape | None, now: TableVersion
) -> None:
    staged = table(version("f"), now)
    assert FullKeys().by_number(staged, past) == staged


def test_a_configured_key_is_not_taken_for_the_primary_key() -> None:
    staged = table(version("f", "code"), version("f", "code", columns=("id", "code")))
    assert FullKeys(configured=frozenset({NAME})).by_number(staged, OLD) == staged
    assert FullKeys().by_number(staged, OLD) == staged
    renamed = table(version("f"), version("f", "k", columns=("k", "code")))
    assert FullKeys(configured=frozenset({NAME})).by_number(renamed, OLD) == renamed
    # A version that announces its key has it.
    announced = table(version("d", "code"), version("f", "k", columns=("k", "code")))
    assert FullKeys().by_number(announced, OLD) == announced
