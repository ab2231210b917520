"""Numbers of columns, found from names, types and the catalog of now: cases, then random histories."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from airflow_provider_pgoutput.capture.schema.attribution import Catalog, attribute
from tests.sweep import slow_but_each

INT, TEXT = "integer", "text"


def catalog(live: dict[int, tuple[str, str]], *dropped: int) -> Catalog:
    return Catalog(live, frozenset([*live, *dropped]), live)


def ints(**names: int) -> dict[int, tuple[str, str]]:
    return {number: (name, INT) for name, number in names.items()}


#: Columns of the last batch, of each version, and now (live, dropped); the numbers, and what is in doubt.
CASES = {
    "nothing happened": (ints(id=1, a=2), ["id a"], ints(id=1, a=2), (), [(1, 2)], ""),
    "renamed": (ints(id=1, a=2), ["id a", "id b"], ints(id=1, b=2), (), [(1, 2), (1, 2)], ""),
    "renamed after the batch": (ints(id=1, a=2), ["id a"], ints(id=1, b=2), (), [(1, 2)], ""),
    "swapped": (ints(id=1, a=2, b=3), ["id b a"], ints(id=1, b=2, a=3), (), [(1, 2, 3)], ""),
    "swapped and swapped back": (
        *(ints(id=1, a=2, b=3), ["id b a", "id a b"], ints(id=1, a=2, b=3), ()),
        *([(1, 2, 3), (1, 2, 3)], ""),
    ),
    "renamed, then the name added": (
        *(ints(id=1, a=2), ["id b", "id b a"], ints(id=1, b=2, a=3), (), [(1, 2), (1, 2, 3)], ""),
    ),
    "dropped and another added": (
        *(ints(id=1, a=2), ["id a", "id b"], ints(id=1, b=3), (2,), [(1, 2), (1, 3)], "a b"),
    ),
    "dropped and added again with rows between": (
        *(ints(id=1, a=2), ["id a", "id", "id a"], ints(id=1, a=3), (2,)),
        *([(1, 2), (1,), (1, 3)], ""),
    ),
    "dropped and added again behind another": (
        *(ints(id=1, a=2, b=3), ["id a b", "id b a"], ints(id=1, b=3, a=4), (2,)),
        *([(1, 2, 3), (1, 3, 4)], ""),
    ),
    "dropped and added again unseen": (
        *(ints(id=1, a=2), ["id a"], ints(id=1, a=3), (2,), [(1, 3)], "a"),
    ),
    # What is taken needs two changes less than another added and dropped unseen, and two names swapped.
    "swapped, or dropped and added again": (
        *(ints(id=1), ["id a", "id a b", "id b a"], ints(id=1, b=3, a=4), (2,)),
        *([(1, 2), (1, 2, 3), (1, 3, 4)], "a b"),
    ),
    "nothing happened yet, and it and a later one are gone by now": (
        *(ints(id=1, a=2), ["id a"], ints(id=1, b=4), (2, 3), [(1, 2)], "a"),
    ),
    "dropped, another added and renamed unseen": (
        *(ints(id=1, a=2), ["id b"], ints(id=1, c=3), (2,), [(1, 3)], "b"),
    ),
    "added after three that came and went unseen": (
        *(ints(id=1), ["id", "id a"], ints(id=1, a=5), (2, 3, 4), [(1,), (1, 5)], "a"),
    ),
    "the key renamed": (ints(id=1, a=2), ["key a"], ints(key=1, a=2), (), [(1, 2)], ""),
    "the table is gone": (ints(id=1, a=2), ["id a b"], {}, (), [(1, 2, None)], ""),
    "nothing known, names agree": (None, ["id a"], ints(id=1, a=3), (2,), [(1, 3)], ""),
    "nothing known, renamed": (None, ["id a"], ints(id=1, b=2), (), [(1, 2)], ""),
    "nothing known, cannot be told": (None, ["id a"], ints(id=1, b=3), (2,), [(1, None)], "a"),
    "nothing known, renamed and another dropped": (
        *(None, ["id a", "id b c", "id b d"], ints(id=1, b=3, d=4), (2,)),
        *([(1, None), (1, 3, 4), (1, 3, 4)], "a"),
    ),
    "nothing known, its name was another's": (
        *(None, ["id a", "id b a"], ints(id=1, b=2, a=3), (), [(1, 3), (1, 2, 3)], "a"),
    ),
    "the table is gone, and another column came": (
        *(ints(id=1, a=2), ["id b"], {}, (), [(1, None)], "b"),
    ),
    "the table is gone, and columns changed places": (
        *(ints(id=1, a=2, b=3), ["id b a"], {}, (), [(1, 3, 2)], "a b id"),
    ),
    "another had the name for a while": (
        *(ints(id=1, a=2, b=3), ["id c a"], ints(id=1, a=2, b=3), (), [(1, 2, 3)], ""),
    ),
}


#: Of these, those that two readings explain equally well.
TIED = {
    "dropped and added again unseen",
    "dropped, another added and renamed unseen",
    "added after three that came and went unseen",
}


@pytest.mark.parametrize("name", CASES)
def test_columns_get_their_numbers(name: str) -> None:
    before, versions, live, dropped, expected, unsure = CASES[name]
    named = [[(each, INT) for each in version.split()] for version in versions]
    found = attribute(before, named, catalog(live, *dropped))
    assert list(found.numbers) == expected
    assert found.unsure == frozenset(unsure.split())


@pytest.mark.parametrize("name", CASES)
def test_only_what_a_second_reading_explains_as_well_is_tied(name: str) -> None:
    before, versions, live, dropped, _, unsure = CASES[name]
    named = [[(each, INT) for each in version.split()] for version in versions]
    tied = attribute(before, named, catalog(live, *dropped)).tied
    assert tied <= frozenset(unsure.split())
    if before is not None:
        assert bool(tied) == (name in TIED)


def test_a_type_tells_columns_apart() -> None:
    """Added again under the same name with another type: the type may have been changed first, though.

    That needs one change more, so the numbers are what they most likely are, and a warning says so.
    """
    now = catalog({1: ("id", INT), 3: ("a", TEXT)}, 2)
    found = attribute(ints(id=1, a=2), [[("id", INT), ("a", INT)], [("id", INT), ("a", TEXT)]], now)
    assert found.numbers == ((1, 2), (1, 3))
    assert (found.unsure, found.tied) == ({"a"}, frozenset())


def test_a_column_is_not_taken_for_one_that_batches_before_dropped() -> None:
    """Column 2 was renamed, retyped and dropped, then 5 added; 3 and 4 had come and gone before."""
    before, now = (
        {1: ("id", INT), 2: ("y", TEXT)},
        catalog({1: ("id", INT), 5: ("x", INT)}, 2, 3, 4),
    )
    versions = [
        [("id", INT), ("b", TEXT)],
        [("id", INT), ("b", INT)],
        [("id", INT)],
        [("id", INT), ("x", INT)],
    ]
    right = ((1, 2), (1, 2), (1,), (1, 5))
    assert attribute(before, versions, now, 4).numbers == right
    # Where nobody says that they had, that they come and go in this batch needs fewer changes.
    assert attribute(before, versions, now).numbers != right


def test_a_changed_type_under_the_same_name_counts_no_more_than_a_drop_and_an_addition() -> None:
    """Column 2 became text, a row came, then 2 was dropped and 3 added: the row is not silently 3's."""
    before, now = ints(a=1, b=2), catalog({3: ("c", TEXT)}, 1, 2)
    assert "b" in attribute(before, [[("b", TEXT)], [("c", TEXT)]], now).unsure


def test_without_a_past_a_column_of_another_type_is_in_doubt() -> None:
    now = catalog({1: ("id", INT), 3: ("a", TEXT)}, 2)
    found = attribute(None, [[("id", INT), ("a", INT)], [("id", INT), ("a", TEXT)]], now)
    assert found.unsure == {"a"}


@pytest.mark.parametrize("before", [ints(id=1), None])
def test_many_columns_added_with_a_row_between_are_all_known(before: dict[int, Any] | None) -> None:
    now = {number: (f"c{number}", INT) for number in range(2, 42)} | {1: ("id", INT)}
    every = [now[number] for number in sorted(now)]
    found = attribute(before, [every[:21], every], catalog(now))
    if before is not None:
        assert found.numbers == (tuple(range(1, 22)), tuple(range(1, 42)))
        assert not found.unsure
    # Too many choices without a past: all that is not in every version is in doubt.
    assert {n for each in found.numbers for n in each} <= set(now)


def test_many_columns_dropped_with_a_row_between_take_no_time_and_are_in_doubt() -> None:
    before = {number: (f"c{number}", INT) for number in range(1, 62)}
    started = time.process_time()
    version = [before[number] for number in range(1, 32)]
    found = attribute(before, [version], catalog({1: before[1]}, *range(2, 62)))
    assert time.process_time() - started < 2
    assert found.numbers == (tuple(range(1, 32)),)
    assert found.unsure == {name for name, _ in version[1:]}


def test_a_column_that_is_no_longer_published_is_not_dropped() -> None:
    live = {1: ("id", INT), 2: ("a", INT), 3: ("b", INT)}
    now = Catalog({1: live[1], 3: live[3]}, frozenset(live), live)
    found = attribute(live, [[("id", INT), ("b", INT)]], now)
    assert found.numbers == ((1, 3),)


def test_a_column_that_is_published_later_has_its_own_number() -> None:
    live = {1: ("id", INT), 2: ("a", INT), 3: ("b", INT)}
    before = {1: live[1], 3: live[3]}
    named = [[("id", INT), ("a", INT), ("b", INT)]]
    assert attribute(before, named, catalog(live)).numbers == ((1, 2, 3),)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_column_that_was_published_for_a_while_only_has_its_own_number(is_dropped: bool) -> None:
    """``c`` is published in one version only. ``b`` gets another name beside it, and keeps its number."""
    before = {1: ("id", INT), 2: ("b", INT), 4: ("d", INT)}
    now = {1: ("id", INT), 2: ("z", INT), 4: ("d", INT)}
    live = now if is_dropped else {**now, 3: ("c", INT)}
    versions = [
        [("id", INT), ("b", INT), ("c", INT), ("d", INT)],
        [("id", INT), ("z", INT), ("d", INT)],
    ]
    found = attribute(before, versions, Catalog(now, frozenset({1, 2, 3, 4}), live), 4)
    assert found.numbers == ((1, 2, 3, 4), (1, 2, 4))


def test_a_column_that_was_not_published_for_a_while_keeps_its_number() -> None:
    live = {1: ("id", INT), 2: ("b", INT), 3: ("c", INT)}
    versions = [
        [("id", INT), ("b", INT)],
        [("id", INT), ("b", INT), ("c", INT)],
        [("id", INT), ("b", INT)],
    ]
    now = Catalog({1: live[1], 2: live[2]}, frozenset(live), live)
    assert attribute(live, versions, now, 3).numbers == ((1, 2), (1, 2, 3), (1, 2))


def test_a_column_that_was_hidden_while_another_came_is_not_taken_for_it_unseen() -> None:
    """``g`` is not published for a while, and ``c`` is added meanwhile. Or ``g`` was called ``c``."""
    before = {1: ("id", INT), 2: ("a", INT), 3: ("g", INT)}
    now = {**before, 4: ("c", INT)}
    versions = [
        [("id", INT), ("a", INT), ("c", INT)],
        [("id", INT), ("a", INT), ("g", INT), ("c", INT)],
    ]
    found = attribute(before, versions, catalog(now), 3)
    assert found.numbers == ((1, 2, 4), (1, 2, 3, 4))
    assert found.tied == {"c"}


def test_a_name_that_came_back_is_a_rename_if_no_other_column_could_have_it() -> None:
    before = {1: ("id", INT), 2: ("a", INT)}
    versions = [[("id", INT), ("z", INT)], [("id", INT), ("a", INT)]]
    found = attribute(before, versions, catalog(before), 2)
    assert (found.numbers, found.unsure) == (((1, 2), (1, 2)), frozenset())


@pytest.mark.slow
def test_another_half_of_the_columns_for_a_while_takes_no_time_and_is_in_doubt() -> None:
    live = {number: (f"c{number}", INT) for number in range(1, 40)}
    before = {number: live[number] for number in range(1, 21)}
    others = {1: live[1], **{number: live[number] for number in range(21, 40)}}
    started = time.process_time()
    found = attribute(
        before,
        [[*others.values()], [*before.values()]],
        Catalog(before, frozenset(live), live),
        39,
    )
    assert time.process_time() - started < 20
    assert {f"c{number}" for number in range(2, 40)} <= found.unsure


def test_a_table_as_wide_as_they_come_takes_no_time() -> None:
    """1600 columns, one renamed, one dropped: some milliseconds, and not a search."""
    before = {number: (f"c{number}", INT) for number in range(1, 1601)}
    now = {number: named for number, named in before.items() if number != 900}
    now[700] = ("renamed", INT)
    versions = [[*before.values()], [*now.values()]]
    numbers = attribute(before, versions, catalog(now, 900)).numbers
    assert numbers == (tuple(before), tuple(now))
    started = time.process_time()
    attribute(now, [[*now.values()]] * 20, catalog(now, 900))
    assert time.process_time() - started < 2


@pytest.mark.slow
def test_a_column_added_and_dropped_many_times_in_one_batch_is_told_apart() -> None:
    """The hundredth column of the name is not taken for the first."""
    before, now = ints(id=1), ints(id=1, a=101)
    versions = [[("id", INT), ("a", INT)], [("id", INT)]] * 99 + [[("id", INT), ("a", INT)]]
    numbers = attribute(before, versions, catalog(now, *range(2, 101))).numbers
    assert [each[1] for each in numbers if len(each) == 2] == list(range(2, 102))


class Table:
    """A table that is altered at random, and knows its numbers."""

    def __init__(self, random_source: random.Random) -> None:
        self.random = random_source
        self.live = {number: (f"c{number}", INT) for number in range(1, 5)}
        self.highest = 4

    def alter(self) -> None:
        free = sorted({f"c{i}" for i in range(8)} - {name for name, _ in self.live.values()})
        choice = self.random.random()
        number = self.random.choice(sorted(self.live))
        if len(self.live) < 2 or (choice < 0.35 and len(self.live) < 7):
            self.highest += 1
            self.live[self.highest] = (self.random.choice(free), self.random.choice((INT, TEXT)))
        elif choice < 0.6:
            del self.live[number]
        elif choice < 0.85:
            self.live[number] = (self.random.choice(free), self.live[number][1])
        else:
            self.live[number] = (self.live[number][0], self.random.choice((INT, TEXT)))

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(sorted(self.live))

    @property
    def named(self) -> list[tuple[str, str]]:
        return [self.live[number] for number in self.numbers]


@pytest.mark.parametrize("seed", slow_but_each(10, range(300)))
def test_no_value_gets_under_another_live_column_unless_it_is_said(seed: int) -> None:
    """Also when not every change is followed by a row."""
    table = Table(random.Random(seed))  # noqa: S311 - a test has to repeat itself
    before = dict(table.live)
    versions: list[list[tuple[str, str]]] = []
    truth: list[tuple[int, ...]] = []
    for _ in range(table.random.randint(1, 5)):
        for _ in range(table.random.randint(1, 2)):
            table.alter()
        if not versions or versions[-1] != table.named:
            versions.append(table.named)
            truth.append(table.numbers)
    dropped = set(range(1, table.highest + 1)) - set(table.live)
    found = attribute(before, versions, catalog(dict(table.live), *dropped))
    wrong = {
        name
        for columns, numbers, right in zip(versions, found.numbers, truth, strict=True)
        for (name, _), number, wanted in zip(columns, numbers, right, strict=True)
        if number != wanted and number in table.live
    }
    assert wrong <= found.unsure


@pytest.mark.parametrize("seed", slow_but_each(10, range(300)))
def test_columns_that_are_published_and_not_published_in_turn_have_numbers(seed: int) -> None:
    """A column list is changed between changes of the table."""
    table = Table(random.Random(seed))  # noqa: S311 - a test has to repeat itself
    hidden = {table.random.randint(2, 4)}
    before = {number: named for number, named in table.live.items() if number not in hidden}
    versions, truth = [], []
    for _ in range(table.random.randint(1, 5)):
        if table.random.random() < 0.4:
            hidden ^= {table.random.choice(sorted(table.live))}
        else:
            table.alter()
        hidden = hidden if set(table.live) - hidden else set()
        versions.append([table.live[number] for number in table.numbers if number not in hidden])
        truth.append([number for number in table.numbers if number not in hidden])
    published = {number: named for number, named in table.live.items() if number not in hidden}
    numbers = frozenset(range(1, table.highest + 1))
    found = attribute(before, versions, Catalog(published, numbers, table.live), 4)
    wrong = {
        name
        for columns, read, right in zip(versions, found.numbers, truth, strict=True)
        for (name, _), number, wanted in zip(columns, read, right, strict=True)
        if number is None
        or (number != wanted and {number, wanted} & (set(before) | set(published)))
    }
    assert wrong <= found.unsure
    assert all(None not in each for each in found.numbers)


@pytest.mark.parametrize("seed", slow_but_each(10, range(300)))
def test_where_rows_show_every_change_all_numbers_are_right(seed: int) -> None:
    table = Table(random.Random(seed))  # noqa: S311 - a test has to repeat itself
    before = dict(table.live)
    versions, truth = [], []
    for _ in range(table.random.randint(1, 6)):
        table.alter()
        versions.append(table.named)
        truth.append(table.numbers)
    if table.random.random() < 0.3:
        table.alter()
    dropped = set(range(1, table.highest + 1)) - set(table.live)
    found = attribute(before, versions, catalog(dict(table.live), *dropped))
    wrong = {
        name
        for columns, numbers, right in zip(versions, found.numbers, truth, strict=True)
        for (name, _), number, wanted in zip(columns, numbers, right, strict=True)
        # A column that nobody knew before and that is gone by now may be any that is gone.
        if number != wanted and {number, wanted} & (set(before) | set(table.live))
    }
    assert wrong <= found.unsure
