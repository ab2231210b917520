r"""Cuts array, vector and hstore literals into their parts, with one scan over the bytes of a column.

The scan finds the marks (brackets, delimiters, quotes, backslashes) of all rows at once. A mark is inside of
quotes if an odd number of quotes is before it. It is escaped if an odd run of backslashes is before it. Both
are cumulative operations, so no row is looked at alone. All marks are ASCII, and in UTF-8 no ASCII byte is
part of another character.

Sources: https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO and
https://www.postgresql.org/docs/current/hstore.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from airflow_provider_pgoutput.capture.types.arrow_bytes import ByteRuns, MalformedText, cut

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_QUOTE, _BACKSLASH, _BOUNDS = ord('"'), ord("\\"), ord("[")
_NULL_WORD = int.from_bytes(b"NULL", "little")


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
class Marks:
    """The marks of a column, in order. Inside of quotes only marks that quoting needs."""

    #: Positions of brackets and delimiters outside of quotes, and which byte each is.
    structure: NDArray[np.int64]
    kinds: NDArray[np.uint8]
    #: Positions of quotes. Those at even indexes open, those at odd indexes close.
    quotes: NDArray[np.int64]
    #: Positions of backslashes that escape the byte after them.
    escapes: NDArray[np.int64]


def find_marks(data: NDArray[np.uint8], structural: bytes) -> Marks:
    """Find the marks of a column without nulls.

    :param structural: the brackets and delimiters to look for.
    """
    # Six comparisons of whole registers are faster than one look-up for each byte.
    is_mark = (data == _QUOTE) | (data == _BACKSLASH)
    for byte in structural:
        is_mark |= data == byte
    positions = np.flatnonzero(is_mark)
    kinds = data[positions]
    is_escape = kinds == _BACKSLASH
    if is_escape.any():
        is_escape = _escaping(positions, is_escape)
        escaped = np.zeros(len(positions), dtype=np.bool_)
        escaped[1:] = is_escape[:-1] & (np.diff(positions) == 1)
        plain = ~(escaped | is_escape)
        escapes, positions, kinds = positions[is_escape], positions[plain], kinds[plain]
    else:
        escapes = positions[:0]
    is_quote = kinds == _QUOTE
    if not is_quote.any():
        return Marks(positions, kinds, positions[:0], escapes)
    outside = ~(np.logical_xor.accumulate(is_quote) | is_quote)
    return Marks(positions[outside], kinds[outside], positions[is_quote], escapes)


def _escaping(positions: NDArray[np.int64], is_backslash: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which marks are backslashes with an even index in their run of backslashes."""
    backslashes = positions[is_backslash]
    begins_run = np.ones(len(backslashes), dtype=np.bool_)
    begins_run[1:] = np.diff(backslashes) > 1
    run_starts = np.maximum.accumulate(np.where(begins_run, backslashes, 0))
    escaping = np.zeros(len(positions), dtype=np.bool_)
    escaping[is_backslash] = ((backslashes - run_starts) & 1) == 0
    return escaping


def _cut_escaped(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    is_null: NDArray[np.bool_] | None,
    escapes: NDArray[np.int64],
) -> pa.Array:
    """``cut``, with the backslashes at ``escapes`` left out."""
    return cut(*without_bytes(data, starts, ends, escapes), is_null)


def without_bytes(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    dropped: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Data without some bytes, and where values start and end in it then.

    :param dropped: positions of these bytes, in order.
    """
    if not len(dropped):
        return data, starts, ends
    keep = np.ones(len(data), dtype=np.bool_)
    keep[dropped] = False
    return (
        data[keep],
        starts - np.searchsorted(dropped, starts),
        ends - np.searchsorted(dropped, ends),
    )


@dataclass(frozen=True, slots=True)
class Literals:
    """List literals of a column without nulls."""

    runs: ByteRuns
    marks: Marks
    brackets: Brackets

    @classmethod
    def of(cls, dense: pa.Array, brackets: Brackets) -> Literals:
        """Scan a column.

        :raises MalformedText: a row does not begin and end like a literal.
        """
        runs = ByteRuns.of(dense)
        if (runs.ends - runs.starts < 2).any() or (
            runs.data[runs.ends - 1] != brackets.closing
        ).any():
            raise MalformedText
        structural = bytes((brackets.opening, brackets.closing, brackets.delimiter))
        return cls(runs, find_marks(runs.data, structural), brackets)

    def not_one_dimensional(self) -> NDArray[np.int64]:
        """Rows that are more than a list can say: several dimensions, or other lower bounds than 1.

        :raises MalformedText: when a row begins like neither.
        """
        first = self.runs.data[self.runs.starts]
        plain = first == self.brackets.opening
        openings = self.marks.structure[self.marks.kinds == self.brackets.opening]
        if plain.all() and len(openings) == len(plain):
            return np.empty(0, dtype=np.int64)
        # A vector is never nested.
        if not self.brackets.is_array or not (plain | (first == _BOUNDS)).all():
            raise MalformedText
        row = np.searchsorted(self.runs.starts, openings, side="right") - 1
        dimensions = np.bincount(row, minlength=len(plain))
        return np.flatnonzero(~plain | (dimensions > 1))

    def split(self) -> tuple[NDArray[np.int64], pa.Array]:
        """Cut one-dimensional literals into elements.

        :returns: the number of elements of each row, and the elements of all rows as raw text.
        :raises MalformedText: when a row is no literal.
        """
        structure, kinds, brackets = self.marks.structure, self.marks.kinds, self.brackets
        opens, closes = kinds == brackets.opening, kinds == brackets.closing
        if not (
            np.array_equal(structure[opens], self.runs.starts)
            and np.array_equal(structure[closes], self.runs.ends - 1)
        ):
            raise MalformedText
        starts, ends = structure[~closes] + 1, structure[~opens]
        counts = np.diff(np.flatnonzero(opens[~closes]), append=len(starts))
        # What lies between the brackets of an empty literal is no element; nothing else is empty.
        filled = ends > starts
        if not filled.all():
            counts[self.runs.ends - self.runs.starts == 2] = 0
            starts, ends = starts[filled], ends[filled]
            if counts.sum() != len(starts):
                raise MalformedText
        is_null = None
        if brackets.is_array:
            is_null = _nulls(self.runs.data, starts, ends)
        if len(self.marks.quotes):
            quoted = self.runs.data[starts] == _QUOTE
            # Quotes stand around whole elements and nowhere else.
            if not (
                np.array_equal(self.marks.quotes[0::2], starts[quoted])
                and np.array_equal(self.marks.quotes[1::2], ends[quoted] - 1)
            ):
                raise MalformedText
            starts, ends = starts + quoted, ends - quoted
        return counts, _cut_escaped(self.runs.data, starts, ends, is_null, self.marks.escapes)


def _nulls(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which elements are the bare word NULL; a string of these letters is quoted."""
    is_null: NDArray[np.bool_] = ends - starts == 4
    candidates = np.flatnonzero(is_null)
    if len(candidates):
        # The four bytes from every position on, as one number each; nothing is copied.
        words: NDArray[np.uint32] = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
        is_null[candidates] = words[starts[candidates]] == _NULL_WORD
    return is_null


def split_hstores(dense: pa.Array) -> tuple[NDArray[np.int64], pa.Array, pa.Array]:
    """Cut hstore literals, ``"a"=>"1", "b"=>NULL``, into keys and values.

    :param dense: literals without nulls.
    :returns: the number of pairs of each row, and keys and values of all rows as raw text.
    :raises MalformedText: when a row is no literal.
    """
    runs = ByteRuns.of(dense)
    marks = find_marks(runs.data, b"")
    if len(marks.quotes) % 2:
        raise MalformedText
    opens, closes = marks.quotes[0::2], marks.quotes[1::2]
    row = np.searchsorted(runs.ends, opens, side="right")
    # A value follows an arrow, a key follows a comma and a space or begins its row.
    is_value = (opens > 0) & (runs.data[opens - 1] == ord(">"))
    _check_between(runs, opens, closes, row, is_value)
    is_key = ~is_value
    counts = np.bincount(row[is_key], minlength=len(dense))
    has_value = np.append(is_value[1:], False)[is_key]
    starts, ends = opens + 1, closes
    keys = _cut_escaped(runs.data, starts[is_key], ends[is_key], None, marks.escapes)
    # The value of a key without one is the empty piece behind that key, marked as null.
    value = np.flatnonzero(is_key) + has_value
    value_starts = np.where(has_value, starts[value], ends[value])
    values = _cut_escaped(runs.data, value_starts, ends[value], ~has_value, marks.escapes)
    return counts, keys, values


def _check_between(
    runs: ByteRuns,
    opens: NDArray[np.int64],
    closes: NDArray[np.int64],
    row: NDArray[np.int64],
    is_value: NDArray[np.bool_],
) -> None:
    """Account for every byte outside of the strings of hstore literals.

    :raises MalformedText: when there is anything but arrows, commas and NULLs, each in its place.
    """
    begins_row = np.ones(len(row), dtype=np.bool_)
    begins_row[1:] = row[1:] != row[:-1]
    after_key = np.zeros(len(row), dtype=np.bool_)
    after_key[1:] = ~is_value[:-1]
    after_key &= ~begins_row
    before = np.zeros(len(row), dtype=np.int64)
    before[1:] = closes[:-1] + 1
    gaps = ByteRuns(runs.data, np.where(begins_row, runs.starts[row], before), opens)
    ends_row = np.append(begins_row[1:], True)[: len(row)]
    tails = ByteRuns(runs.data, closes[ends_row] + 1, runs.ends[row[ends_row]])
    bare_end = ~is_value[ends_row]
    fits = (
        np.count_nonzero(begins_row) == np.count_nonzero(runs.ends > runs.starts)
        and not (is_value & ~after_key).any()
        and gaps.equal(np.flatnonzero(is_value), b"=>").all()
        and gaps.equal(np.flatnonzero(begins_row), b"").all()
        and gaps.equal(np.flatnonzero(~is_value & after_key), b"=>NULL, ").all()
        and gaps.equal(np.flatnonzero(~is_value & ~after_key & ~begins_row), b", ").all()
        and tails.equal(np.flatnonzero(bare_end), b"=>NULL").all()
        and tails.equal(np.flatnonzero(~bare_end), b"").all()
    )
    if not fits:
        raise MalformedText
