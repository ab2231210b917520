"""What the tests of the source's faults share: a slot in which rows wait, and what a retry must find.

Judged by what is staged, compared with the source, and by where the slot stands. What is not here: the lake;
a batch that was staged after a fault is one like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.capture.pipeline_support import Source, checkpoint_of

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

ROWS = 3000
#: What the connection sends that reads the slot.
READING = {
    "sql": b"pg_logical_slot_peek_binary_changes",
    "walsender": b"START_REPLICATION",
}
TRANSPORTS = tuple(READING)
#: In the middle of the answer, which has about 350 kB.
MIDDLE_BYTES = 150_000


def new_source(conninfo: str, staging: Path) -> Source:
    """A published table without rows in an empty database, and a slot name that is free."""
    found = Source(conninfo, f"faults_{conninfo.rpartition('/')[2]}", staging)
    found.execute("CREATE TABLE t(a int PRIMARY KEY, b text)", "CREATE PUBLICATION p FOR TABLE t")
    return found


def fill(source: Source) -> Checkpoint:
    """Make the slot, then ``ROWS`` rows in three transactions; return the lake's checkpoint before them."""
    found = checkpoint_of(source.stage())
    third = ROWS // 3
    source.execute(
        *(
            f"INSERT INTO t SELECT g, repeat('x', 90) FROM generate_series({n * third + 1},"
            f" {(n + 1) * third}) g"
            for n in range(3)
        )
    )
    return found


def keys(source: Source, batch: Manifest) -> list[int]:
    """Keys of the staged changes, in stream order."""
    return [row["a"] for row in source.changes(batch, "public.t")] if batch.tables else []


def expect_whole(source: Source, checkpoint: Checkpoint, transport: str) -> None:
    """The retry, when all works again: nothing of a failed attempt is left, and no row is missing."""
    assert len(source.manifests()) == 1, "a failed attempt sealed a batch"
    assert source.confirmed() == str(checkpoint.end_lsn), "a failed attempt moved the slot"
    source.wait_until_free()
    batch = source.stage(checkpoint=checkpoint, transport=transport)
    assert keys(source, batch) == list(range(1, ROWS + 1))
