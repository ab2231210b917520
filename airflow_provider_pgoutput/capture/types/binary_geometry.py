"""Printers of the binary form of the geometric types: numbers of ``double precision`` between brackets.

The numbers are printed one by one (``binary_floats.py``), so text mode is faster for these types.

Source: ``src/backend/utils/adt/geo_ops.c``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.capture.types.arrow_bytes import MalformedText, at_rows_of
from airflow_provider_pgoutput.capture.types.binary_floats import float_printer
from airflow_provider_pgoutput.capture.types.printing import (
    dense_runs,
    int4_at,
    items,
    joined,
    joined_lists,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.types.arrow_bytes import ByteRuns
    from airflow_provider_pgoutput.capture.types.binary_scalars import Printer

_FLOAT_BYTES = 8
_float_texts = float_printer(np.dtype(">f8"))


def shape_printer(template: str) -> Printer:
    """A printer of a type of so many numbers.

    :param template: the text, with ``#`` for each number.
    """
    literals = [part.encode() for part in template.split("#")]
    count = len(literals) - 1

    def texts(raw: pa.Array) -> pa.Array:
        runs = dense_runs(raw, _FLOAT_BYTES * count)
        if (runs.ends - runs.starts != _FLOAT_BYTES * count).any():
            raise MalformedText
        parts: list[Any] = [literals[0]]
        once = np.ones(len(runs.starts), dtype=np.int64)
        for place in range(count):
            number = items(runs, runs.starts + _FLOAT_BYTES * place, once, _FLOAT_BYTES)
            parts += [_float_texts(number), literals[place + 1]]
        return at_rows_of(raw, joined(*parts))

    return texts


def polygon_texts(raw: pa.Array) -> pa.Array:
    """``((0,0),(1,1))``."""
    runs = dense_runs(raw, 4)
    return at_rows_of(raw, joined(b"(", _points(runs, runs.starts), b")"))


def path_texts(raw: pa.Array) -> pa.Array:
    """``((0,0),(1,1))`` when it is closed, ``[(0,0),(1,1)]`` when it is open."""
    runs = dense_runs(raw, 5)
    is_closed = runs.data[runs.starts] if len(runs.starts) else np.empty(0, np.uint8)
    if (is_closed > 1).any():
        raise MalformedText
    closed = pa.array(is_closed == 1)
    opening, closing = (
        pc.if_else(closed, pa.scalar(one), pa.scalar(other))
        for one, other in ((b"(", b"["), (b")", b"]"))
    )
    return at_rows_of(raw, joined(opening, _points(runs, runs.starts + 1), closing))


def _points(runs: ByteRuns, heads: NDArray[np.int64]) -> pa.Array:
    """The points after their number, which go to the end."""
    counts = int4_at(runs, heads)
    if (counts < 0).any() or (heads + 4 + 2 * _FLOAT_BYTES * counts != runs.ends).any():
        raise MalformedText
    numbers = _float_texts(items(runs, heads + 4, 2 * counts, _FLOAT_BYTES))
    evens = np.arange(0, len(numbers), 2)
    point = joined(
        b"(", numbers.take(pa.array(evens)), b",", numbers.take(pa.array(evens + 1)), b")"
    )
    return joined_lists(point, counts, b",")
