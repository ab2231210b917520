"""F19, F32, F34, F37: the network fails between the package and the server; a retry finds what is there."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.capture.request import AFTER_APPLY
from airflow_provider_pgoutput.capture.stream import read, sql_connection, walsender
from airflow_provider_pgoutput.capture.stream.walsender import WalsenderStream
from airflow_provider_pgoutput.errors import SourceUnavailable
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

    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from quickstart.postgres import EmbeddedPostgres

#: What the server sends of an answer through SQL before it works on it, see ``sql_connection.py``.
WAITING_BYTES = 8_000


@pytest.fixture
def source(postgres_database: str, tmp_path: Path) -> Source:
    return new_source(postgres_database, tmp_path / "staging")


@pytest.fixture
def checkpoint(source: Source) -> Checkpoint:
    return fill(source)


@pytest.mark.parametrize(
    ("transport", "after_bytes"),
    [
        ("sql", WAITING_BYTES),
        ("sql", MIDDLE_BYTES),
        ("walsender", 0),
        ("walsender", MIDDLE_BYTES),
    ],
)
def test_f37_a_reset_ends_the_read_and_a_retry_reads_all(
    source: Source,
    checkpoint: Checkpoint,
    postgres_server: EmbeddedPostgres,
    transport: str,
    after_bytes: int,
) -> None:
    """F37, RST: while the server prepares its answer, and in the middle of the answer."""
    fault = Fault(Action.RESET, READING[transport], after_bytes)
    with Proxy(postgres_server.port, fault) as proxy, pytest.raises(SourceUnavailable) as refusal:
        source.stage(
            checkpoint=checkpoint,
            transport=transport,
            conninfo=proxy.conninfo(source.reader),
        )
    assert fault.struck.is_set()
    assert refusal.value.slot == source.slot_name
    expect_whole(source, checkpoint, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "fault",
    [
        Fault(Action.STALL, after_bytes=MIDDLE_BYTES, seconds=2),
        Fault(Action.SLOW, after_bytes=MIDDLE_BYTES, bytes_per_second=150_000),
    ],
    ids=["stall", "slow"],
)
def test_f37_a_slow_network_costs_time_only(
    source: Source,
    checkpoint: Checkpoint,
    postgres_server: EmbeddedPostgres,
    transport: str,
    fault: Fault,
) -> None:
    """F37: a stall that ends, and little bandwidth."""
    fault = Fault(
        fault.action,
        READING[transport],
        fault.after_bytes,
        seconds=fault.seconds,
        bytes_per_second=fault.bytes_per_second,
    )
    with Proxy(postgres_server.port, fault) as proxy:
        began = time.monotonic()
        batch = source.stage(
            checkpoint=checkpoint, transport=transport, conninfo=proxy.conninfo(source.reader)
        )
        assert time.monotonic() - began > 1
    assert fault.struck.is_set()
    assert keys(source, batch) == list(range(1, ROWS + 1))
    assert source.is_left_at(checkpoint.end_lsn, batch)


@pytest.mark.parametrize("action", [Action.HALF_OPEN, Action.STALL])
def test_f37_a_walsender_that_falls_silent_is_given_up(
    source: Source,
    checkpoint: Checkpoint,
    postgres_server: EmbeddedPostgres,
    monkeypatch: pytest.MonkeyPatch,
    action: Action,
) -> None:
    """F37: every kernel on the way answers, and nobody else; the wait is bounded."""
    monkeypatch.setattr(walsender, "SILENCE_SECONDS", 2.0)
    fault = Fault(action, READING["walsender"], MIDDLE_BYTES)
    with Proxy(postgres_server.port, fault) as proxy:
        began = time.monotonic()
        with pytest.raises(SourceUnavailable, match="has not said a word for 2 s") as refusal:
            source.stage(
                checkpoint=checkpoint,
                transport="walsender",
                conninfo=proxy.conninfo(source.reader, options="-c wal_sender_timeout=1s"),
            )
        assert time.monotonic() - began < 30
    assert refusal.value.slot == source.slot_name
    expect_whole(source, checkpoint, "walsender")


def test_f37_a_message_that_takes_long_to_arrive_is_no_silence(
    source: Source,
    checkpoint: Checkpoint,
    postgres_server: EmbeddedPostgres,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F37: one large value over a slow network, which is longer on its way than a silence may last."""
    monkeypatch.setattr(walsender, "SILENCE_SECONDS", 2.0)
    source.execute(f"INSERT INTO t VALUES ({ROWS + 1}, repeat('x', 1200000))")
    fault = Fault(Action.SLOW, READING["walsender"], MIDDLE_BYTES, bytes_per_second=300_000)
    with Proxy(postgres_server.port, fault) as proxy:
        batch = source.stage(
            checkpoint=checkpoint,
            transport="walsender",
            conninfo=proxy.conninfo(source.reader, options="-c wal_sender_timeout=1s"),
        )
    assert fault.struck.is_set()
    assert keys(source, batch) == list(range(1, ROWS + 2))


class TimeLimitExceeded(Exception):
    """What Airflow raises in a task past its ``execution_timeout``: from a signal, in the main thread."""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_f37_a_task_past_its_time_ends_on_a_silent_network(
    source: Source,
    checkpoint: Checkpoint,
    postgres_server: EmbeddedPostgres,
    monkeypatch: pytest.MonkeyPatch,
    transport: str,
) -> None:
    """F37: neither the read nor the request to cancel it gets an answer, and the task ends all the same."""
    monkeypatch.setattr(sql_connection, "_CANCEL_SECONDS", 1.0)
    monkeypatch.setattr(read, "_STOP_SECONDS", 1.0)

    def give_up(_number: int, _frame: object) -> None:
        # Whoever connects now, to cancel, is not heard either.
        proxy.is_deaf = True
        raise TimeLimitExceeded

    fault = Fault(Action.STALL, READING[transport], MIDDLE_BYTES)
    before = signal.signal(signal.SIGUSR1, give_up)
    try:
        with Proxy(postgres_server.port, fault) as proxy:

            def alarm() -> None:
                if fault.struck.wait(60):
                    os.kill(os.getpid(), signal.SIGUSR1)

            threading.Thread(target=alarm, daemon=True).start()
            with pytest.raises(TimeLimitExceeded):
                source.stage(
                    checkpoint=checkpoint,
                    transport=transport,
                    conninfo=proxy.conninfo(source.reader),
                )
    finally:
        signal.signal(signal.SIGUSR1, before)
    expect_whole(source, checkpoint, transport)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate that it signed itself, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    request = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    )
    files = "-keyout key.pem -out certificate.pem"
    subprocess.run(
        ["openssl", *request.split(), *files.split()],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    both = folder / "both.pem"
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "certificate.pem").read_bytes())
    return both


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_f37_a_flipped_bit_inside_tls_is_noticed(
    source: Source,
    checkpoint: Checkpoint,
    postgres_server: EmbeddedPostgres,
    certificate: Path,
    transport: str,
) -> None:
    """F37: no altered byte is staged; the connection ends, and the retry is worth it."""
    source.execute("UPDATE t SET b = repeat('y', 500)")
    # Nothing but the read has so many bytes, and markers cannot be seen inside TLS.
    fault = Fault(Action.FLIP, after_bytes=1_000_000, times=1000)
    with (
        Proxy(postgres_server.port, certificate=certificate) as tls,
        Proxy(tls.port, fault) as proxy,
    ):
        conninfo = proxy.conninfo(source.reader, sslmode="require")
        with pytest.raises(SourceUnavailable) as refusal:
            source.stage(checkpoint=checkpoint, transport=transport, conninfo=conninfo)
        assert fault.struck.is_set()
    assert "bad record mac" in str(refusal.value)
    source.wait_until_free()
    batch = source.stage(checkpoint=checkpoint, transport=transport)
    assert len(source.manifests()) == 2
    assert source.is_left_at(checkpoint.end_lsn, batch)
    assert len(keys(source, batch)) == 2 * ROWS


def test_f19_an_advance_whose_answer_is_lost_is_a_success_when_repeated(
    source: Source, checkpoint: Checkpoint, postgres_server: EmbeddedPostgres
) -> None:
    """F19: the server has moved the slot when the connection ends; the task cannot know, and asks again."""
    batch = source.stage(checkpoint=checkpoint, advance=AFTER_APPLY)
    fault = Fault(Action.RESET, b"pg_replication_slot_advance")
    with Proxy(postgres_server.port, fault) as proxy:
        conninfo = proxy.conninfo(source.reader)
        with pytest.raises(SourceUnavailable):
            advance_slot(conninfo, source.slot_name, batch.end_lsn)
        assert fault.struck.is_set()
        assert source.confirmed() == str(batch.end_lsn)
        assert advance_slot(conninfo, source.slot_name, batch.end_lsn) == batch.end_lsn
    source.execute("INSERT INTO t VALUES (0)")
    assert keys(source, source.stage(checkpoint=checkpoint_of(batch))) == [0]


def test_f19_an_advance_whose_request_is_lost_is_repeated(
    source: Source, checkpoint: Checkpoint, postgres_server: EmbeddedPostgres
) -> None:
    """F19, the other half: the server never heard of it."""
    batch = source.stage(checkpoint=checkpoint, advance=AFTER_APPLY)
    fault = Fault(Action.LOSE_REQUEST, b"pg_replication_slot_advance")
    with Proxy(postgres_server.port, fault) as proxy:
        conninfo = proxy.conninfo(source.reader)
        with pytest.raises(SourceUnavailable):
            advance_slot(conninfo, source.slot_name, batch.end_lsn)
        assert fault.struck.is_set()
        assert source.confirmed() == str(checkpoint.end_lsn)
        assert advance_slot(conninfo, source.slot_name, batch.end_lsn) == batch.end_lsn
    assert source.confirmed() == str(batch.end_lsn)


def replies(sent: bytes) -> list[tuple[int, int, int]]:
    """Received, flushed and applied LSN of each standby status update among what a client sent."""
    found = []
    place = sent.find(b"d\x00\x00\x00\x26r")
    while place >= 0:
        found.append(struct.unpack_from("!QQQ", sent, place + 6))
        place = sent.find(b"d\x00\x00\x00\x26r", place + 1)
    return found


def test_f32_a_slow_read_answers_in_time_and_confirms_nothing(
    source: Source, checkpoint: Checkpoint, postgres_server: EmbeddedPostgres
) -> None:
    """F32: the server ends a connection that says nothing for a second, and this one needs longer.

    A reader that is slow itself: ``tests/capture/stream/test_walsender.py``.
    """
    fault = Fault(Action.SLOW, READING["walsender"], bytes_per_second=120_000)
    with Proxy(postgres_server.port, fault) as proxy:
        batch = source.stage(
            checkpoint=checkpoint,
            transport="walsender",
            conninfo=proxy.conninfo(source.reader, options="-c wal_sender_timeout=1s"),
        )
        (sent,) = proxy.sent_by_clients(READING["walsender"])
    told = replies(sent)
    assert len(told) >= 3
    assert {(flushed, applied) for _, flushed, applied in told} == {(0, 0)}
    assert source.is_left_at(checkpoint.end_lsn, batch)
    assert keys(source, batch) == list(range(1, ROWS + 1))


def test_f34_a_keepalive_beyond_what_was_sent_confirms_nothing(
    source: Source, checkpoint: Checkpoint, postgres_server: EmbeddedPostgres
) -> None:
    """F34: the server says how far it has read; that we heard it is all that we answer."""
    with Proxy(postgres_server.port) as proxy:
        conninfo = proxy.conninfo(source.reader)
        stream = WalsenderStream(source.read(checkpoint.end_lsn, Lsn(2**62), conninfo=conninfo))
        source.execute("CREATE TABLE unpublished(a int)", "INSERT INTO unpublished VALUES (1)")
        (beyond,) = source.execute("SELECT pg_current_wal_flush_lsn()::text")[0]
        deadline = time.monotonic() + 30
        told: list[tuple[int, int, int]] = []
        while not told or max(told)[0] < Lsn.parse(beyond):
            assert time.monotonic() < deadline
            time.sleep(0.05)
            told = [each for sent in proxy.sent_by_clients(b"START_REPL") for each in replies(sent)]
        stream.close()
    assert {(flushed, applied) for _, flushed, applied in told} == {(0, 0)}
    expect_whole(source, checkpoint, "walsender")
