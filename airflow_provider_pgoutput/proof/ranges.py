"""Digests of parts of a table: rows whose keys' hashes have the same last bits are one range.

Ranges by hash need no order of the keys, so every type of key has them. Without a key, the hash of the whole
row stands for it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from airflow_provider_pgoutput.proof.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.proof.server_hashes import Hashes

    #: By the hash of a key and the hash of a whole row: how many rows have both. A table without a key may
    #: have many equal rows.
    HashCounts = Counter[tuple[int, int]]

#: About how many rows a range has, and how many ranges a table has at most.
_ROWS: Final = 1_000
_MOST: Final = 1 << 16
_LOWER: Final = (1 << 32) - 1


@dataclass(frozen=True)
class Ranges:
    """The digest of each range, by its number."""

    rows: NDArray[np.int64]
    totals: Hashes

    @classmethod
    def empty(cls, count: int) -> Ranges:
        """Ranges without rows.

        :param count: a power of two.
        """
        return cls(np.zeros(count, np.int64), np.zeros(count, np.uint64))

    @classmethod
    def of(cls, digest: Digest) -> Ranges:
        """One range."""
        return cls.of_lists([digest.rows], [digest.total])

    @classmethod
    def of_lists(cls, rows: Sequence[int], totals: Sequence[int]) -> Ranges:
        """Ranges by their numbers of rows and their sums."""
        return cls(np.array(rows, np.int64), np.array(totals, np.uint64))

    def __add__(self, other: Ranges) -> Ranges:
        return Ranges(self.rows + other.rows, self.totals + other.totals)

    def add(self, numbers: NDArray[np.int64], row_hashes: Hashes) -> None:
        """Add rows.

        :param numbers: for each row, the number of its range.
        """
        if not len(numbers):
            return
        # Rows of one file usually have keys near each other. So only a part of the arrays is touched.
        least, end = int(numbers.min()), int(numbers.max()) + 1
        numbers, count, touched = numbers - least, end - least, slice(least, end)
        self.rows[touched] += np.bincount(numbers, minlength=count)
        # bincount adds floats. Sums of 32-bit halves fit into a float without rounding.
        for half, shift in (
            (row_hashes & np.uint64(_LOWER), 0),
            (row_hashes >> np.uint64(32), 32),
        ):
            sums = np.bincount(numbers, half.astype(np.float64), count).astype(np.uint64)
            self.totals[touched] += sums << np.uint64(shift)

    @property
    def digest(self) -> Digest:
        """Of all ranges together."""
        return Digest(int(self.rows.sum()), int(self.totals.sum(dtype=np.uint64)))

    def different(self, other: Ranges) -> NDArray[np.int64]:
        """The numbers of the ranges that are not equal."""
        return np.flatnonzero((self.rows != other.rows) | (self.totals != other.totals))


def range_numbers(key_hashes: Hashes, count: int) -> NDArray[np.int64]:
    """The numbers of the ranges of keys; ``count`` is a power of two."""
    return (key_hashes & np.uint64(count - 1)).astype(np.int64)


def range_count(source: Digest, lake: Digest) -> int:
    """Into how many ranges a table is divided: a power of two."""
    wanted = max(source.rows, lake.rows) // _ROWS
    return min(1 << wanted.bit_length(), _MOST)


@dataclass(frozen=True, slots=True)
class DifferentKeys:
    """Hashes of the keys whose rows differ, and how many rows each of them stands for."""

    #: Rows of the source that the lake lacks. Without a key: how many equal rows it lacks.
    missing: Counter[int]
    #: Rows of the lake that the source lacks. Without a key: how many equal rows there are too many.
    surplus: Counter[int]
    #: Both have a row with this key, and the two rows differ.
    different: Counter[int]


def count_hashes(key_hashes: Hashes, row_hashes: Hashes) -> HashCounts:
    """How many rows have each pair of hashes."""
    if not len(key_hashes):
        return Counter()
    pairs, counts = np.unique(np.stack([key_hashes, row_hashes]), axis=1, return_counts=True)
    return Counter(dict(zip(zip(*pairs.tolist(), strict=True), counts.tolist(), strict=True)))


def compare_keys(theirs: HashCounts, ours: HashCounts) -> DifferentKeys:
    """Compare rows of some ranges as multisets.

    :param theirs: of the source.
    :param ours: of the lake.
    """
    missing, surplus, different = Counter[int](), Counter[int](), Counter[int]()
    for (key, _), rows in (theirs - ours).items():
        missing[key] += rows
    for (key, _), rows in (ours - theirs).items():
        paired = min(rows, missing[key])
        different[key] += paired
        missing[key] -= paired
        surplus[key] += rows - paired
    return DifferentKeys(+missing, +surplus, +different)
