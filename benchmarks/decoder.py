"""How fast the decoder is, without server and staging: ``python benchmarks/decoder.py``.

Starts a PostgreSQL 18, lets it make the narrow (W1) and wide (W2) changes of ``workloads.sql``, reads
their messages once into memory, and decodes them in chunks as the pipeline does, several times over.
The garbage collector is off, as in the pipeline. Printed are row changes per second of the fastest run.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import tempfile
import time
from pathlib import Path

import numpy as np
import psycopg

from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.quickstart.binaries import find_installation
from airflow_provider_pgoutput.quickstart.postgres import EmbeddedPostgres

WORKLOADS = Path(__file__).with_name("workloads.sql")
SETTINGS = {"fsync": "off", "shared_buffers": "512MB", "jit": "off", "autovacuum": "off"}
PEEK = (
    "SELECT data FROM pg_logical_slot_peek_binary_changes("
    "'bench', NULL, NULL, 'proto_version', '1', 'publication_names', 'pub')"
)


def record(conninfo: str, call: str) -> MessageChunk:
    """Run a workload and return all its messages."""
    with psycopg.connect(conninfo, autocommit=True) as session:
        session.execute("SELECT pg_create_logical_replication_slot('bench', 'pgoutput')")
        session.execute(call)
        with session.cursor(binary=True) as cursor:
            bodies = [data for (data,) in cursor.execute(PEEK)]
        session.execute("SELECT pg_drop_replication_slot('bench')")
    offsets = np.cumsum([0, *map(len, bodies)], dtype=np.int64)
    return MessageChunk(np.frombuffer(b"".join(bodies), dtype=np.uint8), offsets)


def cut(stream: MessageChunk, chunk_bytes: int) -> list[MessageChunk]:
    """Cut a stream into chunks of whole messages."""
    total = int(stream.offsets[-1])
    edges = np.searchsorted(stream.offsets, np.arange(0, total, chunk_bytes))
    edges = np.unique(np.append(edges, len(stream.offsets) - 1))
    return [
        MessageChunk(stream.data, stream.offsets[first : last + 1])
        for first, last in itertools.pairwise(edges.tolist())
    ]


def decode(chunks: list[MessageChunk]) -> tuple[int, float]:
    """Decode all chunks; return row changes and seconds."""
    decoder = Decoder()
    rows = 0
    started = time.perf_counter()
    for chunk in chunks:
        rows += sum(len(block) for block in decoder.decode(chunk))
    return rows, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transactions", type=int, default=200, help="of 1000 changes each")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--chunk-mib", type=float, nargs="+", default=[1, 2, 4, 8])
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="pgoutput-benchmark-"))
    server = EmbeddedPostgres(home, installation=find_installation(18), settings=SETTINGS)
    try:
        server.start()
        with psycopg.connect(server.conninfo(), autocommit=True) as session:
            session.execute(WORKLOADS.read_bytes())
        streams = {
            "W1 narrow, 5 columns": record(
                server.conninfo(), f"CALL w1({arguments.transactions}, 1)"
            ),
            "W2 wide, 30 columns": record(
                server.conninfo(), f"CALL w2({arguments.transactions // 2}, 1)"
            ),
        }
    finally:
        server.destroy()
    gc.disable()
    for name, stream in streams.items():
        for mebibytes in arguments.chunk_mib:
            chunks = cut(stream, int(mebibytes * (1 << 20)))
            runs = [decode(chunks) for _ in range(arguments.repeat)]
            rows, seconds = min(runs, key=lambda run: run[1])
            megabytes = stream.offsets[-1] / 1e6
            print(
                f"{name}: {rows} changes, {megabytes:.0f} MB, chunks of {mebibytes} MiB: "
                f"{rows / seconds / 1e6:.2f} M/s, {megabytes / seconds:.0f} MB/s"
            )


if __name__ == "__main__":
    main()
