"""How fast the decoder is, without server and staging: rows per second over messages in memory.

The messages are those of the narrow (W1) and the wide (W2) workload, read once from the server and decoded
in chunks as the pipeline does, with the garbage collector off, as there. One core does it.
"""

from __future__ import annotations

import gc
import itertools
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.stream.transport import CHUNK_BYTES
from benchmarks.workloads import PUBLICATION, WORKLOADS, Source, backlog

if TYPE_CHECKING:
    from collections.abc import Callable

#: Part of the workload at scale 1 that is decoded: it has to fit into memory.
SHARES = {"W1": 0.1, "W2": 0.25}
_PEEK = (
    "SELECT data FROM pg_logical_slot_peek_binary_changes("
    "%s, %s, NULL, 'proto_version', '1', 'publication_names', %s)"
)


def measure_decoder(
    source: Source, scale: float, repetitions: int, report: Callable[[str], None]
) -> dict[str, Any]:
    """Rows and bytes per second by workload; the fastest run counts, for nothing else runs in it."""
    found: dict[str, Any] = {}
    for name, share in SHARES.items():
        with backlog(source, WORKLOADS[name], scale * share) as waiting:
            stream = _record(source, waiting.slot, waiting.end_lsn)
        chunks = _cut(stream)
        runs = [_decode(chunks) for _ in range(max(5, repetitions))]
        rows, seconds = min(runs, key=lambda run: run[1])
        assert rows == waiting.rows, "the server counted otherwise"
        found[name] = {
            "rows": rows,
            "rows_per_s": rows / seconds,
            "bytes_per_s": int(stream.offsets[-1]) / seconds,
            "seconds": [each for _, each in runs],
        }
        report(f"decoder of {name}: {rows:,} rows in {seconds:.3f} s")
    return found


def _record(source: Source, slot: str, end_lsn: str) -> MessageChunk:
    """All messages of a backlog."""
    with source.connection.cursor(binary=True) as cursor:
        rows = cursor.execute(_PEEK.encode(), (slot, end_lsn, PUBLICATION))
        bodies = [data for (data,) in rows]
    offsets = np.cumsum([0, *map(len, bodies)], dtype=np.int64)
    return MessageChunk(np.frombuffer(b"".join(bodies), dtype=np.uint8), offsets)


def _cut(stream: MessageChunk) -> list[MessageChunk]:
    """Chunks of whole messages."""
    total = int(stream.offsets[-1])
    edges = np.searchsorted(stream.offsets, np.arange(0, total, CHUNK_BYTES))
    edges = np.unique(np.append(edges, len(stream.offsets) - 1))
    return [
        MessageChunk(stream.data, stream.offsets[first : last + 1])
        for first, last in itertools.pairwise(edges.tolist())
    ]


def _decode(chunks: list[MessageChunk]) -> tuple[int, float]:
    """Row changes and seconds of one decoding."""
    gc.collect()
    gc.disable()
    try:
        decoder, rows = Decoder(), 0
        started = time.perf_counter()
        for chunk in chunks:
            rows += sum(len(block) for block in decoder.decode(chunk))
        return rows, time.perf_counter() - started
    finally:
        gc.enable()
