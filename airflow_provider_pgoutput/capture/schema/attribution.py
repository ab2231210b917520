"""Which column of an announced relation is which column of the table: finds ``attnum`` for each.

A Relation message has names and types in the order of ``attnum``, but no numbers. The catalog has all
numbers, also of dropped columns, but only as they are now. The numbers at the end of the last batch are
known. Between that and now are the versions of this batch.

A new column gets a higher number than all before it. A number is used once, and does not move. So the
versions get the numbers that need the fewest schema changes. These are counted from the last batch, through
every version, to the catalog. A column that is added, dropped, renamed or gets another type is one change.

Nothing is guessed silently. If several solutions need equally few changes, the one with the newer columns is
taken. The columns in question are returned as unsure. They are also returned if another solution needs one or
two changes more.

Columns that kept name and number all the time divide the others into gaps. ``search.py`` searches each gap.
``history.py`` reads the catalog and acts on the changes.

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
    """What ``pg_attribute`` says about a table now."""

    #: Published columns that exist.
    published: State
    #: All numbers, also of dropped columns.
    numbers: frozenset[int]
    #: Columns that exist, published or not.
    live: State


@dataclass(frozen=True, slots=True)
class Attribution:
    """The columns' numbers by version, in the order of the columns; None: not known."""

    numbers: tuple[tuple[int | None, ...], ...]
    #: Names of columns for which another solution needs as few changes, or one or two more.
    unsure: frozenset[str] = frozenset()
    #: The names among them for which another solution needs equally few changes, and one of these solutions
    #: takes a current column.
    tied: frozenset[str] = frozenset()
    #: The highest number that a column surely had by the end of the last version. Columns that come later
    #: have higher numbers.
    highest_number: int = 0


def attribute(
    before: State | None,
    versions: Sequence[Sequence[Named]],
    catalog: Catalog,
    highest_number: int = 0,
) -> Attribution:
    """Find the numbers of the columns of every version.

    :param before: columns at the end of the last batch; None: not known.
    :param versions: columns of each version, in the order of the announcement.
    :param highest_number: the highest number that a column is known to have had before, also if the column
        was gone by the end of the last batch.
    """
    if not catalog.numbers:
        # The table is gone, so only what was known before can be used.
        known = {name: number for number, (name, _) in (before or {}).items()}
        return Attribution(
            tuple(tuple(known.get(n) for n, _ in each) for each in versions),
            frozenset() if before is None else _unlike(before, versions),
            highest_number=max([highest_number, *known.values()]),
        )
    all_fixed = fixed = _fixed_columns(before, versions, catalog)
    # A column that was there and is there, and is missing between: it had another name, or was not published.
    comes_and_goes = _is_missing_between(before, versions, catalog)
    with_dropped = False
    while True:
        found: list[dict[str, int | None]] = [dict(fixed) for _ in versions]
        unsure: set[str] = set()
        tied: set[str] = set()
        wrong: set[float] = set()
        used = {highest_number, *(before or ()), *fixed.values()}
        for gap in _gaps(
            before, versions, catalog, fixed, highest_number, comes_and_goes, with_dropped
        ):
            cheapest = search(gap)
            wrong |= set() if cheapest.is_possible else {gap.low, gap.high}
            unsure |= cheapest.unsure
            tied |= cheapest.tied
            used.add(cheapest.highest_number)
            for index, columns in enumerate(gap.versions):
                names = [name for name, _ in columns]
                found[index] |= dict(zip(names, cheapest.numbers[index], strict=True))
        # What does not fit between two columns shows that one of the two was another column for a while.
        fewer = {name: number for name, number in fixed.items() if number not in wrong}
        if len(fewer) < len(fixed):
            fixed = fewer
        elif wrong and before is not None and not with_dropped:
            # Nothing fits as long as a column is published all the time or not at all.
            fixed, comes_and_goes, with_dropped = all_fixed, True, True
        else:
            break
    return Attribution(
        tuple(
            tuple(found[index][name] for name, _ in columns)
            for index, columns in enumerate(versions)
        ),
        frozenset(unsure),
        frozenset(tied),
        max(used),
    )


def _is_missing_between(
    before: State | None, versions: Sequence[Sequence[Named]], catalog: Catalog
) -> bool:
    """Whether a version lacks the name of a column that has the same name before and now."""
    kept = {
        name
        for number, (name, _) in (before or {}).items()
        if catalog.published.get(number, ("",))[0] == name
    }
    return any(not kept <= {name for name, _ in columns} for columns in versions)


def _unlike(before: State, versions: Sequence[Sequence[Named]]) -> frozenset[str]:
    """Names that may belong to another column than before. The order of names, or a missing one, shows it."""
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


def _fixed_columns(
    before: State | None, versions: Sequence[Sequence[Named]], catalog: Catalog
) -> dict[str, int]:
    """Columns that have the same name and number before, in every version, and now."""
    now = {name: number for number, (name, _) in catalog.published.items()}
    if before is not None:
        then = {name: number for number, (name, _) in before.items()}
        now = {name: number for name, number in now.items() if then.get(name) == number}
    for columns in versions:
        present = dict(columns)
        now = {
            name: number
            for name, number in now.items()
            # If nothing is known from before, another type may mean another column.
            if name in present
            and (before is not None or present[name] == catalog.published[number][1])
        }
    if before is None:
        live, every = sorted(catalog.published), sorted(catalog.numbers)
        for columns in versions:
            indexes = {name: index for index, (name, _) in enumerate(columns)}
            now = {
                name: number
                for name, number in now.items()
                # The current columns were there, and there were never more columns than numbers.
                if bisect.bisect_left(live, number)
                <= indexes[name]
                <= bisect.bisect_left(every, number)
            }
    for columns in versions:
        order = [now[name] for name, _ in columns if name in now]
        highest = list(itertools.accumulate(order, max))
        lowest = list(itertools.accumulate(reversed(order), min))[::-1]
        # Not in the order of the others: another column had this name for a while.
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
    fixed: Mapping[str, int],
    highest_number: int,
    comes_and_goes: bool,
    with_dropped: bool,
) -> list[Gap]:
    """The gaps between the fixed columns.

    :param comes_and_goes: see ``Gap``.
    :param with_dropped: whether columns are considered that were not published before the batch and are
        dropped now.
    """
    numbers = sorted(fixed.values())
    parts = [_parts(columns, fixed) for columns in versions]
    highest_before = max(highest_number, *before) if before else 0
    every = sorted(catalog.numbers | set(before or ()))
    found = []
    for index, (low, high) in enumerate(zip([0, *numbers], [*numbers, math.inf], strict=True)):
        if not any(each[index] for each in parts):
            continue
        candidates = tuple(
            number
            for number in every[bisect.bisect_right(every, low) : bisect.bisect_left(every, high)]
            # A column that was dropped before the last batch is in no version.
            if with_dropped
            or before is None
            or number > highest_before
            or number in before
            or number in catalog.live
        )
        found.append(
            Gap(
                low,
                high,
                None if before is None else {n: before[n] for n in candidates if n in before},
                tuple(each[index] for each in parts),
                {n: catalog.published[n] for n in candidates if n in catalog.published},
                candidates,
                highest_before,
                catalog.live,
                comes_and_goes,
            )
        )
    return found


def _parts(columns: Sequence[Named], fixed: Mapping[str, int]) -> list[tuple[Named, ...]]:
    """A version's columns, split at its fixed columns."""
    found: list[list[Named]] = [[]]
    for column in columns:
        if column[0] in fixed:
            found.append([])
        else:
            found[-1].append(column)
    return [tuple(each) for each in found]
