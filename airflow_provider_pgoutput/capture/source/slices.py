"""Where a slice of a stream ends, and what of a longer one comes past that. Whole transactions only.

The server may end a slice after a commit, or after a logical message that belongs to no transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.messages import (
    parse_begin,
    parse_commit,
    parse_logical_message,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.batch.lsn import Lsn

_BEGIN, _COMMIT, _MESSAGE = ord("B"), ord("C"), ord("M")


def last_end(chunk: MessageChunk) -> Lsn | None:
    """Where the last transaction of the chunk ends, or a later message that belongs to none."""
    tags, alone = _tags(chunk)
    ends = np.flatnonzero((tags == _COMMIT) | alone)
    if len(ends) == 0:
        return None
    body = _body(chunk, int(ends[-1]))
    return parse_commit(body).end_lsn if body[:1] == b"C" else parse_logical_message(body).lsn


def past(reached: Lsn, chunks: Iterable[MessageChunk]) -> Iterator[MessageChunk]:
    """A stream without what ends at ``reached`` or before, which was handed over already.

    It is the same stream, so whoever got the beginning knows the relations that were announced in it.
    """
    started = False
    for chunk in chunks:
        if started:
            yield chunk
            continue
        tags, alone = _tags(chunk)
        for index in np.flatnonzero((tags == _BEGIN) | alone).tolist():
            body = _body(chunk, index)
            if body[:1] == b"B":
                started = parse_begin(body).final_lsn >= reached
            else:
                started = parse_logical_message(body).lsn > reached
            if started:
                offsets = chunk.offsets[index:]
                yield MessageChunk(chunk.data[int(offsets[0]) :], offsets - offsets[0])
                break


def _tags(chunk: MessageChunk) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """The first byte of each message, and which are logical messages that belong to no transaction."""
    starts = chunk.offsets[:-1]
    tags = chunk.data[starts]
    flags = chunk.data[np.minimum(starts + 1, len(chunk.data) - 1)]
    return tags, (tags == _MESSAGE) & (flags == 0)


def _body(chunk: MessageChunk, index: int) -> bytes:
    return chunk.data[chunk.offsets[index] : chunk.offsets[index + 1]].tobytes()
