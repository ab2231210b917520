"""Joins chunks of many tables, so that each table has enough rows in what is decoded at once.

The decoder makes a block for each table of a chunk. A block has a cost of its own, however few rows it has.
With one table a small chunk is best, because it stays in the processor's cache. Example of many tables: 400
tables take turns. A chunk of 3 MiB has 8 KiB of each table, so most of the time would be the cost of blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock

#: Bytes of messages for each block. To decode them takes about as long as the block's own cost.
_BLOCK_BYTES: Final = 32 << 10
#: Most bytes that wait, because they are in memory.
_MOST_BYTES: Final = 12 << 20

_RELATION = ord("R")


class Gathering:
    """Keeps chunks until they are worth decoding.

    :param decode: takes a chunk and returns its blocks.
    """

    def __init__(self, decode: Callable[[MessageChunk], list[ChangeBlock]]) -> None:
        self._decode = decode
        self._waiting: list[MessageChunk] = []
        self._bytes = 0
        self._announced = 0
        #: Number of blocks that were decoded last.
        self._blocks = 0

    def add(self, chunk: MessageChunk) -> list[ChangeBlock]:
        """Take a chunk. If enough bytes wait now, return the blocks of all that wait; otherwise none."""
        if len(chunk.offsets) < 2:
            return []
        tags = chunk.data[chunk.offsets[:-1]]
        self._announced += int(np.count_nonzero(tags == _RELATION))
        self._waiting.append(chunk)
        self._bytes += int(chunk.offsets[-1] - chunk.offsets[0])
        # A table is announced before its first row. Later the last blocks say how many tables take turns.
        blocks = max(self._blocks, self._announced)
        return self.rest() if self._bytes >= min(blocks * _BLOCK_BYTES, _MOST_BYTES) else []

    def rest(self) -> list[ChangeBlock]:
        """The blocks of all chunks that wait."""
        if not self._waiting:
            return []
        waiting, self._waiting = self._waiting, []
        self._bytes = self._announced = 0
        blocks = self._decode(_joined(waiting))
        self._blocks = len(blocks)
        return blocks


def _joined(chunks: list[MessageChunk]) -> MessageChunk:
    """One chunk with the messages of all."""
    if len(chunks) == 1:
        return chunks[0]
    data = [each.data[int(each.offsets[0]) : int(each.offsets[-1])] for each in chunks]
    starts = np.cumsum([0, *(len(each) for each in data)])
    offsets = [
        each.offsets[:-1] - each.offsets[0] + start
        for each, start in zip(chunks, starts.tolist(), strict=False)
    ]
    return MessageChunk(np.concatenate(data), np.concatenate([*offsets, starts[-1:]]))
