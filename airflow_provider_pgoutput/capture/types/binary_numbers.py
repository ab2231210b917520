"""Printers of the binary form of money, bits, tid, snapshots and vectors of integers.

Source: ``cash.c``, ``varbit.c``, ``tid.c``, ``xid8funcs.c``, ``int.c`` and ``oid.c`` in
``src/backend/utils/adt``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    MalformedText,
    TooMuchText,
    at_rows_of,
    cut,
)
from airflow_provider_pgoutput.capture.types.binary_lists import ElementForm, WireArrays
from airflow_provider_pgoutput.capture.types.binary_scalars import (
    fixed_bytes,
    fixed_numbers,
    integer_printer,
)
from airflow_provider_pgoutput.capture.types.printing import (
    MAX_TEXT_BYTES,
    decimals,
    dense_runs,
    int4_at,
    items,
    joined,
    joined_lists,
)

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.types.binary_scalars import Printer

_INT8: np.dtype[Any] = np.dtype(">i8")
_UINT8: np.dtype[Any] = np.dtype(">u8")
#: Nothing, then a group of digits that comes first, then one that follows another.
_GROUPS = pa.array(
    [
        b"",
        *(b"%d" % number for number in range(1000)),
        *(b",%03d" % number for number in range(1000)),
    ],
    pa.binary(),
)
#: 2**63 cents have 17 digits before the point.
_MOST_GROUPS = 6
_HEAD_BYTES = 4
_SNAPSHOT_BYTES = 20


def money_texts(raw: pa.Array) -> pa.Array:
    """``-$1,234.56``, as with ``lc_monetary`` C: the number on the wire is of the smallest units."""
    units = fixed_numbers(raw, _INT8)
    size = np.where(units < 0, 0 - units.astype(np.uint64), units.astype(np.uint64))
    whole, cents = np.divmod(size, np.uint64(100))
    follows = np.zeros(len(units), dtype=np.bool_)
    parts = []
    for power in reversed(range(_MOST_GROUPS)):
        group = (whole // np.uint64(1000**power) % np.uint64(1000)).astype(np.int64)
        shown = follows | (group > 0) | (power == 0)
        parts.append(_GROUPS.take(pa.array(np.where(shown, group + 1 + 1000 * follows, 0))))
        follows = shown
    sign = pc.if_else(pa.array(units < 0), pa.scalar(b"-$"), pa.scalar(b"$"))
    digits = pc.utf8_lpad(decimals(cents).view(pa.string()), 2, "0").view(pa.binary())
    return at_rows_of(raw, joined(sign, *parts, b".", digits))


def bit_texts(raw: pa.Array) -> pa.Array:
    """``101``: the number of bits, then the bits."""
    runs = dense_runs(raw, _HEAD_BYTES)
    bits, firsts = int4_at(runs, runs.starts), runs.starts + _HEAD_BYTES
    if (bits < 0).any() or (firsts + (bits + 7) // 8 != runs.ends).any():
        raise MalformedText
    if 8 * len(runs.data) > MAX_TEXT_BYTES:
        raise TooMuchText
    digits = np.unpackbits(runs.data) + np.uint8(ord("0"))
    return at_rows_of(raw, cut(digits, 8 * firsts, 8 * firsts + bits))


def tid_texts(raw: pa.Array) -> pa.Array:
    """``(block,offset)``."""
    found = fixed_bytes(raw, 6)
    block = np.ascontiguousarray(found[:, :4]).reshape(-1).view(">u4").astype(np.int64)
    offset = np.ascontiguousarray(found[:, 4:]).reshape(-1).view(">u2").astype(np.int64)
    return at_rows_of(raw, joined(b"(", decimals(block), b",", decimals(offset), b")"))


def snapshot_texts(raw: pa.Array) -> pa.Array:
    """``xmin:xmax:xip,xip``."""
    runs = dense_runs(raw, _SNAPSHOT_BYTES)
    counts = int4_at(runs, runs.starts)
    if (counts < 0).any() or (runs.starts + _SNAPSHOT_BYTES + 8 * counts != runs.ends).any():
        raise MalformedText
    once, printer = np.ones(len(counts), dtype=np.int64), integer_printer(_UINT8)
    least, most = (
        printer(items(runs, runs.starts + place, once, 8)) for place in (_HEAD_BYTES, 12)
    )
    running = printer(items(runs, runs.starts + _SNAPSHOT_BYTES, counts, 8))
    return at_rows_of(raw, joined(least, b":", most, b":", joined_lists(running, counts, b",")))


def vector_printer(form: ElementForm, element_texts: Printer) -> Printer:
    """A printer of ``int2vector`` or ``oidvector``: arrays from 0 on, with blanks between the numbers."""

    def texts(raw: pa.Array) -> pa.Array:
        arrays = WireArrays.of(raw, form)
        shown = joined_lists(element_texts(arrays.elements), arrays.counts, b" ")
        return at_rows_of(raw, shown)

    return texts
