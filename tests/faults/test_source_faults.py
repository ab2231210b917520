"""F15, F33, F35, F36, F45: the source restarts, refuses, is busy elsewhere, or is read by two at once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.capture.request import AFTER_STAGE
from airflow_provider_pgoutput.errors import SlotBusy, SourceUnavailable
from tests import setting
from tests.capture.pipeline_support import Source, checkpoint_of
from tests.faults.network import Action, Fault, Proxy
from tests.faults.waiting_slot import (
    MIDDLE_BYTES,
    READING,
    ROWS,
    TRANSPORTS,
    expect_whole,
    fill,
    keys,
    new_source,
)

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from quickstart.postgres import EmbeddedPostgres


@pytest.fixture
def source(postgres_database: str, tmp_path: Path) -> Source:
    return new_source(postgres_database, tmp_path / "staging")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_f35_f36_a_restart_in_the_middle_of_a_read(
    source: Source, postgres_server: EmbeddedPostgres, transport: str
) -> None:
    """F35: the run fails and the next one reads the same. F36: nor does the server wait for us."""
    checkpoint = fill(source)
    fault = Fault(Action.SLOW, READING[transport], MIDDLE_BYTES, bytes_per_second=40_000)
    with Proxy(postgres_server.port, fault) as proxy, ThreadPoolExecutor(1) as worker:
        run = worker.submit(
            source.stage,
            checkpoint=checkpoint,
            transport=transport,
            conninfo=proxy.conninfo(source.reader),
        )
        assert fault.struck.wait(30)
        began = time.monotonic()
        postgres_server.stop("fast")
        assert time.monotonic() - began < 20
        with pytest.raises(SourceUnavailable) as refusal:
            run.result(60)
    assert refusal.value.slot == source.slot_name
    postgres_server.start()
    expect_whole(source, checkpoint, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_f33_wal_of_unpublished_tables_is_let_go(source: Source, transport: str) -> None:
    """F33: nothing is sent for a long time, and both positions of the slot move on all the same."""
    batch = source.stage()
    # A vacuum of what was inserted would write as much WAL after the checkpoint.
    source.execute("CREATE TABLE busy(a int, b text) WITH (autovacuum_enabled = off)")
    slot = f"pg_replication_slots WHERE slot_name = '{source.slot_name}'"
    restarts = []
    for _ in range(3):
        source.execute(
            "INSERT INTO busy SELECT g, repeat('x', 1000) FROM generate_series(1, 5000) g",
            "CHECKPOINT",
        )
        batch = source.stage(checkpoint=checkpoint_of(batch), transport=transport)
        assert batch.changes == 0
        assert advance_slot(source.reader, source.slot_name, batch.end_lsn) == batch.end_lsn
        restarts.append(Lsn.parse(source.execute(f"SELECT restart_lsn::text FROM {slot}")[0][0]))
    assert restarts == sorted(set(restarts)), "restart_lsn stays, so the server keeps all WAL"
    # What a round writes is 5 MB; the server keeps what came since the checkpoint before the last read.
    assert batch.end_lsn - restarts[-1] < 1 << 20


def stage_or_busy(
    source: Source, checkpoint: Checkpoint, transport: str, starting: threading.Barrier
) -> Manifest | None:
    starting.wait()
    try:
        return source.stage(checkpoint=checkpoint, transport=transport)
    except SlotBusy:
        return None


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_f15_of_two_runs_at_once_each_is_right_or_busy(source: Source, transport: str) -> None:
    """F15: whatever the two do, what they seal is exact, and 55006 is no error in the data."""
    checkpoint, expected = fill(source), list(range(1, ROWS + 1))
    for number in range(3):
        starting = threading.Barrier(2)
        with ThreadPoolExecutor(2) as workers:
            runs = [
                workers.submit(stage_or_busy, source, checkpoint, transport, starting)
                for _ in range(2)
            ]
        batches = [batch for run in runs if (batch := run.result(60)) is not None]
        for batch in batches:
            assert keys(source, batch) == expected
        ends = [str(each.end_lsn) for each in batches]
        moved = ends if setting.advance == AFTER_STAGE else []
        assert source.confirmed() in {str(checkpoint.end_lsn), *moved}
        batch = source.stage(checkpoint=checkpoint, transport=transport)
        assert keys(source, batch) == expected
        checkpoint = checkpoint_of(batch)
        advance_slot(source.reader, source.slot_name, batch.end_lsn)
        source.execute(f"INSERT INTO t VALUES ({ROWS + number + 1})")
        expected = [ROWS + number + 1]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_f45_a_source_that_takes_no_more_connections(
    source: Source, postgres_server: EmbeddedPostgres, transport: str
) -> None:
    """F45: whichever connection of a run is refused, nothing is sealed and nothing moves."""
    checkpoint = fill(source)
    for admitted in range(9):
        with Proxy(postgres_server.port) as proxy:
            proxy.admits = admitted
            conninfo = proxy.conninfo(source.reader)
            try:
                batch = source.stage(checkpoint=checkpoint, transport=transport, conninfo=conninfo)
            except SourceUnavailable:
                assert len(source.manifests()) == 1
                assert source.confirmed() == str(checkpoint.end_lsn)
                continue
        break
    assert admitted >= 2, "a run has a session and a reader at least"
    assert keys(source, batch) == list(range(1, ROWS + 1))
    with Proxy(postgres_server.port) as proxy:
        proxy.admits = 0
        with pytest.raises(SourceUnavailable):
            advance_slot(proxy.conninfo(source.reader), source.slot_name, batch.end_lsn)
    assert source.is_left_at(checkpoint.end_lsn, batch)
