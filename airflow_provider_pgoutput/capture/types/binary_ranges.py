"""Printers of the binary form of ranges and multiranges.

A range is a byte of flags, then its bounds with their lengths; a multirange its number of ranges, each
with its length.

Source: ``range_send`` and ``range_out`` in ``src/backend/utils/adt/rangetypes.c``, ``multirangetypes.c``
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    ByteRuns,
    MalformedText,
    at_rows_of,
    cut,
)
from airflow_provider_pgoutput.capture.types.binary_lists import counted_elements
from airflow_provider_pgoutput.capture.types.printing import (
    dense_runs,
    int4_at,
    joined,
    joined_lists,
    quoted_where,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.types.binary_scalars import Printer

_EMPTY, _LOWER_INCLUDED, _UPPER_INCLUDED, _NO_LOWER, _NO_UPPER = 1, 2, 4, 8, 16
_KNOWN = 31
#: Bounds that are printed in quotes: empty ones, and those with one of these characters.
_SPECIAL = r'^$|["\\()\[\],\s\x0b]'


def range_printer(bound_texts: Printer) -> Printer:
    """A printer of ranges.

    :param bound_texts: of the range's subtype.
    """

    def texts(raw: pa.Array) -> pa.Array:
        runs = dense_runs(raw, 1)
        flags = runs.data[runs.starts] if len(runs.starts) else np.empty(0, np.uint8)
        if (flags > _KNOWN).any():
            raise MalformedText
        lower, position = _bound(runs, runs.starts + 1, flags & (_EMPTY | _NO_LOWER) == 0)
        upper, position = _bound(runs, position, flags & (_EMPTY | _NO_UPPER) == 0)
        if (position != runs.ends).any():
            raise MalformedText
        shown = [
            pc.fill_null(quoted_where(bound_texts(each), _SPECIAL), b"") for each in (lower, upper)
        ]
        opening = _either(flags & _LOWER_INCLUDED != 0, b"[", b"(")
        closing = _either(flags & _UPPER_INCLUDED != 0, b"]", b")")
        whole = joined(opening, shown[0], b",", shown[1], closing)
        empty = pc.if_else(pa.array(flags & _EMPTY != 0), pa.scalar(b"empty"), whole)
        return at_rows_of(raw, empty)

    return texts


def _either(is_one: NDArray[np.bool_], one: bytes, other: bytes) -> pa.Array:
    return pc.if_else(pa.array(is_one), pa.scalar(one), pa.scalar(other))


def _bound(
    runs: ByteRuns, positions: NDArray[np.int64], has_one: NDArray[np.bool_]
) -> tuple[pa.Array, NDArray[np.int64]]:
    """A bound of all ranges, null where there is none, and the positions after it."""
    starts = positions + 4 * has_one
    lengths = np.zeros(len(positions), dtype=np.int64)
    lengths[has_one] = int4_at(runs, positions[has_one])
    ends = starts + lengths
    if (lengths < 0).any() or (ends > runs.ends).any():
        raise MalformedText
    return cut(runs.data, starts, ends, None if has_one.all() else ~has_one), ends


def multirange_printer(range_texts: Printer) -> Printer:
    """A printer of multiranges.

    :param range_texts: of its ranges.
    """

    def texts(raw: pa.Array) -> pa.Array:
        runs = dense_runs(raw, 4)
        counts = int4_at(runs, runs.starts)
        ranges = counted_elements(runs, runs.starts + 4, counts)
        if ranges.null_count:
            raise MalformedText
        return at_rows_of(raw, joined(b"{", joined_lists(range_texts(ranges), counts, b","), b"}"))

    return texts
