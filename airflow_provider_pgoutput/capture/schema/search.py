"""Finds the number (``attnum``) of each column in a gap; see ``attribution.py``.

Columns that kept name and number all the time divide the others into *gaps*. A gap is before the first of
them, between two of them, or after the last. A *reading* is one way to number a version's columns.
Readings are followed from the last batch, through every version, to the catalog. Their cost is the number of
schema changes. Readings that cost much more than the cheapest are given up.

Example: the last batch knew ``id`` (1) and ``x`` (2). The stream announces ``id, y``. The catalog has ``id``
(1) and ``y`` (3), and 2 is dropped. ``id`` kept its name and number, so the gap behind it has ``x`` before,
``y`` in the stream and ``y`` now. There are two readings:

* ``y`` is 3: ``x`` was dropped and ``y`` was added. That is two changes.
* ``y`` is 2: ``x`` was renamed to ``y``. Later it was dropped, and another ``y`` was added. That is three
  changes.

The first one is cheaper and is taken. The second one needs only one change more, so ``y`` is reported as
uncertain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

#: Name and type of a column.
Named = tuple[str, str]
#: Columns by number.
State = Mapping[int, Named]

_IMPOSSIBLE = math.inf
#: How many of the cheapest readings of a version are followed, and how much more than the cheapest they may
#: cost.
_MOST_READINGS = 60
_MOST_EXTRA_COST = 4
#: A reading that costs at most so much more than the cheapest makes its columns uncertain. It is 2, because
#: two columns that swap names are two changes.
_CLOSE = 2
#: The same if nothing is known from before. Uncertain columns then go by their names.
_CLOSE_WITHOUT_PAST = 1
#: With more choices of columns than this, the search is not complete: all columns of the gap are uncertain.
_MOST_CHOICES = 1000
#: How many steps from one version to the next are looked at. If there are more, the search is not complete.
_MOST_STEPS = 20_000
#: How many of several dropped numbers in a row are considered for a new column.
_MOST_GONE = 4


@dataclass(frozen=True, slots=True)
class Gap:
    """The part between two columns that kept name and number."""

    #: The numbers of these two columns; 0 or infinite: there is none on this side.
    low: float
    high: float
    #: Columns of the gap at the end of the last batch; None: not known.
    before: State | None
    #: Columns of the gap in each version.
    versions: tuple[tuple[Named, ...], ...]
    #: Columns of the gap that are published now.
    now: State
    #: The numbers that a column of the gap may have, ascending.
    candidates: tuple[int, ...]
    #: For the whole table: the highest number that was used before the gap's first version. A column with a
    #: higher number is added later.
    highest_number: int
    #: Columns that exist now, published or not, of the whole table.
    live: State
    #: Whether an existing column may be missing in some versions: a column list left it out for a while.
    comes_and_goes: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The cheapest numbers of a gap's columns."""

    #: By version, in its order; None: not known.
    numbers: list[tuple[int | None, ...]]
    #: Names of columns for which another reading costs as little, or hardly more.
    unsure: set[str]
    #: Of these, the names for which two equally cheap readings name different columns, at least one of them a
    #: current column.
    tied: set[str] = field(default_factory=set)
    #: The highest number that a column had by the end. If readings that hardly cost more have other highest
    #: numbers, it is the least of these.
    highest_number: int = 0
    #: False: no reading fits, although all were followed.
    is_possible: bool = True


def search(gap: Gap) -> Found:
    """Follow every reading of a gap from the last batch to now."""
    unknown: list[tuple[int | None, ...]] = [(None,) * len(each) for each in gap.versions]
    names = {name for each in gap.versions for name, _ in each}
    # Without numbers columns go by their names. A column with another name now would lose its older values.
    renamed = {
        name
        for number, (name, _) in gap.now.items()
        if (gap.before or {}).get(number, (name,))[0] != name
    }
    steps, is_whole = _forward(gap)
    ends = {each: _cost_to_now(gap, each) for each in (steps[-1] if steps else ())}
    best = min((steps[-1][each].cost + cost for each, cost in ends.items()), default=_IMPOSSIBLE)
    if best == _IMPOSSIBLE:
        return Found(unknown, names, names & renamed, is_possible=not is_whole)
    totals = _totals(steps, ends)
    optimal = [{e for e, total in each.items() if total == best} for each in totals]
    path = [_likeliest(gap, optimal[0], gap.before or ())]
    for step, readings in zip(steps[1:], optimal[1:], strict=True):
        last, spent = path[-1], steps[len(path) - 1][path[-1]].cost
        reached = [
            e for e in readings if step[e].cost == spent + step[e].steps.get(last, _IMPOSSIBLE)
        ]
        path.append(_likeliest(gap, reached, last.numbers))
    found = [list[int | None](each.numbers) for each in path]
    # Among several short-lived columns it makes no difference which one it was.
    matters = set(gap.before or ()) | set(gap.now)
    unsure, tied = set() if is_whole else names, set[str]()
    extra_cost = _CLOSE_WITHOUT_PAST if gap.before is None else _CLOSE
    for index, each in enumerate(totals):
        close = [reading.numbers for reading, total in each.items() if total <= best + extra_cost]
        equal = [reading.numbers for reading, total in each.items() if total == best]
        for i, (name, _) in enumerate(gap.versions[index]):
            numbers = {reading[i] for reading in close}
            if len(numbers) == 1:
                continue
            if numbers & matters:
                unsure.add(name)
            numbers = {reading[i] for reading in equal}
            if len(numbers) > 1 and not numbers.isdisjoint(gap.now):
                tied.add(name)
            if gap.before is None and gap.now.get(found[index][i] or 0, ("",))[0] != name:
                # If nothing is known from before, the column goes by its name, unless its number says the
                # same.
                found[index][i] = None
    ends_close = [
        each.highest_number for each, total in totals[-1].items() if total <= best + extra_cost
    ]
    return Found([tuple(each) for each in found], unsure, tied, min(ends_close))


def _likeliest(gap: Gap, readings: Iterable[_Reading], numbers_before: Iterable[int]) -> _Reading:
    """The reading to take, of several that cost the same.

    Newer current columns are preferred, and reported as uncertain. Among columns that are gone, one that was
    there before is preferred to another of the same name. Then the lowest numbers are preferred, because they
    leave most for what follows.
    """
    kept = frozenset(numbers_before)

    def rank(each: _Reading) -> tuple[int, tuple[int, ...], int, int, tuple[int, ...]]:
        of_now = tuple(number for number in each.numbers if number in gap.now)
        least = tuple(-number for number in each.numbers)
        return (
            len(of_now),
            of_now,
            len(kept.intersection(each.numbers)),
            -each.highest_number,
            least,
        )

    return max(readings, key=rank)


def _totals(
    steps: Sequence[Mapping[_Reading, _Reached]], ends: Mapping[_Reading, float]
) -> list[dict[_Reading, float]]:
    """By version and reading: the cost of the cheapest way through that reading."""
    to_now = dict(ends)
    cheapest = [{e: steps[-1][e].cost + cost for e, cost in to_now.items()}]
    for index in reversed(range(len(steps) - 1)):
        following_to_now, to_now = to_now, dict.fromkeys(steps[index], _IMPOSSIBLE)
        for following, cost in following_to_now.items():
            for last, step in steps[index + 1][following].steps.items():
                if last in to_now:
                    to_now[last] = min(to_now[last], cost + step)
        cheapest.insert(0, {e: steps[index][e].cost + cost for e, cost in to_now.items()})
    return cheapest


@dataclass(frozen=True, slots=True, order=True)
class _Reading:
    """One way to read a version."""

    numbers: tuple[int, ...]
    #: The highest number that a column had by then.
    highest_number: int


@dataclass(slots=True)
class _Reached:
    """The cost of the cheapest way to a reading, and the steps to it from readings of the version before."""

    cost: float
    steps: dict[_Reading, float]

    def add_way(self, reading: _Reading, total: float, step: float) -> None:
        """Take a way that comes from ``reading``.

        :param total: the cost of the whole way.
        :param step: the cost of its last step.
        """
        self.cost = min(self.cost, total)
        self.steps[reading] = min(step, self.steps.get(reading, step))


def _forward(gap: Gap) -> tuple[list[dict[_Reading, _Reached]], bool]:
    """By version: the readings that are followed; and whether the search is complete.

    It is not complete if there were so many choices or steps that some were left out.
    """
    steps: list[dict[_Reading, _Reached]] = []
    is_whole = True
    if gap.before is None:
        first = len(gap.versions[0])
        if math.comb(len(gap.candidates), first) > _MOST_CHOICES:
            return [], False
        found = itertools.combinations(gap.candidates, first)
        steps.append({_Reading(each, max(each, default=0)): _Reached(0, {}) for each in found})
        named = gap.versions[0]
    else:
        steps.append({_Reading(tuple(gap.before), gap.highest_number): _Reached(0, {})})
        named = tuple(gap.before.values())
    for version in gap.versions[len(steps) if gap.before is None else 0 :]:
        reached: dict[_Reading, _Reached] = {}
        most_steps = max(_MOST_STEPS // len(steps[-1]), 1)
        for reading, so_far in steps[-1].items():
            state = dict(zip(reading.numbers, named, strict=True))
            followed, is_all = _following(gap, reading, state, version, most_steps)
            is_whole = is_whole and is_all
            for following, cost in followed:
                total = so_far.cost + cost
                known = reached.setdefault(following, _Reached(total, {}))
                known.add_way(reading, total, cost)
        if not reached:
            return [], is_whole
        in_all = {each: reached[each].cost + _least_ahead(gap, each) for each in reached}
        worth = sorted(reached, key=lambda each: in_all[each])[:_MOST_READINGS]
        most = in_all[worth[0]] + _MOST_EXTRA_COST
        steps.append({each: reached[each] for each in worth if in_all[each] <= most})
        named = version
    return (steps if gap.before is None else steps[1:]), is_whole


def _least_ahead(gap: Gap, reading: _Reading) -> int:
    """How many changes at least lead from a reading to the catalog.

    A reading with a higher ``highest_number`` has fewer columns left to add. A column that exists now costs
    one change: it is added. One that is gone costs two: it is added and dropped.
    """
    unused = [number for number in gap.candidates if number > reading.highest_number]
    return sum(1 if number in gap.live else 2 for number in unused) + len(
        [number for number in reading.numbers if number not in gap.now]
    )


def _following(
    gap: Gap, reading: _Reading, state: State, version: Sequence[Named], most: int
) -> tuple[list[tuple[_Reading, int]], bool]:
    """The readings of the next version with the cost of each step, and whether these are all readings.

    Each reading keeps some of the columns and adds some. Example of the file head: from ``x`` (2) to the
    version ``y``. One reading keeps column 2: that is a rename, so it costs 1. The other one keeps none and
    adds column 3: that is a drop and an add, so it costs 2.

    :param most: how many readings are enough.
    """
    # A column that is published now stays in every later version, unless a column list may have left it out.
    # One that is gone now may go.
    certain = () if gap.comes_and_goes else gap.now
    stays = [number for number in reading.numbers if number in certain]
    may_go = {number: state[number][0] for number in reading.numbers if number not in certain}
    names = {name for name, _ in version}
    found: list[tuple[_Reading, int]] = []
    is_all = True
    # Those that need the fewest changes come first.
    for kept_count in reversed(range(len(may_go) + 1)):
        if len(found) >= most:
            return found, False
        new_count = len(version) - len(stays) - kept_count
        fresh, all_fresh = _fresh(gap, reading, state, new_count)
        if not fresh:
            is_all = is_all and all_fresh
            continue
        old, all_old = _kept(may_go, names, kept_count)
        is_all = is_all and all_fresh and all_old
        is_all = is_all and len(old) * len(fresh) <= most - len(found)
        for kept, new in itertools.islice(itertools.product(old, fresh), most - len(found)):
            highest_number = max(reading.highest_number, *new) if new else reading.highest_number
            passed = {
                n for n in gap.candidates if reading.highest_number < n <= highest_number
            } - set(new)
            numbers = tuple(sorted((*stays, *kept, *new)))
            # Example: the highest number so far is 4, the new column is 6, and 5 is gone by now. Then 5 was
            # added and dropped between the two versions: two changes.
            cost = len(may_go) - kept_count + new_count + 2 * len(passed - set(gap.live))
            cost += _differences(state, dict(zip(numbers, version, strict=True)))
            gone = {number: state[number] for number in may_go if number not in kept}
            cost += _differences(gone, gap.live)
            found.append((_Reading(numbers, highest_number), cost))
    return found, is_all


def _kept(
    may_go: Mapping[int, str], names: set[str], count: int
) -> tuple[list[tuple[int, ...]], bool]:
    """Which of the columns that are gone by now the next version still has; whether these are all choices.

    Example: of the columns ``x`` (2) and ``y`` (3), both gone by now, ``count=1`` is kept: (2,) or (3,).

    :param names: names of the columns in the next version.
    """
    if math.comb(len(may_go), count) <= _MOST_CHOICES:
        return list(itertools.combinations(may_go, count)), True
    # There are too many. Take only those that keep every column whose name is still there.
    anchored = tuple(number for number, name in may_go.items() if name in names)
    others = [number for number in may_go if number not in anchored]
    missing = count - len(anchored)
    if missing < 0 or math.comb(len(others), missing) > _MOST_CHOICES:
        return [], False
    return [anchored + more for more in itertools.combinations(others, missing)], False


def _fresh(
    gap: Gap, reading: _Reading, state: State, count: int
) -> tuple[list[tuple[int, ...]], bool]:
    """Which columns may be new in the next version, and whether these are all choices.

    Example: numbers up to 3 are used, 4 is gone by now, 5 and 6 exist now. The next version has two new
    columns. These are 4 and 5 if the newest is 5. They are 5 and 6 if the newest is 6: when 6 was added, 5
    was there, and it still is. Not 4 and 6, because 5 would be missing.

    :param count: how many columns are new.
    """
    # A column list may begin to name an older column.
    optional = [
        n
        for n in (gap.candidates if gap.comes_and_goes else gap.now)
        if n <= reading.highest_number
        and n not in state
        and (gap.comes_and_goes or n not in (gap.before or ()))
    ]
    is_all = count < 0 or math.comb(len(optional), count) <= _MOST_CHOICES
    found = list(itertools.combinations(optional, count)) if is_all and count >= 0 else []
    certain: list[int] = []
    for newest in _new_numbers(gap, reading.highest_number):
        # A column that exists now was there as soon as a higher number was in use. It is in ``certain``.
        missing = count - len(certain) - 1
        if missing < 0:
            break
        if math.comb(len(optional), missing) > _MOST_CHOICES:
            is_all = False
        else:
            found += [
                (*certain, *more, newest) for more in itertools.combinations(optional, missing)
            ]
        (certain if newest in gap.now else optional).append(newest)
    return found, is_all


def _new_numbers(gap: Gap, highest_number: int) -> list[int]:
    """Numbers that a new column may have: of all current columns, and after each of a few that are gone."""
    found, gone = [], 0
    for number in gap.candidates:
        if number <= highest_number:
            continue
        gone = gone + 1 if number not in gap.now else 0
        if gone <= _MOST_GONE:
            found.append(number)
    return found


def _cost_to_now(gap: Gap, reading: _Reading) -> float:
    """How many changes lead from a reading of the last version to the catalog."""
    state = dict(zip(reading.numbers, gap.versions[-1], strict=True))
    added = [number for number in gap.now if number not in state]
    if not gap.comes_and_goes and any(
        n <= reading.highest_number and n in (gap.before or ()) for n in added
    ):
        return _IMPOSSIBLE
    unseen = [n for n in gap.candidates if n > reading.highest_number and n not in gap.live]
    dropped = len([number for number in state if number not in gap.now])
    return dropped + len(added) + 2 * len(unseen) + _differences(state, gap.live)


def _differences(one: State, two: State) -> int:
    """The cost of changes of name and type, for columns that are in both."""
    return sum(
        (one[number][0] != two[number][0]) + (one[number][1] != two[number][1])
        for number in one
        if number in two
    )
