"""What may end a slot before its next run is said, and one that cannot be read is refused by its reason."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.slot.facts import SlotFacts
from airflow_provider_pgoutput.capture.slot.replication_slot import check_slot, check_wal_level
from airflow_provider_pgoutput.capture.slot.warnings import warn_of_dangers
from airflow_provider_pgoutput.capture.source.catalog import Server
from airflow_provider_pgoutput.capture.source.publications import (
    Publication,
    warn_of_missing_operations,
)
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    PgoutputError,
    SlotBusy,
    SlotLost,
    WrongSlot,
)
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from quickstart.postgres import EmbeddedPostgres
    from tests.capture.pipeline_support import Source

SERVER = Server(180006, "7", 1, "shop", Lsn(100), "logical")
GOOD = SlotFacts(
    name="s",
    plugin="pgoutput",
    slot_type="logical",
    database="shop",
    temporary=False,
    active_pid=None,
    confirmed_flush_lsn=Lsn(50),
    restart_lsn=Lsn(40),
    wal_status="reserved",
    safe_wal_size=None,
    two_phase=False,
    invalidation_reason=None,
    synced=False,
    keep_size=None,
)
MIB = 1 << 20


def dangers(facts: dict[str, Any], seconds: int | None = None, *, failover: bool = False) -> str:
    slot = dataclasses.replace(GOOD, **facts)
    return " ".join(warn_of_dangers(slot, seconds_between_runs=seconds, failover=failover))


def test_a_slot_without_limits_is_in_no_danger() -> None:
    assert dangers({}) == ""
    assert dangers({"failover": True}, 86_400, failover=True) == ""
    assert dangers({"keep_size": 64 * MIB, "safe_wal_size": 60 * MIB}) == ""


@pytest.mark.parametrize(
    ("facts", "seconds", "failover", "words"),
    [
        ({"keep_size": 64 * MIB, "safe_wal_size": 8 * MIB}, None, False, "8 MiB more of WAL"),
        ({"wal_status": "unreserved", "safe_wal_size": -1}, None, False, "next checkpoint"),
        ({"idle_timeout_seconds": 600}, 3600, False, "wait 3600 s"),
        ({"idle_timeout_seconds": 600, "idle_seconds": 400.4}, 300, False, "waited 400 s"),
        ({"idle_timeout_seconds": 600, "idle_seconds": 400.4}, None, False, "waited 400 s"),
        ({}, None, True, "FAILOVER"),
    ],
)
def test_each_danger_is_named_with_a_way_out(
    facts: dict[str, Any], seconds: int | None, failover: bool, words: str
) -> None:
    assert words in dangers(facts, seconds, failover=failover)


def test_a_schedule_that_is_fast_enough_is_no_danger() -> None:
    assert dangers({"idle_timeout_seconds": 600, "idle_seconds": 100.0}, 300) == ""


@pytest.mark.parametrize(
    ("facts", "error", "words"),
    [
        ({"slot_type": "physical", "plugin": None, "database": None}, WrongSlot, "physical"),
        ({"plugin": "wal2json"}, WrongSlot, "wal2json"),
        ({"database": "other"}, WrongSlot, "'other'"),
        ({"temporary": True}, WrongSlot, "temporary"),
        ({"synced": True}, WrongSlot, "synchronised"),
        ({"two_phase": True}, WrongSlot, "two_phase"),
        ({"wal_status": "lost", "restart_lsn": None}, SlotLost, "WAL removed"),
        ({"invalidation_reason": "idle_timeout"}, SlotLost, "idle_timeout"),
        ({"invalidation_reason": "rows_removed"}, SlotLost, "rows_removed"),
        ({"active_pid": 4711}, SlotBusy, "PID 4711"),
        ({"confirmed_flush_lsn": None}, SlotBusy, "being made"),
    ],
)
def test_each_slot_that_cannot_be_read_says_why(
    facts: dict[str, Any], error: type[PgoutputError], words: str
) -> None:
    with pytest.raises(error, match=words) as refusal:
        check_slot(dataclasses.replace(GOOD, **facts), SERVER)
    assert refusal.value.advice
    assert refusal.value.slot == "s"


def test_a_server_that_writes_too_little_wal_is_refused() -> None:
    """B16; from version 19 on the server raises the level by itself."""
    check_wal_level(SERVER)
    check_wal_level(dataclasses.replace(SERVER, wal_level="replica", version=190000))
    with pytest.raises(ConfigurationError, match="replica"):
        check_wal_level(dataclasses.replace(SERVER, wal_level="replica"))


def test_operations_that_nobody_publishes_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """B13: what a publication leaves out never reaches the lake, and nothing else says so."""
    whole = Publication("p", False, True, True, True, True, False, 16384, "800", False)
    assert warn_of_missing_operations([whole]) == ()
    assert not caplog.text
    part = dataclasses.replace(whole, deletes=False, truncates=False)
    assert warn_of_missing_operations([whole, part]) == ("p",)
    assert "deletes, truncates" in caplog.text


def test_an_idle_timeout_of_the_server_is_compared_with_the_schedule(
    source: Source, postgres_server: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """The setting came with version 18; before, there is nothing to say."""
    checkpoint = checkpoint_of(source.stage())
    with psycopg.connect(source.conninfo) as session:
        known = session.info.server_version >= 180000
    if known:
        source.execute(
            "ALTER SYSTEM SET idle_replication_slot_timeout = '10min'", "SELECT pg_reload_conf()"
        )
    try:
        source.stage(checkpoint=checkpoint, seconds_between_runs=599)
        assert "idle_replication_slot_timeout" not in caplog.text
        source.stage(checkpoint=checkpoint, seconds_between_runs=3600)
        assert ("for 600 s (idle_replication_slot_timeout)" in caplog.text) == known
    finally:
        if known:
            source.execute(
                "ALTER SYSTEM RESET idle_replication_slot_timeout", "SELECT pg_reload_conf()"
            )


def test_who_holds_up_a_slot_that_is_made_is_named(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """The server waits for every transaction that writes, however long it is open."""
    caplog.set_level(logging.INFO)
    with psycopg.connect(source.conninfo) as writer:
        writer.execute("INSERT INTO t VALUES (1, 'x')")
        (pid,) = writer.execute("SELECT pg_backend_pid()").fetchone() or (0,)

        def commit_when_named() -> None:
            deadline = time.monotonic() + 60
            while "is made when" not in caplog.text and time.monotonic() < deadline:
                time.sleep(0.05)
            writer.commit()

        thread = threading.Thread(target=commit_when_named)
        thread.start()
        batch = source.stage()
        thread.join()
    (message,) = [each.getMessage() for each in caplog.records if "is made when" in each.msg]
    assert f"{pid}" in message.split("processes: ")[1]
    assert [row["a"] for row in source.copied(batch, "public.t")] == [1]
