"""Ranges of a whole-number column of the key. Their digests say which rows have to be read again.

Both sides find the rows of a range without reading all rows. The source has an index. The lake has the least
and the greatest value of the column in each file. ``ranges.py`` has the ranges for keys of other types.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
from psycopg import sql

from airflow_provider_pgoutput.batch.lake_types import WHOLE_NUMBERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray
    from pyiceberg.expressions import BooleanExpression

    from airflow_provider_pgoutput.batch.table_version import Column

#: How many ranges there are at most. The server groups by so few without much work. With so many, a range has
#: few rows to read again.
_MOST: Final = 4_096
#: With ``is_fine``: about how many numbers a range has, and how many ranges there are at most.
_FINE_NUMBERS: Final = 32
_MOST_FINE: Final = 1 << 20
#: Neighbouring ranges are read as one piece. If there are more pieces than this, all that lies between the
#: first and the last piece is read.
_MOST_PIECES: Final = 100
#: Type OIDs of ``int8``, ``int2`` and ``int4``.
_WHOLE_NUMBERS: Final = frozenset({20, 21, 23})


class Part(Protocol):
    """Some of the rows of a table, chosen by their keys. It says what each side has to read for them."""

    #: Whether the lake's column of the key is read before the others, because few rows are of the part.
    is_small: bool

    @property
    def in_lake(self) -> Sequence[str]:
        """The fields of the lake that ``mask`` needs."""

    def condition(self, alias: str) -> sql.Composable:
        """The SQL of whether a row is of the part."""

    def expression(self) -> BooleanExpression | None:
        """A filter that leaves out files of the lake without a row of the part; None: all files are read."""

    def mask(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which rows of the lake are of the part."""


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Ranges of one column of the key.

    Without outer bounds, the first range also has all smaller keys and NULL, and the last range has all
    greater keys.
    """

    #: The column of the source. It is an ``int2``, ``int4`` or ``int8``.
    column: str
    #: The field of the lake.
    field: str
    #: A range has ``2 ** shift`` numbers.
    shift: int
    #: The number of the first range: the least key without its last ``shift`` bits.
    base: int
    count: int
    #: The least and the greatest key of all ranges; None: there is no such bound.
    first: int | None = None
    last: int | None = None

    @classmethod
    def between(
        cls,
        names: tuple[str, str],
        least: int,
        greatest: int,
        bounds: tuple[int | None, int | None] = (None, None),
        *,
        is_fine: bool = False,
    ) -> KeyRanges:
        """Ranges for the keys between two numbers.

        :param names: of the column, and of the field of the lake.
        :param bounds: see ``first`` and ``last``.
        :param is_fine: make more and narrower ranges, because many scattered rows may differ. Then the ranges
            that differ have few rows.
        """
        most, shift = _MOST, 0
        if is_fine:
            most = min(max(_MOST, (greatest - least) // _FINE_NUMBERS + 2), _MOST_FINE)
        while (greatest >> shift) - (least >> shift) >= most:
            shift += 1
        base = least >> shift
        return cls(*names, shift, base, (greatest >> shift) - base + 1, *bounds)

    @property
    def is_unbounded(self) -> bool:
        """Whether each row is in a range."""
        return self.first is None and self.last is None

    @property
    def whole(self) -> KeyPart:
        """All ranges."""
        return KeyPart(self, tuple(range(self.count)))

    def number(self, alias: str) -> sql.Composable:
        """The SQL of the number of a row's range."""
        return sql.SQL(
            "LEAST(GREATEST(({}::pg_catalog.int8 OPERATOR(pg_catalog.>>) {})"
            " OPERATOR(pg_catalog.-) {}::pg_catalog.int8, 0), {})"
        ).format(
            sql.Identifier(alias, self.column),
            sql.Literal(self.shift),
            sql.Literal(str(self.base)),
            sql.Literal(self.count - 1),
        )

    def numbers(self, keys: pa.Array) -> NDArray[np.int64]:
        """The numbers of the ranges of keys of the lake."""
        values = keys.cast(pa.int64())
        numbers: NDArray[np.int64] = values.fill_null(0).to_numpy() >> self.shift
        numbers = np.clip(numbers, self.base, self.base + self.count - 1)
        numbers -= self.base
        if values.null_count:
            numbers[values.is_null().to_numpy(zero_copy_only=False)] = 0
        return numbers


@dataclass(frozen=True)
class KeyPart:
    """Some of the ranges.

    :param numbers: ascending.
    """

    ranges: KeyRanges
    numbers: tuple[int, ...]
    is_small = True

    @property
    def in_lake(self) -> Sequence[str]:
        """See ``Part``."""
        return (self.ranges.field,)

    def condition(self, alias: str) -> sql.Composable:
        """See ``Part``."""
        pieces = self._pieces
        is_exact = len(pieces) <= _MOST_PIECES
        if not is_exact:
            pieces = [(pieces[0][0], pieces[-1][1])]
        column = sql.Identifier(alias, self.ranges.column)
        found = []
        for least, greatest in pieces:
            bounds = [
                sql.SQL("{} {} {}::pg_catalog.int8").format(
                    column, sql.SQL(operator), sql.Literal(str(bound))
                )
                for operator, bound in ((">=", least), ("<=", greatest))
                if bound is not None
            ]
            inside = sql.SQL(" AND ").join(bounds) if bounds else sql.SQL("true")
            if least is None:
                inside = sql.SQL("({}) OR {} IS NULL").format(inside, column)
            found.append(sql.SQL("({})").format(inside))
        whole = sql.SQL("({})").format(sql.SQL(" OR ").join(found))
        if is_exact:
            return whole
        return sql.SQL("({} AND {} = ANY ({}::pg_catalog.int8[]))").format(
            whole, self.ranges.number(alias), sql.Literal(list(self.numbers))
        )

    def expression(self) -> BooleanExpression:
        """See ``Part``."""
        from pyiceberg import expressions  # noqa: PLC0415 - it takes a second

        pieces, name = self._pieces, self.ranges.field
        if len(pieces) > _MOST_PIECES:
            pieces = [(pieces[0][0], pieces[-1][1])]
        # The classes take a name and a value. Their types say otherwise.
        make: Any = expressions
        found: BooleanExpression = make.AlwaysFalse()
        for least, greatest in pieces:
            inside: BooleanExpression = make.AlwaysTrue()
            if least is not None:
                inside = make.And(inside, make.GreaterThanOrEqual(name, least))
            if greatest is not None:
                inside = make.And(inside, make.LessThanOrEqual(name, greatest))
            if least is None:
                inside = make.Or(inside, make.IsNull(name))
            found = make.Or(found, inside)
        return found

    def mask(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """See ``Part``."""
        ranges = self.ranges
        keys = rows.column(ranges.field)
        wanted = np.zeros(ranges.count, np.bool_)
        wanted[list(self.numbers)] = True
        found: NDArray[np.bool_] = wanted[ranges.numbers(keys)]
        values = keys.cast(pa.int64()).fill_null(0).to_numpy()
        if ranges.first is not None:
            found &= values >= ranges.first
            if keys.null_count:
                found &= keys.is_valid().to_numpy(zero_copy_only=False)
        if ranges.last is not None:
            inside = values <= ranges.last
            if keys.null_count:
                inside |= keys.is_null().to_numpy(zero_copy_only=False)
            found &= inside
        return found

    @cached_property
    def _pieces(self) -> list[tuple[int | None, int | None]]:
        """The least and the greatest key of each run of neighbouring ranges; None: there is no bound."""
        ranges = self.ranges
        found: list[tuple[int | None, int | None]] = []
        numbers = np.array(self.numbers, np.int64)
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1):
            first, last = int(run[0]), int(run[-1])
            least = ranges.first if first == 0 else (ranges.base + first) << ranges.shift
            end = (ranges.base + last + 1) << ranges.shift
            found.append((least, ranges.last if last == ranges.count - 1 else end - 1))
        return found


def column_with_ranges(key: Iterable[Column]) -> str | None:
    """The column of a key that has ranges; None: there is none.

    :param key: the columns, with their types in the lake.
    """
    return next(
        (
            each.name
            for each in key
            if each.type_oid in _WHOLE_NUMBERS and each.lake_type in WHOLE_NUMBERS
        ),
        None,
    )
