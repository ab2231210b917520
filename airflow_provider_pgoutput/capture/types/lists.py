"""Casters of arrays, pgvector's vectors and hstore.

``literals.py`` cuts the literals; their parts are cast by the caster of the element's type. A list
holds arrays of one dimension that start at 1; others are rejected, and so is an array with an element
that its type cannot hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    ByteRuns,
    Caster,
    CastResult,
    accepted,
    null_mask,
    valid_rows,
    without,
)
from airflow_provider_pgoutput.capture.types.literals import (
    VECTOR,
    Brackets,
    Literals,
    split_hstores,
)
from airflow_provider_pgoutput.capture.types.scalars import cast_string

if TYPE_CHECKING:
    from numpy.typing import NDArray


def list_caster(target: pa.DataType, brackets: Brackets, element_caster: Caster) -> Caster:
    """A caster of array literals, or of vectors, which only look different."""

    def cast(raw: pa.Array) -> CastResult:
        dense = raw.drop_null() if raw.null_count else raw
        marks = VECTOR if _are_vectors(dense) else brackets
        literals = Literals.of(dense, marks)
        if len(rejected := literals.not_one_dimensional()):
            return _without_rejected(raw, valid_rows(raw)[rejected])
        counts, elements = literals.split()
        result = element_caster(elements)
        if len(result.rejected):
            dense_rows = np.searchsorted(np.cumsum(counts), result.rejected, side="right")
            return _without_rejected(raw, np.unique(valid_rows(raw)[dense_rows]))
        return accepted(list_array(raw, counts, result.values, target))

    def _without_rejected(raw: pa.Array, rejected: NDArray[np.int64]) -> CastResult:
        rest = cast(without(raw, rejected))
        return CastResult(rest.values, np.union1d(rejected, rest.rejected))

    return cast


def cast_map(raw: pa.Array) -> CastResult:
    """An hstore literal as a map of strings; hstore keeps no order and no duplicate keys."""
    dense = raw.drop_null() if raw.null_count else raw
    counts, keys, values = split_hstores(dense)
    mask = null_mask(raw)
    return accepted(
        pa.MapArray.from_arrays(
            pa.array(_offsets(raw, counts)),
            cast_string(keys).values,
            cast_string(values).values,
            mask=None if mask is None else pa.array(mask),
        )
    )


def list_array(
    raw: pa.Array, counts: NDArray[np.int64], elements: pa.Array, target: pa.DataType
) -> pa.Array:
    """Elements as lists at the rows of ``raw`` that are not null, each with its number of them."""
    mask = null_mask(raw)
    return pa.ListArray.from_arrays(
        pa.array(_offsets(raw, counts)),
        elements,
        type=target,
        mask=None if mask is None else pa.array(mask),
    )


def _are_vectors(dense: pa.Array) -> bool:
    """Whether a column holds ``[1,2]`` and not ``{1,2}``; an array with bounds ends in ``}`` too."""
    if len(dense) == 0:
        return False
    runs = ByteRuns.of(dense[:1])
    return len(runs.data) > 0 and int(runs.data[-1]) == VECTOR.closing


def _offsets(raw: pa.Array, counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Where the parts of each row start, from the number of parts of each row that is not null."""
    sizes = np.zeros(len(raw), dtype=np.int64)
    sizes[valid_rows(raw)] = counts
    offsets = np.zeros(len(raw) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return offsets
