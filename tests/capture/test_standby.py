"""A pipeline that reads from a standby, which follows its primary over a promotion, and is promoted itself.

What is not here: what a run finds on a promoted server in all its cases (``test_timelines.py``).

Source: https://www.postgresql.org/docs/current/logicaldecoding-explanation.html (slots on standbys)
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.errors import SourceUnavailable, WrongSlot
from quickstart.postgres import EmbeddedPostgres
from tests.capture.pipeline_support import Source, checkpoint_of
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from airflow_provider_pgoutput.batch.manifest import Manifest


@pytest.fixture
def primary(server_home: Path, postgres_server: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    if postgres_server.major < 16:
        pytest.skip("the server has no logical slots on standbys")
    with started(server_home / "primary", postgres_server) as found:
        yield found


@pytest.fixture
def standby(server_home: Path, primary: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    with following(primary, server_home / "standby") as found:
        yield found


@contextlib.contextmanager
def started(home: Path, like: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """A new server of the same version as another one."""
    found = EmbeddedPostgres(home, installation=like.installation)
    try:
        yield found.start()
    finally:
        found.destroy()


@contextlib.contextmanager
def following(primary: EmbeddedPostgres, home: Path, **settings: str) -> Iterator[EmbeddedPostgres]:
    """A server that follows another one, to whatever timeline that goes."""
    # What the copied file of passwords lets in over the network, lets the standby in, too.
    hba = primary.data_directory / "pg_hba.conf"
    hba.write_text(hba.read_text() + "host replication all 127.0.0.1/32 scram-sha-256\n")
    primary.stop()
    shutil.copytree(primary.home, home)
    primary.start()
    upstream = psycopg.conninfo.make_conninfo(primary.conninfo(), dbname="")
    found = EmbeddedPostgres(
        home,
        installation=primary.installation,
        settings={
            "primary_conninfo": upstream,
            "hot_standby_feedback": "on",
            "wal_receiver_status_interval": "1",
            "wal_retrieve_retry_interval": "100ms",
            **settings,
        },
    )
    owner = primary.data_directory.stat()
    for path in (found.data_directory, *found.data_directory.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    become_standby(found)
    try:
        yield found.start()
    finally:
        found.destroy()


def become_standby(server: EmbeddedPostgres) -> None:
    """Have a server that is stopped start as a standby."""
    owner = server.data_directory.stat()
    signal = server.data_directory / "standby.signal"
    signal.touch()
    os.chown(signal, owner.st_uid, owner.st_gid)


def promote(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as session:
        assert session.execute("SELECT pg_promote()").fetchone() == (True,)


@contextlib.contextmanager
def snapshots_logged(primary: Source) -> Iterator[None]:
    """A slot on a standby begins where the primary notes which transactions run, which may take 15 s."""
    done = threading.Event()

    def log() -> None:
        while not done.wait(0.2):
            primary.execute("SELECT pg_log_standby_snapshot()")

    thread = threading.Thread(target=log)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def replayed(primary: Source, standby: Source) -> None:
    """Wait until the standby is where the primary is."""
    at = primary.execute("SELECT pg_current_wal_flush_lsn()")[0][0]
    deadline = time.monotonic() + 60
    while standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{at}'") != [(True,)]:
        assert time.monotonic() < deadline, "the standby does not follow"
        time.sleep(0.05)


def keys(source: Source, batch: Manifest) -> list[int]:
    return [row["a"] for row in source.changes(batch, "public.t")]


@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_a_standby_is_read_over_a_promotion_of_its_primary_and_its_own(
    primary: EmbeddedPostgres, standby: EmbeddedPostgres, tmp_path: Path, transport: str
) -> None:
    """C98: with its slot; the timeline is the one that is replayed, not that of the last restart point."""
    first = Source(primary.conninfo(), "on_standby", tmp_path / "staging")
    source = dataclasses.replace(first, conninfo=standby.conninfo())
    reader_conninfo(primary.conninfo())
    first.execute(
        "CREATE TABLE t (a int PRIMARY KEY, b text)",
        "CREATE PUBLICATION p FOR TABLE t",
        "INSERT INTO t VALUES (1, 'copied')",
    )
    replayed(first, source)
    with snapshots_logged(first):
        batch = source.stage(transport=transport, initial_copy="always")
    assert [row["a"] for row in source.copied(batch, "public.t")] == [1]
    lake = checkpoint_of(batch)

    primary.stop()
    become_standby(primary)
    primary.start()
    promote(primary)
    first.execute("INSERT INTO t VALUES (2, 'second timeline')")
    replayed(first, source)
    known = source.execute("SELECT timeline_id FROM pg_control_checkpoint()")
    batch = source.stage(transport=transport, checkpoint=lake)
    assert (keys(source, batch), batch.timeline, known) == ([2], 2, [(1,)])
    lake = dataclasses.replace(checkpoint_of(batch), timeline=batch.timeline)
    assert advance_slot(source.reader, "on_standby", lake.end_lsn, timeline=2) >= lake.end_lsn

    first.execute("INSERT INTO t VALUES (3, 'later')")
    replayed(first, source)
    batch = source.stage(transport=transport, checkpoint=lake)
    assert keys(source, batch) == [3]
    lake = dataclasses.replace(checkpoint_of(batch), timeline=batch.timeline)
    # One that was started again may have less for a moment than the lake: to be tried again.
    ahead = dataclasses.replace(lake, end_lsn=Lsn(lake.end_lsn + 0x1000000))
    with pytest.raises(SourceUnavailable, match="standby") as behind:
        source.stage(transport=transport, checkpoint=ahead)
    assert behind.value.lsn == str(ahead.end_lsn)
    with pytest.raises(SourceUnavailable, match="standby"):
        advance_slot(source.reader, "on_standby", ahead.end_lsn, timeline=2)

    primary.stop()
    promote(standby)
    source.execute("INSERT INTO t VALUES (4, 'third timeline')")
    batch = source.stage(transport=transport, checkpoint=lake)
    assert (keys(source, batch), batch.timeline) == ([4], 3)


def test_an_idle_primary_tells_its_standby_up_to_when_it_has_all(
    primary: EmbeddedPostgres, standby: EmbeddedPostgres, tmp_path: Path
) -> None:
    first = Source(primary.conninfo(), "on_standby", tmp_path / "staging")
    second = dataclasses.replace(first, conninfo=standby.conninfo())
    first.execute("CREATE TABLE t (a int PRIMARY KEY)", "CREATE ROLE someone")
    replayed(first, second)
    committed = second.execute("SELECT pg_last_xact_replay_timestamp()")[0][0]
    later = first.execute("SELECT clock_timestamp()")[0][0]
    # It writes WAL without a commit. So the primary speaks at once, and not after half a minute.
    first.execute("SELECT pg_switch_wal()")
    deadline = time.monotonic() + 60
    while not (found := server_time(standby.conninfo())) or found < later:
        assert time.monotonic() < deadline, "the standby does not say up to when it has all"
        time.sleep(0.05)
    assert second.execute("SELECT pg_last_xact_replay_timestamp()") == [(committed,)]
    assert server_time(standby.conninfo(), "someone") == committed


def server_time(conninfo: str, role: str = "postgres") -> datetime | None:
    with sessions.connect(conninfo) as session:
        session.execute(f"SET ROLE {role}")
        return read_server(session, conninfo).time


def test_a_slot_that_is_synchronised_from_a_primary_is_refused(
    primary: EmbeddedPostgres, standby: EmbeddedPostgres, tmp_path: Path
) -> None:
    """B07: it serves after a promotion only, and then goes on where the primary's was."""
    if primary.major < 17:
        pytest.skip("the server synchronises no slots")
    first = Source(primary.conninfo(), "synchronised", tmp_path / "staging")
    source = dataclasses.replace(first, conninfo=standby.conninfo())
    reader_conninfo(primary.conninfo())
    first.execute(
        "CREATE TABLE t (a int PRIMARY KEY, b text)",
        "CREATE PUBLICATION p FOR TABLE t",
        "SELECT pg_create_physical_replication_slot('a_standby')",
    )
    lake = checkpoint_of(first.stage(failover=True))
    standby.stop()
    standby.settings["primary_slot_name"] = "a_standby"
    # To read the slots it needs a database, too.
    standby.settings["primary_conninfo"] = primary.conninfo()
    standby.start()
    synchronised(first, source)
    with pytest.raises(WrongSlot, match="synchronised from a primary"):
        source.stage(checkpoint=lake)
    with pytest.raises(WrongSlot, match="synchronised from a primary"):
        advance_slot(source.reader, first.slot_name, Lsn(lake.end_lsn + 1))

    primary.stop()
    promote(standby)
    source.execute("INSERT INTO t VALUES (1, 'promoted')")
    assert keys(source, source.stage(checkpoint=lake)) == [1]


def synchronised(primary: Source, standby: Source) -> None:
    """Wait until the standby has the slot for good, which it has when it is as far as the primary's."""
    query = f"SELECT temporary FROM pg_replication_slots WHERE slot_name = '{standby.slot_name}' AND synced"
    deadline = time.monotonic() + 60
    while standby.execute(query) != [(False,)]:
        assert time.monotonic() < deadline, "the standby does not synchronise the slot"
        primary.execute("SELECT pg_log_standby_snapshot()")
        replayed(primary, standby)
        standby.execute("SELECT pg_sync_replication_slots()")
