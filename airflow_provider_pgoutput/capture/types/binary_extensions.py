"""Casters and printers of the binary form of types of extensions: hstore, ltree, and those of pgvector.

Source: ``contrib/hstore/hstore_io.c`` and ``contrib/ltree/ltree_io.c`` of PostgreSQL; ``vector.c``,
``halfvec.c`` and ``sparsevec.c`` of https://github.com/pgvector/pgvector
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    ByteRuns,
    Caster,
    CastResult,
    MalformedText,
    accepted,
    at_rows_of,
    overlapping,
)
from airflow_provider_pgoutput.capture.types.binary_floats import float_printer
from airflow_provider_pgoutput.capture.types.binary_lists import counted_elements
from airflow_provider_pgoutput.capture.types.binary_scalars import fixed_numbers
from airflow_provider_pgoutput.capture.types.lists import list_array
from airflow_provider_pgoutput.capture.types.printing import (
    decimals,
    dense_runs,
    int4_at,
    items,
    joined,
    joined_lists,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.types.binary_scalars import Printer

_FLOAT4: np.dtype[Any] = np.dtype(">f4")
_INT4: np.dtype[Any] = np.dtype(">i4")
_UINT2: np.dtype[Any] = np.dtype(">u2")
#: Number of dimensions, and two bytes that are not used.
_VECTOR_BYTES = 4
#: Dimensions, elements that are not zero, and four bytes that are not used.
_SPARSE_BYTES = 12
_float_texts = float_printer(np.dtype(">f4"))


def hstore_texts(raw: pa.Array) -> pa.Array:
    """``"a"=>"1", "b"=>NULL``: the number of pairs, then keys and values with their lengths."""
    runs = dense_runs(raw, 4)
    counts = int4_at(runs, runs.starts)
    both = counted_elements(runs, runs.starts + 4, 2 * counts)
    evens = np.arange(0, len(both), 2)
    keys, values = both.take(pa.array(evens)), both.take(pa.array(evens + 1))
    if keys.null_count:
        raise MalformedText
    pairs = joined(_in_quotes(keys), b"=>", pc.fill_null(_in_quotes(values), b"NULL"))
    return at_rows_of(raw, joined_lists(pairs, counts, b", "))


def _in_quotes(texts: pa.Array) -> pa.Array:
    escaped = pc.replace_substring_regex(texts, pattern=r'(["\\])', replacement=r"\\\1")
    return joined(b'"', escaped, b'"')


def vector_caster(wire: np.dtype[Any]) -> tuple[Any, Printer]:
    """What makes the caster of ``vector`` or ``halfvec`` to a list of floats, and the printer.

    :param wire: of the elements.
    """

    def elements(raw: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
        runs = dense_runs(raw, _VECTOR_BYTES)
        counts = _uint2_at(runs, runs.starts)
        size = wire.itemsize
        if (runs.starts + _VECTOR_BYTES + size * counts != runs.ends).any():
            raise MalformedText
        raw_elements = items(runs, runs.starts + _VECTOR_BYTES, counts, size)
        floats = fixed_numbers(raw_elements, wire).astype(np.float32)
        if not np.isfinite(floats).all():
            raise MalformedText
        return counts, pa.array(floats)

    def caster_to(target: pa.DataType) -> Caster:
        def cast(raw: pa.Array) -> CastResult:
            counts, floats = elements(raw)
            return accepted(list_array(raw, counts, floats, target))

        return cast

    def texts(raw: pa.Array) -> pa.Array:
        counts, floats = elements(raw)
        wire_floats = np.ascontiguousarray(floats.to_numpy().astype(_FLOAT4)).view(np.uint8)
        shown = _float_texts(_fixed(wire_floats, _FLOAT4.itemsize))
        return at_rows_of(raw, joined(b"[", joined_lists(shown, counts, b","), b"]"))

    return caster_to, texts


def _uint2_at(runs: ByteRuns, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = overlapping(runs.data, _UINT2)[positions].astype(np.int64)
    return found


def _fixed(data: NDArray[np.uint8], width: int) -> pa.Array:
    offsets = np.arange(len(data) // width + 1, dtype=np.int32) * np.int32(width)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def sparsevec_texts(raw: pa.Array) -> pa.Array:
    """``{1:1.5,3:2}/5``: indices, which begin at 0 on the wire, then as many values."""
    runs = dense_runs(raw, _SPARSE_BYTES)
    dimensions, counts = int4_at(runs, runs.starts), int4_at(runs, runs.starts + 4)
    first = runs.starts + _SPARSE_BYTES
    if (counts < 0).any() or (first + 8 * counts != runs.ends).any():
        raise MalformedText
    indices = fixed_numbers(items(runs, first, counts, 4), _INT4).astype(np.int64) + 1
    values = _float_texts(items(runs, first + 4 * counts, counts, 4))
    pairs = joined_lists(joined(decimals(indices), b":", values), counts, b",")
    return at_rows_of(raw, joined(b"{", pairs, b"}/", decimals(dimensions)))
