r"""Array, vector and hstore literals cut into their parts: one scan over the bytes of a whole column.

Whether a byte is inside quotes is the parity of the quotes before it; whether a quote or backslash is
itself escaped is the parity of the run of backslashes before it. Both are cumulative operations, so no
row is looked at alone. All marks are ASCII and the text is UTF-8, where no ASCII byte is part of
another character. What is not here: casting the parts.

Sources: https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO and
https://www.postgresql.org/docs/current/hstore.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.capture.types.values import ByteRuns, MalformedText

if TYPE_CHECKING:
    from numpy.typing import NDArray

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_BOUNDS = ord("[")
_NULL = np.frombuffer(b"NULL", dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Brackets:
    """The marks of a list literal."""

    opening: int
    closing: int
    delimiter: int
    #: Whether elements may be quoted, ``NULL``, or lists themselves.
    is_array: bool = True


ARRAY = Brackets(ord("{"), ord("}"), ord(","))
BOX_ARRAY = Brackets(ord("{"), ord("}"), ord(";"))
VECTOR = Brackets(ord("["), ord("]"), ord(","), is_array=False)


@dataclass(frozen=True, slots=True)
class Scan:
    """Which bytes of a column are marks of quoting."""

    #: Quotes that open or close.
    quotes: NDArray[np.bool_] | None
    #: Backslashes that escape the byte after them.
    escapes: NDArray[np.bool_] | None
    #: Bytes outside of quotes, closing quotes included; None: all.
    outside: NDArray[np.bool_] | None


def scan(runs: ByteRuns) -> Scan:
    """Find the quotes and escapes of a column without nulls.

    :raises MalformedText: when a row ends inside quotes.
    """
    quotes: NDArray[np.bool_] = runs.data == _QUOTE
    if not quotes.any():
        return Scan(None, None, None)
    escapes = _escapes(runs.data)
    if escapes is not None:
        quotes[1:] &= ~escapes[:-1]
    outside = ~np.logical_xor.accumulate(quotes)
    filled = runs.ends > runs.starts
    if not outside[runs.ends[filled] - 1].all():
        raise MalformedText
    return Scan(quotes, escapes, outside)


def _escapes(data: NDArray[np.uint8]) -> NDArray[np.bool_] | None:
    """Backslashes at an even place in their run of backslashes; None: there is no backslash."""
    backslashes = np.flatnonzero(data == _BACKSLASH)
    if len(backslashes) == 0:
        return None
    begins_run = np.ones(len(backslashes), dtype=np.bool_)
    begins_run[1:] = np.diff(backslashes) > 1
    run_starts = np.where(begins_run, backslashes, 0)
    place = backslashes - np.maximum.accumulate(run_starts)
    escapes = np.zeros(len(data), dtype=np.bool_)
    escapes[backslashes[(place & 1) == 0]] = True
    return escapes


def _binary(
    content: NDArray[np.uint8], lengths: NDArray[np.int64], is_null: NDArray[np.bool_]
) -> pa.Array:
    """A binary array from its bytes, the lengths of its rows and which of them are null.

    :raises MalformedText: when the lengths are not those of the content.
    """
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] != len(content) or (lengths < 0).any():
        raise MalformedText
    validity = pa.array(~is_null).buffers()[1] if is_null.any() else None
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def not_one_dimensional(dense: pa.Array, brackets: Brackets) -> NDArray[np.bool_]:
    """Which rows a list would lose something of: several dimensions, or lower bounds other than 1.

    :param dense: literals without nulls.
    :raises MalformedText: when a row is no literal.
    """
    runs = ByteRuns.of(dense)
    if (runs.ends - runs.starts < 2).any():
        raise MalformedText
    if (runs.data[runs.ends - 1] != brackets.closing).any():
        raise MalformedText
    first = runs.data[runs.starts]
    with_bounds: NDArray[np.bool_] = (first == _BOUNDS) & brackets.is_array
    if ((first != brackets.opening) & ~with_bounds).any():
        raise MalformedText
    opening = runs.data == brackets.opening
    if (outside := scan(runs).outside) is not None:
        opening &= outside
    dimensions = np.add.reduceat(opening, runs.starts, dtype=np.int64) if len(dense) else first
    return with_bounds | (dimensions > 1)


def split_lists(dense: pa.Array, brackets: Brackets) -> tuple[NDArray[np.int64], pa.Array]:
    """Cut one-dimensional literals into elements.

    :param dense: literals without nulls, of which ``not_one_dimensional`` is false.
    :returns: the number of elements of each row, and the elements of all rows as raw text.
    :raises MalformedText: when a row is no literal.
    """
    runs = ByteRuns.of(dense)
    marks = scan(runs)
    delimiters = runs.data == brackets.delimiter
    if marks.outside is not None:
        delimiters &= marks.outside
    # Every delimiter ends an element and starts one; so do the ends of the row.
    starts_at, ends_at = delimiters.copy(), delimiters.copy()
    starts_at[runs.starts] = True
    ends_at[runs.ends - 1] = True
    starts, ends = np.flatnonzero(starts_at) + 1, np.flatnonzero(ends_at)
    keep = ~(starts_at | ends_at)
    counts = _counts(runs, delimiters)
    # What lies between the brackets of an empty literal is no element; nothing else is empty.
    filled = ends > starts
    if np.count_nonzero(~filled) != np.count_nonzero(counts == 0):
        raise MalformedText
    starts, ends = starts[filled], ends[filled]
    lengths = ends - starts
    is_null = np.zeros(len(starts), dtype=np.bool_)
    if brackets.is_array:
        is_null = _nulls(runs.data, starts, lengths)
        keep[starts[is_null, None] + np.arange(len(_NULL))] = False
        lengths = np.where(is_null, 0, lengths)
    if marks.quotes is not None:
        keep &= ~marks.quotes
        lengths -= 2 * (runs.data[starts] == _QUOTE)
    if marks.escapes is not None:
        keep &= ~marks.escapes
        before = np.concatenate([[0], np.cumsum(marks.escapes)])
        lengths -= before[ends] - before[starts]
    return counts, _binary(runs.data[keep], lengths, is_null)


def _counts(runs: ByteRuns, delimiters: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Elements of each row: one more than delimiters, none between bare brackets."""
    if len(runs.starts) == 0:
        return np.empty(0, dtype=np.int64)
    counts: NDArray[np.int64] = np.add.reduceat(delimiters, runs.starts, dtype=np.int64) + 1
    counts[runs.ends - runs.starts == 2] = 0
    return counts


def _nulls(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which elements are the bare word NULL; a string of these letters is quoted."""
    is_null: NDArray[np.bool_] = lengths == len(_NULL)
    candidates = np.flatnonzero(is_null)
    letters = data[starts[candidates, None] + np.arange(len(_NULL))]
    is_null[candidates] = (letters == _NULL).all(axis=1)
    return is_null


def split_hstores(dense: pa.Array) -> tuple[NDArray[np.int64], pa.Array, pa.Array]:
    """Cut hstore literals, ``"a"=>"1", "b"=>NULL``, into keys and values.

    :param dense: literals without nulls.
    :returns: the number of pairs of each row, and keys and values of all rows as raw text.
    :raises MalformedText: when a row is no literal.
    """
    runs = ByteRuns.of(dense)
    marks = scan(runs)
    if marks.quotes is None or marks.outside is None:
        if len(runs.data):
            raise MalformedText
        nothing = pa.array([], pa.binary())
        return np.zeros(len(dense), dtype=np.int64), nothing, nothing
    positions = np.flatnonzero(marks.quotes)
    opens, closes = positions[0::2], positions[1::2]
    # A value follows an arrow, a key follows a comma and a space or begins its row.
    is_value = (opens > 0) & (runs.data[opens - 1] == ord(">"))
    if len(is_value) and (is_value[0] or (is_value[1:] & is_value[:-1]).any()):
        raise MalformedText
    has_value = np.append(is_value[1:], False)[~is_value]
    inside = ~marks.outside & ~marks.quotes
    lengths = closes - opens - 1
    if marks.escapes is not None:
        inside &= ~marks.escapes
        before = np.concatenate([[0], np.cumsum(marks.escapes)])
        lengths -= before[closes] - before[opens]
    content = runs.data[inside]
    owner_is_value = np.repeat(is_value, lengths)
    if len(owner_is_value) != len(content):
        raise MalformedText
    value_lengths = np.zeros(len(has_value), dtype=np.int64)
    value_lengths[has_value] = lengths[is_value]
    row_of_key = np.searchsorted(runs.ends, opens[~is_value], side="right")
    counts = np.bincount(row_of_key, minlength=len(dense)).astype(np.int64)
    _check_hstores(runs, opens, closes, row_of_key, counts, has_value)
    keys = _binary(content[~owner_is_value], lengths[~is_value], np.zeros(len(has_value), np.bool_))
    return counts, keys, _binary(content[owner_is_value], value_lengths, ~has_value)


def _check_hstores(
    runs: ByteRuns,
    opens: NDArray[np.int64],
    closes: NDArray[np.int64],
    row_of_key: NDArray[np.int64],
    counts: NDArray[np.int64],
    has_value: NDArray[np.bool_],
) -> None:
    """Account for every byte of every row: strings, arrows, NULLs and commas, and nothing else."""
    row_of_string = np.searchsorted(runs.ends, opens, side="right")
    strings = np.bincount(row_of_string, closes - opens + 1, minlength=len(counts))
    nulls = np.bincount(row_of_key, ~has_value, minlength=len(counts))
    expected = strings + 2 * counts + 4 * nulls + 2 * np.maximum(counts - 1, 0)
    if (expected != runs.ends - runs.starts).any():
        raise MalformedText
