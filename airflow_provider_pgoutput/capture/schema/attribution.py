"""Which column of an announced relation is which column of the table: ``attnum`` for each of them.

A Relation message has names and types, in the order of ``attnum``, and no number. The catalog has all
numbers, also of dropped columns, but as they are now. Between the last batch, whose numbers are known,
and now lie the versions of this batch. A number is born in order, lives once and keeps its place. So the
versions are given the numbers that need the fewest changes of the schema (added, dropped, renamed,
retyped) from the last batch through every version to the catalog. Nothing is guessed silently: where another
reading needs as few (the newer columns are taken), or up to two more, the columns are named.

Columns that kept name and number throughout divide the rest into gaps, which are searched whole
(``search.py``). What is not here: reading the catalog, and what is done about the changes (``history.py``).

Source: https://www.postgresql.org/docs/current/catalog-pg-attribute.html
"""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.schema.search import Gap, search

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.capture.schema.search import Named, State


@dataclass(frozen=True, slots=True)
class Catalog:
    """What ``pg_attribute`` says of a table now."""

    #: Live columns that are published.
    published: State
    #: All numbers, those of dropped columns among them.
    numbers: frozenset[int]
    #: Live columns, published or not.
    live: frozenset[int]


@dataclass(frozen=True, slots=True)
class Attribution:
    """Numbers of the columns of each version, in their order; None: not known."""

    numbers: tuple[tuple[int | None, ...], ...]
    #: Columns of which another reading needs hardly more changes.
    unsure: frozenset[str] = frozenset()
    #: Of these, columns of now, or taken for one, of which another reading needs no more changes at all.
    tied: frozenset[str] = frozenset()
    #: A number that a column had by the end of the last version, in every reading that is worth it: a column
    #: that comes later has a higher one.
    highest_number: int = 0


def attribute(
    before: State | None,
    versions: Sequence[Sequence[Named]],
    catalog: Catalog,
    highest_number: int = 0,
) -> Attribution:
    """Give the columns of every version their numbers.

    :param before: columns at the end of the last batch; None: not known.
    :param versions: columns of each version in the order of the announcement.
    :param highest_number: the highest that a column is known to have had before, those among them that were
        gone by the end of the last batch.
    """
    if not catalog.numbers:
        # The table is gone: only what is known from before can be said.
        known = {name: number for number, (name, _) in (before or {}).items()}
        return Attribution(
            tuple(tuple(known.get(n) for n, _ in each) for each in versions),
            frozenset() if before is None else _unlike(before, versions),
            highest_number=max([highest_number, *known.values()]),
        )
    fences = _fences(before, versions, catalog)
    while True:
        found: list[dict[str, int | None]] = [dict(fences) for _ in versions]
        unsure: set[str] = set()
        tied: set[str] = set()
        wrong: set[float] = set()
        born = {highest_number, *(before or ()), *fences.values()}
        for gap in _gaps(before, versions, catalog, fences, highest_number):
            cheapest = search(gap)
            wrong |= set() if cheapest.is_possible else {gap.low, gap.high}
            unsure |= cheapest.unsure
            tied |= cheapest.tied
            born.add(cheapest.born)
            for place, columns in enumerate(gap.versions):
                names = [name for name, _ in columns]
                found[place] |= dict(zip(names, cheapest.numbers[place], strict=True))
        # What cannot be between two columns says that one was not that column for a while.
        fewer = {name: number for name, number in fences.items() if number not in wrong}
        if len(fewer) == len(fences):
            break
        fences = fewer
    return Attribution(
        tuple(
            tuple(found[place][name] for name, _ in columns)
            for place, columns in enumerate(versions)
        ),
        frozenset(unsure),
        frozenset(tied),
        max(born),
    )


def _unlike(before: State, versions: Sequence[Sequence[Named]]) -> frozenset[str]:
    """Names that need not be the columns of these names before: the order or what is missing says so."""
    known = [name for name, _ in before.values()]
    found: set[str] = set()
    for columns in versions:
        names = [name for name, _ in columns]
        new = [name for name in names if name not in known]
        if names[: len(known)] == known:
            continue
        kept = [name for name in names if name in known]
        found.update(new if kept == [name for name in known if name in kept] else names)
    return frozenset(found)


def _fences(
    before: State | None, versions: Sequence[Sequence[Named]], catalog: Catalog
) -> dict[str, int]:
    """Columns that have one name and one number before, in every version and now."""
    now = {name: number for number, (name, _) in catalog.published.items()}
    if before is not None:
        then = {name: number for number, (name, _) in before.items()}
        now = {name: number for name, number in now.items() if then.get(name) == number}
    for columns in versions:
        present = dict(columns)
        now = {
            name: number
            for name, number in now.items()
            # Without a past, another type may be another column's.
            if name in present
            and (before is not None or present[name] == catalog.published[number][1])
        }
    if before is None:
        live, every = sorted(catalog.published), sorted(catalog.numbers)
        for columns in versions:
            places = {name: place for place, (name, _) in enumerate(columns)}
            now = {
                name: number
                for name, number in now.items()
                # As many as are there now were there, and no more than there ever were.
                if bisect.bisect_left(live, number)
                <= places[name]
                <= bisect.bisect_left(every, number)
            }
    for columns in versions:
        order = [now[name] for name, _ in columns if name in now]
        highest = list(itertools.accumulate(order, max))
        lowest = list(itertools.accumulate(reversed(order), min))[::-1]
        # Out of order with any other: its name was another column's for a while.
        kept = {
            number
            for number, high, low in zip(order, highest, lowest, strict=True)
            if high == number == low
        }
        now = {name: number for name, number in now.items() if number in kept}
    return now


def _gaps(
    before: State | None,
    versions: Sequence[Sequence[Named]],
    catalog: Catalog,
    fences: Mapping[str, int],
    highest_number: int,
) -> list[Gap]:
    numbers = sorted(fences.values())
    parts = [_parts(columns, fences) for columns in versions]
    born = max(highest_number, *before) if before else 0
    every = sorted(catalog.numbers | set(before or ()))
    found = []
    for place, (low, high) in enumerate(zip([0, *numbers], [*numbers, math.inf], strict=True)):
        if not any(each[place] for each in parts):
            continue
        candidates = tuple(
            number
            for number in every[bisect.bisect_right(every, low) : bisect.bisect_left(every, high)]
            # What was dropped before the last batch is in no version.
            if before is None or number > born or number in before or number in catalog.live
        )
        found.append(
            Gap(
                low,
                high,
                None if before is None else {n: before[n] for n in candidates if n in before},
                tuple(each[place] for each in parts),
                {n: catalog.published[n] for n in candidates if n in catalog.published},
                candidates,
                born,
                catalog.live,
            )
        )
    return found


def _parts(columns: Sequence[Named], fences: Mapping[str, int]) -> list[tuple[Named, ...]]:
    """A version's columns between its fences."""
    found: list[list[Named]] = [[]]
    for column in columns:
        if column[0] in fences:
            found.append([])
        else:
            found[-1].append(column)
    return [tuple(each) for each in found]
