"""A share of a table: each run proves the next part of the keys, and a cycle of runs proves all of them.

Where the cycle of a table stands is in ``pgoutput_proofs``. Nobody has to keep it: if a row is lost, a part
is proven again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from psycopg import sql

from airflow_provider_pgoutput.proof.digest import ROWS_AT_ONCE, RowHash

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray
    from pyiceberg.expressions import BooleanExpression

#: All runs of a cycle hash keys with the same salt, so that a key is in one part.
SALT: Final = 1
_POSITIVE: Final = 0x7FFFFFFF
#: The greatest ``int8``.
_GREATEST: Final = 2**63 - 1


def parts_of(share: float) -> int:
    """How many parts a cycle has: 100 for 0.01."""
    return math.ceil(round(1 / share, 6))


@dataclass(frozen=True, slots=True)
class Share:
    """One part of a table."""

    #: From 1 to ``of``.
    number: int
    of: int
    #: The greatest key of the part, if it is a whole number; None: the part has no such bound.
    through: int | None = None
    #: ``through`` of the part before this one.
    after: int | None = None

    def __str__(self) -> str:
        return f"part {self.number} of {self.of}"

    @property
    def before_is_unknown(self) -> bool:
        """Whether an early version recorded the part, without the end of the part before."""
        return self.number > 1 and self.through is not None and self.after is None

    @property
    def before(self) -> Share | None:
        """The part before this one; None: this is the first one."""
        return None if self.number == 1 else Share(self.number - 1, self.of, self.after)


@dataclass(frozen=True, slots=True)
class Turn:
    """Which part of a table is next."""

    number: int
    of: int
    #: The part has the keys behind this one; None: the part begins with the least key.
    after: int | None = None

    @classmethod
    def following(cls, share: float, last: Share | None) -> Turn:
        """The part behind the last one of a cycle."""
        of = parts_of(share)
        if last is None or last.of != of or last.number >= of:
            return cls(1, of)
        return cls(last.number + 1, of, last.through)

    def bounds(self, least: int, greatest: int) -> tuple[int | None, int | None]:
        """The least and the greatest key of the part; None: it has no such bound.

        New and greater keys may arrive between two runs. So each run divides the keys that are left by the
        number of runs that are left. No key falls between two parts. The greatest ``int8`` is in the last
        part, because no part can begin behind it.

        :param least: of all keys that the source has now.
        """
        first = None if self.after is None else min(self.after + 1, _GREATEST)
        if self.number == self.of:
            return first, None
        begin = least if first is None else first
        through = begin + max(0, greatest - begin) // (self.of - self.number + 1)
        return first, min(through, _GREATEST - 1)

    def done(self, through: int | None = None) -> Share:
        """The share to record once this part was compared."""
        return Share(self.number, self.of, through, self.after)


@dataclass(frozen=True)
class HashPart:
    """A part of a table whose key has no column of whole numbers: the hash of a key decides its part.

    Both sides read all rows to find those of the part.
    """

    key_hash: RowHash
    #: The fields of the lake, in the order of the hash's columns.
    in_lake: Sequence[str]
    turn: Turn
    is_small = False

    def condition(self, alias: str) -> sql.Composable:
        """See ``Part``."""
        return sql.SQL("(({} & {}) % {} = {})").format(
            self.key_hash.expression(alias), *map(sql.Literal, (_POSITIVE, *self._turn))
        )

    def expression(self) -> BooleanExpression | None:
        """See ``Part``."""
        return None

    def mask(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """See ``Part``."""
        chosen = rows.select(list(self.in_lake))
        found = np.empty(rows.num_rows, np.bool_)
        of, number = self._turn
        for begin in range(0, rows.num_rows, ROWS_AT_ONCE):
            hashes = self.key_hash.of_rows(chosen.slice(begin, ROWS_AT_ONCE).columns)
            is_of_part = (hashes & np.uint64(_POSITIVE)) % np.uint64(of) == np.uint64(number)
            found[begin : begin + ROWS_AT_ONCE] = is_of_part
        return found

    @property
    def _turn(self) -> tuple[int, int]:
        """How many parts there are, and the number of this one from 0."""
        return self.turn.of, self.turn.number - 1
