"""PostgreSQL's hash functions with a seed, for whole Arrow columns.

The server computes the same numbers in SQL: ``hashint4extended(value, seed)`` and others. PostgreSQL's
documentation does not name these functions. Nevertheless their results cannot change, because hash
partitioning stores rows by them. ``KNOWN`` has values to compare with a server.

A hash is a number of 64 bits. The hash of one column is the seed of the next, so the hash of a row depends on
the order of its values. With the seed 0 the functions give the hash that they give without a seed.

Source: ``src/common/hashfn.c`` (Bob Jenkins' lookup3) and ``src/backend/access/hash/hashfunc.c``
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from psycopg import sql

from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.source.session import Session

    Words = NDArray[np.uint32]
    Hashes = NDArray[np.uint64]

log = logging.getLogger(__name__)

#: Expressions, and what every server computes for them.
KNOWN: Final = (
    ("pg_catalog.hashint4extended(7, 0)", -3288951424994980865),
    ("pg_catalog.hashint8extended(1099511627781, 0)", 1720380726943452469),
    ("pg_catalog.hashfloat8extended(1.5, 0)", 6158159405676898674),
    ("pg_catalog.hash_numeric_extended(120345.678, 0)", 8074030623378525847),
    (
        "pg_catalog.hashtextextended('a text of twenty-five bytes' COLLATE pg_catalog.\"C\", 0)",
        -2408181858776469812,
    ),
)

_START: Final = 0x9E3779B9 + 3923095
_U32: Final = 0xFFFFFFFF
#: Where the halves of a number of 64 bits stand.
_UPPER, _LOWER = (1, 0) if sys.byteorder == "little" else (0, 1)
_BLOCK_BYTES: Final = 12
#: Masks for the last block of a row, by the number of bytes that the row has left there. They keep the row's
#: own bits of the first, second and third word.
_FIRST_WORD, _SECOND_WORD, _THIRD_WORD = (
    np.array([(1 << 8 * min(max(left - 4 * word, 0), 4)) - 1 for left in range(12)], np.uint32)
    for word in range(3)
)
_NAN_BITS = np.uint64(0x7FF8000000000000)


def are_known(session: Session, known: Sequence[tuple[str, int]] = KNOWN) -> bool:
    """Whether the server has these functions, and they give PostgreSQL's numbers.

    They do not if it is no PostgreSQL, or has another order of bytes.
    """
    calls = sql.SQL(", ").join(sql.SQL(call) for call, _ in known)
    try:
        with translated(), session.transaction():
            row = session.execute(sql.SQL("SELECT {}").format(calls)).fetchone()
    except SourceError as error:
        log.warning("The server does not compute PostgreSQL's hash functions. %s", error)
        return False
    assert row is not None, "a SELECT of scalars gives a row"
    return [value for _, value in known] == list(row)


class _State:
    """The three words that all rows mix their bytes into.

    All steps write intermediate results into the same two arrays. To make new arrays at each step would take
    a third of the time.
    """

    a: Words
    b: Words
    c: Words

    def __init__(self, length: int | Words, seeds: Hashes) -> None:
        start = _START & _U32
        begin = (
            np.array((start + length) & _U32, dtype=np.uint32)
            if isinstance(length, int)
            else length + np.uint32(start)
        )
        if is_one(seeds) and begin.ndim == 0:
            # All rows begin alike, so one is mixed.
            one = _State(length, seeds[:1].copy())
            self.a, self.b, self.c = (np.full(len(seeds), each) for each in (one.a, one.b, one.c))
            self._scratch = np.empty((2, len(seeds)), dtype=np.uint32)
            return
        halves = np.ascontiguousarray(seeds).view(np.uint32)
        self.a = halves[_UPPER::2] + begin
        self.b = halves[_LOWER::2] + begin
        self.c = np.empty(len(seeds), dtype=np.uint32)
        self.c[:] = begin
        self._scratch = np.empty((2, len(seeds)), dtype=np.uint32)
        self.mix()
        if not seeds.all():
            unseeded = np.flatnonzero(seeds == 0)
            for word in (self.a, self.b, self.c):
                word[unseeded] = begin if begin.ndim == 0 else begin[unseeded]

    def mix(self) -> None:
        """Mix the words of all rows; each step can be undone, so nothing is lost."""
        _mix(self.a, self.b, self.c, self._scratch)

    def finish(self) -> Hashes:
        """The hashes. Nothing can be mixed in afterwards."""
        a, b, c, scratch = self.a, self.b, self.c, self._scratch
        _step_of_end(c, b, 14, scratch)
        _step_of_end(a, c, 11, scratch)
        _step_of_end(b, a, 25, scratch)
        _step_of_end(c, b, 16, scratch)
        _step_of_end(a, c, 4, scratch)
        _step_of_end(b, a, 14, scratch)
        _step_of_end(c, b, 24, scratch)
        hashes = np.empty(len(a), dtype=np.uint64)
        halves = hashes.view(np.uint32)
        halves[_UPPER::2], halves[_LOWER::2] = b, c
        return hashes


def _mix(a: Words, b: Words, c: Words, scratch: Words) -> None:
    _step(a, c, b, 4, scratch)
    _step(b, a, c, 6, scratch)
    _step(c, b, a, 8, scratch)
    _step(a, c, b, 16, scratch)
    _step(b, a, c, 19, scratch)
    _step(c, b, a, 4, scratch)


def _step(one: Words, two: Words, three: Words, bits: int, scratch: Words) -> None:
    one -= two
    one ^= _rotated(two, bits, scratch)
    two += three


def _step_of_end(one: Words, two: Words, bits: int, scratch: Words) -> None:
    one ^= two
    one -= _rotated(two, bits, scratch)


def _rotated(word: Words, bits: int, scratch: Words) -> Words:
    left: Words = scratch[0]
    right: Words = scratch[1]
    np.left_shift(word, np.uint32(bits), out=left)
    np.right_shift(word, np.uint32(32 - bits), out=right)
    left |= right
    return left


def is_one(rows: NDArray[Any]) -> bool:
    """Whether an array is one number for all rows, as ``np.broadcast_to`` makes it."""
    return len(rows) > 1 and rows.strides == (0,)


def hash_int4(values: NDArray[np.int32], seeds: Hashes) -> Hashes:
    """``hashint4extended``."""
    if is_one(values) and is_one(seeds):
        return np.broadcast_to(hash_int4(values[:1].copy(), seeds[:1].copy()), values.shape)
    state = _State(4, seeds)
    state.a += values.view(np.uint32)
    return state.finish()


def hash_int8(values: NDArray[np.int64], seeds: Hashes) -> Hashes:
    """``hashint8extended``, and the hashes of moments and intervals of as many microseconds.

    The server folds the upper half into the lower one, so that equal numbers of different types have one
    hash. So 4294967295 and -1 have one hash, too.
    """
    folded = (values ^ (values >> np.int64(63))) >> np.int64(32)
    folded ^= values
    return hash_int4(folded.astype(np.int32), seeds)


def hash_float8(values: NDArray[np.float64], seeds: Hashes) -> Hashes:
    """``hashfloat8extended``. All NaN have one hash. The hash of zero, of either sign, is the seed."""
    bits = values.view(np.uint64)
    is_nan = np.isnan(values)
    if is_nan.any():
        bits = np.where(is_nan, _NAN_BITS, bits)
    state = _State(8, seeds)
    state.a += bits.astype(np.uint32)
    state.b += (bits >> np.uint64(32)).astype(np.uint32)
    hashes = state.finish()
    zero = values == 0
    if zero.any():
        hashes[zero] = seeds[zero]
    return hashes


def hash_numeric(values: NDArray[np.int64], digits: int, scale: int, seeds: Hashes) -> Hashes:
    """``hash_numeric_extended`` of ``values / 10 ** scale``.

    The server keeps a number as groups of four decimal digits on both sides of the point. It hashes the
    groups without zeros at the end.

    :param values: positive, all with the same number of digits.
    :param digits: this number. It is greater than ``scale``, and at most 17.
    """
    groups: list[NDArray[np.int64]] = []
    rest = values
    if scale % 4:
        unit = 10 ** (scale % 4)
        rest = values // unit
        groups.append((values - rest * unit) * (10_000 // unit))
    before_point = -(-(digits - scale) // 4)
    count = before_point + -(-scale // 4)
    while len(groups) < count - 1:
        upper = rest // 10_000
        groups.append(rest - upper * 10_000)
        rest = upper
    groups.append(rest)
    lengths = np.full(len(values), 2 * count, np.uint32)
    is_zero = np.ones(len(values), np.bool_)
    for group in groups[:-1]:
        is_zero &= group == 0
        lengths -= 2 * is_zero.astype(np.uint32)
    state = _State(lengths, seeds)
    # The lowest byte of the third word belongs to the length.
    places = ((state.a, 0), (state.a, 16), (state.b, 0), (state.b, 16), (state.c, 8))
    for (words, bits), group in zip(places, reversed(groups), strict=False):
        np.add(words, group.astype(np.uint32) << np.uint32(bits), out=words)
    hashes = state.finish()
    hashes ^= np.uint64(before_point - 1)
    return hashes


def hash_bytes(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], seeds: Hashes
) -> Hashes:
    """``hashtextextended`` with collation ``C``: row ``i`` is ``data[starts[i]:ends[i]]``.

    ``uuid_hash_extended`` gives the same for the sixteen bytes of a UUID.
    """
    lengths = ends - starts
    # The last block of the last row may reach past its end.
    readable = np.zeros(len(data) + _BLOCK_BYTES, dtype=np.uint8)
    readable[: len(data)] = data
    state = _State(lengths.astype(np.uint32), seeds)
    offsets = starts.copy()
    step = _step_between(starts, lengths)
    # Every row has these blocks, so no rows have to be picked out.
    for _ in range(int(lengths.min()) // _BLOCK_BYTES if len(lengths) else 0):
        block = _blocks(readable, offsets, step)
        state.a += block[:, 0]
        state.b += block[:, 1]
        state.c += block[:, 2]
        state.mix()
        offsets += _BLOCK_BYTES
    rows = np.flatnonzero(ends - offsets >= _BLOCK_BYTES)
    while len(rows):
        at = offsets[rows]
        a, b, c = state.a[rows], state.b[rows], state.c[rows]
        block = _blocks(readable, at)
        a += block[:, 0]
        b += block[:, 1]
        c += block[:, 2]
        _mix(a, b, c, np.empty((2, len(rows)), dtype=np.uint32))
        state.a[rows], state.b[rows], state.c[rows] = a, b, c
        offsets[rows] = at + _BLOCK_BYTES
        rows = rows[ends[rows] - offsets[rows] >= _BLOCK_BYTES]
    left = ends - offsets
    # Rows of one length have one mask.
    left = left[:1] if step else left
    block = _blocks(readable, offsets, step)
    state.a += block[:, 0] & _FIRST_WORD[left]
    state.b += block[:, 1] & _SECOND_WORD[left]
    # The lowest byte of the third word belongs to the length.
    state.c += (block[:, 2] & _THIRD_WORD[left]) << np.uint32(8)
    return state.finish()


def _step_between(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> int:
    """How far apart rows of one length stand, if they follow each other evenly; 0: they do not."""
    if len(starts) < 2 or lengths[0] != lengths[-1] or (lengths != lengths[0]).any():
        return 0
    step = int(starts[1] - starts[0])
    return step if (np.diff(starts) == step).all() else 0


def _blocks(readable: NDArray[np.uint8], offsets: NDArray[np.int64], step: int = 0) -> Words:
    """The three words of the block at each offset.

    :param step: how far apart the offsets are; 0: they are anywhere.
    """
    if step:
        shape, strides = (len(offsets), 3), (step, 4)
        return np.ndarray(shape, np.dtype("<u4"), readable, int(offsets[0]), strides)
    blocks = np.ndarray((len(readable) - _BLOCK_BYTES + 1,), "V12", readable, strides=(1,))
    words: Words = blocks[offsets].view("<u4").reshape(-1, 3)
    return words
