"""Ranges that hold all keys of a batch. Files and row groups of the target outside of them are not read.

A batch usually has many recent rows and a few old ones. One range from the least to the greatest key would
then be the whole table. So the keys are counted in cells of equal width, and the widest gaps between filled
cells are left out. Iceberg does the skipping of files.

Also here: whole numbers as bits of 64-bit *words*, which find a key faster than a hash table where keys lie
close together.

Source: https://iceberg.apache.org/docs/latest/performance/ (data filtering)
"""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.sql import Sql, literal
from airflow_provider_pgoutput.apply.schema.spark_types import RANGED
from airflow_provider_pgoutput.batch import changes as staged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from airflow_provider_pgoutput.apply.rows.segments import Segment


_WORD, _BITS = "word", "bits"


def words(keys: DataFrame, name: str) -> DataFrame:
    """The keys in column ``name``, which has no NULL, as the columns ``word`` and ``bits``."""
    key = F.col(name).cast("bigint")
    bit = F.call_function("shiftleft", F.lit(1).cast("bigint"), key.bitwiseAND(63).cast("int"))
    word = F.shiftright(key, 6).alias(_WORD)
    return keys.select(word, bit.alias("bit")).groupBy(_WORD).agg(F.bit_or("bit").alias(_BITS))


def condition(column: Sql, words_alias: Sql) -> Sql:
    """SQL: whether a row's ``column`` has its bit set in the word."""
    key = Sql(f"CAST({column} AS BIGINT)")
    bit = Sql(f"shiftright({words_alias}.{_BITS}, CAST({key} & 63 AS INT)) & 1")
    return Sql(f"shiftright({key}, 6) = {words_alias}.{_WORD} AND ({bit}) = 1")


#: How many cells the range from the least to the greatest key is divided into.
_CELLS = 1024

#: With more ranges, comparing each row costs more than the skipped files save.
_MOST_RANGES = 16

#: A gap is left out only if it is more than this part of the whole range. Hardly any file lies in a smaller
#: one.
_LEAST_GAP = Decimal("0.01")


#: The least keys for which ranges are made. Iceberg's ``truncate`` has a width of up to 31 bits, and
#: overflows below the least number of its type. It puts such a row into the last partition, where a range
#: does not find it.
_LEAST = {"int": 0, "long": -(2**63) + 2**31}


#: PostgreSQL's OID of uuid. UUIDs in text have ranges, too, because the text sorts like the number.
_UUID_OID = 2950


#: Stands for the lake type in ``_kind``.
_UUID = "uuid as string"


#: Texts of the least and the greatest value, by position of a key column that may have ranges.
Extremes = dict[int, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Both ends as SQL literals. The range includes them."""

    least: Sql
    greatest: Sql


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Ranges of a key column. Each value lies in one of them."""

    position: int
    ranges: tuple[KeyRange, ...]

    def condition(self, column: Sql) -> Sql:
        """SQL: whether ``column`` is in one of the ranges."""
        found = (f"{column} BETWEEN {each.least} AND {each.greatest}" for each in self.ranges)
        return Sql(f"({' OR '.join(found)})")


def extremes(segment: Segment) -> list[Column]:
    """The aggregates of the segment's key columns that ``extremes_of`` reads."""
    return [each for i in _ranged(segment) for each in _ends(staged.new(i), i)]


def extremes_of(row: Mapping[str, str], segment: Segment) -> Extremes:
    """The extremes, from the row of aggregates. There is at least one key.

    A column with a key below ``_LEAST`` is left out, so it gets no range.
    """
    found = {i: (row[f"least{i}"], row[f"greatest{i}"]) for i in _ranged(segment)}
    lowest = {i: _LEAST.get(_kind(segment, i)) for i in found}
    return {
        i: ends
        for i, ends in found.items()
        if (bound := lowest[i]) is None or Decimal(ends[0]) >= bound
    }


def whole(segment: Segment, found: Extremes) -> tuple[KeyRanges, ...]:
    """One range for each key column that may have ranges."""
    return tuple(_key_ranges(segment, i, [each]) for i, each in found.items())


def narrow(keys: DataFrame, segment: Segment, found: Extremes) -> tuple[KeyRanges, ...]:
    """The ranges without the widest gaps. This reads the keys once for each of their columns.

    :param keys: with the segment's key columns; persisted by the caller.
    :param found: the extremes of these keys.
    """
    ranges = []
    for i, (least, greatest) in found.items():
        kind = _kind(segment, i)
        start, end = _number(kind, least), _number(kind, greatest)
        if start == end:
            ranges.append(_key_ranges(segment, i, [(least, greatest)]))
            continue
        # A cell's borders need not be exact: the extremes of its keys are what counts.
        width = F.lit(float(end - start) / _CELLS)
        cell = F.floor((_as_number(kind, staged.new(i)) - F.lit(float(start))) / width)
        cells = keys.groupBy(cell.alias("cell")).agg(*_ends(staged.new(i), i)).collect()
        held = sorted(
            ((row[f"least{i}"], row[f"greatest{i}"]) for row in cells),
            key=lambda each: _number(kind, each[0]),
        )
        ranges.append(_key_ranges(segment, i, _merged(kind, held, (end - start) * _LEAST_GAP)))
    return tuple(ranges)


def within(target: DataFrame, ranges: Sequence[KeyRanges]) -> DataFrame:
    """The rows of a frame with the columns ``n<i>`` whose keys are in the ranges."""
    for each in ranges:
        target = target.where(each.condition(Sql(staged.new(each.position))))
    return target


def _ends(column: str, i: int) -> list[Column]:
    return [
        F.min(column).cast("string").alias(f"least{i}"),
        F.max(column).cast("string").alias(f"greatest{i}"),
    ]


def _ranged(segment: Segment) -> list[int]:
    return [i for i in segment.key if _kind(segment, i).startswith((*RANGED, _UUID))]


def _kind(segment: Segment, i: int) -> str:
    """The lake type of a column, or ``_UUID`` if all of its values in the batch are UUIDs in text."""
    column = segment.columns[i]
    every = (each for version in segment.versions for each in version.columns)
    types = {each.type_oid for each in every if each.name == column.name}
    return _UUID if column.lake_type == "string" and types == {_UUID_OID} else column.lake_type


def _merged(
    kind: str, held: Sequence[tuple[str, str]], least_gap: Decimal
) -> list[tuple[str, str]]:
    """Join the filled cells into at most ``_MOST_RANGES`` ranges, which leave out the widest gaps.

    :param held: the least and the greatest key of each filled cell, in order.
    :param least_gap: a narrower gap is never left out.
    """
    gaps = [
        (_number(kind, after[0]) - _number(kind, before[1]), position)
        for position, (before, after) in enumerate(itertools.pairwise(held), start=1)
    ]
    widest = sorted((each for each in gaps if each[0] > least_gap), reverse=True)
    cuts = sorted(position for _, position in widest[: _MOST_RANGES - 1])
    pairs = itertools.pairwise([0, *cuts, len(held)])
    return [(held[begin][0], held[end - 1][1]) for begin, end in pairs]


def _number(kind: str, text: str) -> Decimal:
    """Spark's text of a value as a number that sorts in the same order."""
    if kind == "date":
        return Decimal(dt.date.fromisoformat(text).toordinal())
    if kind == _UUID:
        return Decimal(uuid.UUID(text).int)
    return Decimal(text)


def _as_number(kind: str, column: str) -> Column:
    """Spark's expression of ``_number`` for a column: a double, so large numbers are not exact."""
    if kind == "date":
        return F.unix_date(column).cast("double") + F.lit(float(dt.date(1970, 1, 1).toordinal()))
    if kind == _UUID:
        first_half = F.substring(F.translate(column, "-", ""), 1, 16)
        return F.conv(first_half, 16, 10).cast("double") * F.lit(2.0**64)
    return F.col(column).cast("double")


def _key_ranges(segment: Segment, i: int, ranges: Sequence[tuple[str, str]]) -> KeyRanges:
    kind = _kind(segment, i)
    found = (KeyRange(_literal(kind, least), _literal(kind, end)) for least, end in ranges)
    return KeyRanges(i, tuple(found))


def _literal(kind: str, text: str) -> Sql:
    """The literal of a value, from Spark's text of it."""
    if kind == "date":
        return Sql(f"DATE {literal(text)}")
    if kind == _UUID:
        return literal(text)
    suffix = {"long": "L"}.get(kind, "BD" if "decimal" in kind else "")
    return Sql(f"{Decimal(text):f}{suffix}")
