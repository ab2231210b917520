"""Texts of whole columns put together from parts: what the printers of several families of types share.

Everything here takes and gives Arrow ``binary`` arrays of all rows at once. What is not here: how any type is
printed (``binary_*.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    ByteRuns,
    MalformedText,
    TooMuchText,
    cut,
    overlapping,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Arrow's offsets are numbers of 32 bits.
MAX_TEXT_BYTES = 1 << 30
_WORD: np.dtype[Any] = np.dtype(">i4")
_DOUBLED = r'(["\\])'


def joined(*parts: pa.Array | bytes) -> pa.Array:
    """Parts side by side; bytes are the same in every row. Null when a part is.

    :raises TooMuchText: when Arrow cannot hold so much in one array.
    """
    rows = max(len(part) for part in parts if isinstance(part, pa.Array))
    size = sum(rows * len(part) if isinstance(part, bytes) else part.nbytes for part in parts)
    if size > MAX_TEXT_BYTES:
        raise TooMuchText
    scalars = [pa.scalar(part) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*scalars, pa.scalar(b""))


def joined_lists(texts: pa.Array, counts: NDArray[np.int64], separator: bytes) -> pa.Array:
    """So many texts of each row with a separator between them, in order."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    lists = pa.ListArray.from_arrays(pa.array(offsets), texts)
    return pc.binary_join(lists, pa.scalar(separator))


def decimals(numbers: NDArray[Any]) -> pa.Array:
    """Whole numbers in decimal."""
    return pa.array(numbers).cast(pa.string()).view(pa.binary())


def quoted_where(texts: pa.Array, pattern: str) -> pa.Array:
    """Texts that match in quotes, in which a quote and a backslash are doubled."""
    doubled = pc.replace_substring_regex(texts, pattern=_DOUBLED, replacement=r"\1\1")
    needed = pc.match_substring_regex(texts, pattern=pattern)
    return pc.if_else(needed, joined(b'"', doubled, b'"'), texts)


def int4_at(runs: ByteRuns, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of 4 bytes at these positions.

    :raises MalformedText: when one is past the end of the data.
    """
    words: NDArray[Any] = overlapping(runs.data, _WORD)
    if (positions >= len(words)).any():
        raise MalformedText
    return words[positions].astype(np.int64)


def dense_runs(raw: pa.Array, least_bytes: int) -> ByteRuns:
    """The values that are not null.

    :raises MalformedText: when one is shorter.
    """
    runs = ByteRuns.of(raw.drop_null() if raw.null_count else raw)
    if (runs.ends - runs.starts < least_bytes).any():
        raise MalformedText
    return runs


def repeated(firsts: NDArray[np.int64], counts: NDArray[np.int64], step: int) -> NDArray[np.int64]:
    """Positions of so many items of one size from each first one on."""
    number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    found: NDArray[np.int64] = np.repeat(firsts, counts) + number * step
    return found


def items(
    runs: ByteRuns, firsts: NDArray[np.int64], counts: NDArray[np.int64], size: int
) -> pa.Array:
    """So many items of one size of each value, as raw values of their own."""
    starts = repeated(firsts, counts, size)
    return cut(runs.data, starts, starts + size)
