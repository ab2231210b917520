"""The printer of the binary form of composites.

The number of attributes, then of each its type's OID and its value with its length. Rows are printed together
whose attributes have the same types: a type that was altered has other ones in older values.

Source: ``record_send`` and ``record_out`` in ``src/backend/utils/adt/rowtypes.c``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    ByteRuns,
    MalformedText,
    at_rows_of,
    cut,
)
from airflow_provider_pgoutput.capture.types.printing import (
    dense_runs,
    int4_at,
    joined,
    quoted_where,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.types.binary_scalars import Printer

#: Attributes that are printed in quotes: empty ones, and those with one of these characters.
_SPECIAL = r'^$|["\\(),\s\x0b]'
_HEAD_BYTES = 4
_MAX_ATTRIBUTES = 1664


def record_printer(printer_of: Callable[[int], Printer]) -> Printer:
    """A printer of composites.

    :param printer_of: the printer of a type, by its OID.
    """

    def texts(raw: pa.Array) -> pa.Array:
        runs = dense_runs(raw, _HEAD_BYTES)
        widths = int4_at(runs, runs.starts)
        if ((widths < 0) | (widths > _MAX_ATTRIBUTES)).any():
            raise MalformedText
        found, order = [pa.array([], pa.binary())], [np.empty(0, dtype=np.int64)]
        for width in np.unique(widths).tolist():
            rows = np.flatnonzero(widths == width)
            for alike, types, starts, lengths in _layouts(runs, rows, width):
                found.append(_printed(runs, starts, lengths, [printer_of(each) for each in types]))
                order.append(alike)
        places = np.empty(len(widths), dtype=np.int64)
        places[np.concatenate(order)] = np.arange(len(widths))
        return at_rows_of(raw, pa.concat_arrays(found).take(pa.array(places)))

    return texts


_Layout = tuple["NDArray[np.int64]", list[int], "NDArray[np.int64]", "NDArray[np.int64]"]


def _layouts(runs: ByteRuns, rows: NDArray[np.int64], width: int) -> list[_Layout]:
    """Rows of one width by the types of their attributes: the rows, the types, start and length of each.

    :raises MalformedText: when the attributes of a row do not end where it ends.
    """
    types, starts, lengths = (np.empty((len(rows), width), dtype=np.int64) for _ in range(3))
    position = runs.starts[rows] + _HEAD_BYTES
    for place in range(width):
        types[:, place] = int4_at(runs, position) & 0xFFFFFFFF
        lengths[:, place] = int4_at(runs, position + 4)
        starts[:, place] = position + 8
        position = starts[:, place] + np.maximum(lengths[:, place], 0)
    if (lengths < -1).any() or (position != runs.ends[rows]).any():
        raise MalformedText
    if not width:
        return [(rows, [], starts, lengths)]
    kinds, of_row = np.unique(types, axis=0, return_inverse=True)
    found = []
    for number, kind in enumerate(kinds.tolist()):
        alike = np.flatnonzero(of_row.reshape(-1) == number)
        found.append((rows[alike], kind, starts[alike], lengths[alike]))
    return found


def _printed(
    runs: ByteRuns, starts: NDArray[Any], lengths: NDArray[Any], printers: list[Printer]
) -> pa.Array:
    """Rows whose attributes have these printers."""
    parts: list[pa.Array | bytes] = [pa.array([b"("] * len(starts), pa.binary())]
    for place, texts in enumerate(printers):
        first, length = starts[:, place], lengths[:, place]
        is_null = length < 0
        ends = first + np.maximum(length, 0)
        values = cut(runs.data, first, ends, is_null if is_null.any() else None)
        shown = pc.fill_null(quoted_where(texts(values), _SPECIAL), b"")
        parts += [b",", shown] if place else [shown]
    return joined(*parts, b")")
