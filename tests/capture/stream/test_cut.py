"""Where a batch is cut: only after a commit, whatever the chunks are."""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.capture.stream.cut import BatchCut, Limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def transaction(commit_lsn: int, rows: int) -> list[bytes]:
    """A transaction that ends ten bytes past its commit LSN."""
    begin = b"B" + struct.pack("!QqI", commit_lsn, 0, 7)
    commit = b"C" + struct.pack("!BQQq", 0, commit_lsn, commit_lsn + 10, 0)
    return [begin, *[b"Irow"] * rows, commit]


def chunks(messages: Sequence[bytes], size: int) -> Iterator[MessageChunk]:
    for first in range(0, len(messages), size):
        part = messages[first : first + size]
        offsets = np.cumsum([0, *map(len, part)], dtype=np.int64)
        yield MessageChunk(np.frombuffer(b"".join(part), dtype=np.uint8), offsets)


def cut_messages(cut: BatchCut, messages: Sequence[bytes], size: int) -> list[bytes]:
    found = []
    for chunk in chunks(messages, size):
        taken = cut.take(chunk)
        data = taken.data.tobytes()
        offsets = taken.offsets.tolist()
        found += [data[a:b] for a, b in itertools.pairwise(offsets)]
        if cut.finished:
            break
    return found


STREAM = [
    message for number in range(1, 6) for message in transaction(number * 100, number)
]  # 1 to 5 rows, commits at 100 to 500

SIZES = list(range(1, len(STREAM) + 1))


@pytest.mark.parametrize("size", SIZES)
def test_without_a_limit_everything_before_the_target_is_taken(size: int) -> None:
    for limits in (Limits(), Limits(max_changes=1000)):
        cut = BatchCut(Lsn(100), Lsn(400), limits)
        assert cut_messages(cut, STREAM, size) == STREAM[: 3 + 4 + 5]
        assert cut.end_lsn == 400
    assert cut.changes == 1 + 2 + 3


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("max_changes", "commits", "end"), [(1, 1, 110), (2, 2, 210), (3, 2, 210), (4, 3, 310)]
)
def test_the_limit_cuts_after_the_commit_that_reaches_it(
    size: int, max_changes: int, commits: int, end: int
) -> None:
    cut = BatchCut(Lsn(100), Lsn(10_000), Limits(max_changes=max_changes))
    taken = cut_messages(cut, STREAM, size)
    assert taken == STREAM[: sum(number + 2 for number in range(1, commits + 1))]
    assert (cut.end_lsn, cut.finished) == (end, True)


@pytest.mark.parametrize("size", SIZES)
def test_transactions_before_the_start_count_for_no_limit(size: int) -> None:
    cut = BatchCut(Lsn(210), Lsn(10_000), Limits(max_changes=3))
    taken = cut_messages(cut, STREAM, size)
    assert taken == STREAM[: 3 + 4 + 5]
    assert (cut.end_lsn, cut.changes) == (310, 3)


@pytest.mark.parametrize("size", SIZES)
def test_a_limit_that_is_not_reached_leaves_the_target(size: int) -> None:
    cut = BatchCut(Lsn(100), Lsn(10_000), Limits(max_changes=100, max_bytes=100_000))
    assert cut_messages(cut, STREAM, size) == STREAM
    assert (cut.end_lsn, cut.finished) == (10_000, False)


@pytest.mark.parametrize("size", SIZES)
def test_bytes_are_counted_over_whole_transactions(size: int) -> None:
    # Rows count; what stands around them, and what is announced to each connection anew, does not.
    first_bytes = sum(len(each) for each in STREAM[:3] if each[:1] in {b"I", b"U", b"D", b"T"})
    cut = BatchCut(Lsn(100), Lsn(10_000), Limits(max_bytes=first_bytes + 1))
    cut_messages(cut, STREAM, size)
    assert cut.end_lsn == 210
