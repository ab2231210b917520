"""The walsender transport: replies in time, an end that comes at once, and a slot that stays put."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.stream.walsender import WalsenderStream
from airflow_provider_pgoutput.errors import SlotBusy, SourceUnavailable

if TYPE_CHECKING:
    from quickstart.postgres import EmbeddedPostgres
    from tests.capture.pipeline_support import Source


def flush_lsn(source: Source) -> Lsn:
    return Lsn.parse(source.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])


def test_a_slow_reader_survives_a_short_wal_sender_timeout(source: Source) -> None:
    source.make_slot()
    start = Lsn.parse(str(source.confirmed()))
    source.execute(
        *(
            f"INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series({n}0001, {n}5000) g"
            for n in range(1, 7)
        )
    )
    conninfo = f"{source.conninfo}?options=-c%20wal_sender_timeout%3D1s"
    stream = WalsenderStream(source.read(start, flush_lsn(source), conninfo=conninfo))
    kinds: Counter[str] = Counter()
    try:
        for number, chunk in enumerate(stream.chunks()):
            kinds.update(map(chr, chunk.data[chunk.offsets[:-1]].tolist()))
            # Slow to the last chunk: the reader then waits for us after the stream has ended.
            time.sleep(4 if number == 0 else 0.6)
    finally:
        stream.close()
    # The relation comes again when the server's catalog cache was cleared, as by ANALYZE.
    assert kinds.pop("R") >= 1
    assert kinds == {"I": 30_000, "B": 6, "C": 6}
    assert source.confirmed() == str(start)


def test_a_quiet_server_ends_the_read_at_once(source: Source) -> None:
    source.make_slot()
    start = Lsn.parse(str(source.confirmed()))
    source.execute("CREATE TABLE u(a int)", "INSERT INTO u SELECT generate_series(1, 1000)")
    began = time.monotonic()
    stream = WalsenderStream(source.read(start, flush_lsn(source)))
    assert sum(len(chunk.offsets) - 1 for chunk in stream.chunks()) == 0
    stream.close()
    # By itself the server says where it is after half of its timeout, 30 s.
    assert time.monotonic() - began < 15
    (active,) = source.execute(
        f"SELECT active FROM pg_replication_slots WHERE slot_name = '{source.slot_name}'"
    )[0]
    assert not active


def test_a_busy_server_does_not_keep_the_read_alive(source: Source) -> None:
    source.make_slot()
    start = Lsn.parse(str(source.confirmed()))
    target = flush_lsn(source)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            source.execute(f"INSERT INTO t VALUES ({number})")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        began = time.monotonic()
        stream = WalsenderStream(source.read(start, target))
        for _ in stream.chunks():
            pass
        stream.close()
        assert time.monotonic() - began < 30
    finally:
        stop.set()
        writer.join()


def test_closing_early_frees_the_slot(source: Source) -> None:
    source.make_slot()
    start = Lsn.parse(str(source.confirmed()))
    stream = WalsenderStream(source.read(start, Lsn(2**62)))
    with pytest.raises(SlotBusy):
        WalsenderStream(source.read(start, Lsn(2**62)))
    stream.close()
    stream.close()
    WalsenderStream(source.read(start, Lsn(2**62))).close()


def test_a_reader_does_not_hold_up_the_shutdown_of_the_server(
    source: Source, postgres_server: EmbeddedPostgres
) -> None:
    source.make_slot()
    start = Lsn.parse(str(source.confirmed()))
    source.execute("INSERT INTO t VALUES (1)")
    stream = WalsenderStream(source.read(start, Lsn(2**62)))
    chunks = stream.chunks()
    next(chunks)
    began = time.monotonic()
    postgres_server.stop()
    assert time.monotonic() - began < 30
    with pytest.raises(SourceUnavailable):
        for _ in chunks:
            pass
    stream.close()
    postgres_server.start()


def test_a_killed_reader_leaves_a_slot_that_can_be_read(source: Source) -> None:
    source.make_slot()
    start = Lsn.parse(str(source.confirmed()))
    program = (
        "import sys; from airflow_provider_pgoutput.batch.lsn import Lsn;"
        "from airflow_provider_pgoutput.capture.stream.options import PluginOptions;"
        "from airflow_provider_pgoutput.capture.stream.transport import SlotRead;"
        "from airflow_provider_pgoutput.capture.stream.walsender import WalsenderStream as W;"
        "start = Lsn(int(sys.argv[3]));"
        "W(SlotRead(sys.argv[1], sys.argv[2], PluginOptions(('p',)), start, Lsn(2**62)));"
        "print('reading', flush=True); sys.stdin.read()"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", program, source.conninfo, source.slot_name, str(int(start))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"reading\n"
    reader.kill()
    reader.communicate()
    source.execute("INSERT INTO t VALUES (1)")
    deadline = time.monotonic() + 30
    while True:
        try:
            stream = WalsenderStream(source.read(start, flush_lsn(source)))
        except SlotBusy:
            assert time.monotonic() < deadline
            time.sleep(0.1)
            continue
        break
    assert sum(len(chunk.offsets) - 1 for chunk in stream.chunks()) == 4
    stream.close()


def test_a_reader_that_waits_can_be_stopped(source: Source) -> None:
    source.make_slot()
    start = Lsn.parse(str(source.confirmed()))
    stream = WalsenderStream(source.read(start, Lsn(2**62)))
    reader = threading.Thread(target=lambda: list(stream.chunks()))
    reader.start()
    time.sleep(0.3)
    stream.stop()
    reader.join(timeout=10)
    assert not reader.is_alive()
    stream.close()


def test_an_endless_streamed_transaction_does_not_keep_the_read_alive(source: Source) -> None:
    """A bulk load that began before the read and goes on behind its target."""
    source.make_slot()
    start = Lsn.parse(str(source.confirmed()))
    database = source.execute("SELECT current_database()")[0][0]
    source.execute(f"ALTER DATABASE {database} SET logical_decoding_work_mem = '64kB'")
    stopping = threading.Event()

    def load() -> None:
        with psycopg.connect(source.conninfo) as session:
            for number in itertools.count():
                if stopping.is_set():
                    session.rollback()
                    return
                first = number * 5000
                session.execute(
                    f"INSERT INTO t SELECT g, repeat('x', 50) FROM generate_series({first + 1},"
                    f" {first + 5000}) g".encode()
                )

    loader = threading.Thread(target=load)
    loader.start()
    try:
        time.sleep(1)
        read = source.read(start, flush_lsn(source), proto_version=2, streaming="on")
        stream = WalsenderStream(read)
        began = time.monotonic()
        assert sum(len(chunk.offsets) - 1 for chunk in stream.chunks()) == 0
        assert time.monotonic() - began < 30
        assert not stopping.is_set()
        stream.close()
    finally:
        stopping.set()
        loader.join()
