"""A server whose settings keep a slot from being made, or end one: said in time, and refused by its reason.

What is not here: every danger and every refusal by its facts (``slot/test_warnings.py``).

Source: https://www.postgresql.org/docs/current/runtime-config-replication.html
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.errors import ConfigurationError, SlotLost
from quickstart.postgres import EmbeddedPostgres
from tests.capture.pipeline_support import Source, checkpoint_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Segments of 16 MiB that the server keeps for a slot.
_KEPT_SEGMENTS = 4


@pytest.fixture
def server(server_home: Path, postgres_server: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """A server of the test's own, which writes too little WAL for logical decoding."""
    found = EmbeddedPostgres(
        server_home / "server",
        installation=postgres_server.installation,
        settings={
            "wal_level": "replica",
            "max_slot_wal_keep_size": f"{_KEPT_SEGMENTS * 16}MB",
            "min_wal_size": "32MB",
            "max_wal_size": "10GB",
            "checkpoint_timeout": "1h",
        },
    )
    try:
        yield found.start()
    finally:
        found.destroy()


def switch_segments(source: Source, count: int) -> None:
    """Let the server end so many segments of its WAL."""
    for _ in range(count):
        source.execute("INSERT INTO other VALUES (1)", "SELECT pg_switch_wal()")


def test_b16_and_a_slot_that_falls_behind(
    server: EmbeddedPostgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as session:
        session.execute("CREATE DATABASE shop")
    source = Source(server.conninfo("shop"), "kept_short", tmp_path / "staging")
    source.execute(
        "CREATE TABLE t(a int PRIMARY KEY, b text)",
        "CREATE TABLE other(a int)",
        "INSERT INTO t VALUES (1, 'before')",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    with pytest.raises(ConfigurationError, match="wal_level") as refusal:
        source.stage()
    assert "restart" in str(refusal.value.advice)
    assert source.confirmed() is None
    assert not source.manifests()

    server.stop()
    server.settings["wal_level"] = "logical"
    server.start()
    source = Source(server.conninfo("shop"), "kept_short", tmp_path / "staging")
    lake = checkpoint_of(source.stage())
    assert "max_slot_wal_keep_size" not in caplog.text
    switch_segments(source, _KEPT_SEGMENTS)
    # The batch is not applied, so the slot stays where it is.
    source.stage(checkpoint=lake)
    assert "MiB more of WAL" in caplog.text
    switch_segments(source, 2)
    source.stage(checkpoint=lake)
    assert "next checkpoint" in caplog.text
    source.execute("CHECKPOINT")
    with pytest.raises(SlotLost, match=r"(wal_removed|WAL removed)") as lost:
        source.stage(checkpoint=lake)
    assert "on_slot_lost" in str(lost.value.advice)


def allow_plugins(source: Source, libraries: str) -> None:
    """Let the server take these output plugins only; every session that begins from now on knows it."""
    source.execute(
        f"ALTER SYSTEM SET output_plugin_libraries = {libraries}", "SELECT pg_reload_conf()"
    )
    deadline = time.monotonic() + 60
    while source.execute("SHOW output_plugin_libraries") != [(libraries,)]:
        assert time.monotonic() < deadline, "the server does not read its configuration again"
        time.sleep(0.05)


@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_b04_a_server_that_does_not_allow_the_plugin(source: Source, transport: str) -> None:
    """The server says the SQLSTATE of a missing right, and a GRANT would not help."""
    if not source.execute("SELECT name FROM pg_settings WHERE name = 'output_plugin_libraries'"):
        pytest.skip("the setting came with the minor versions of 2026")
    lake = checkpoint_of(source.stage())
    source.execute("INSERT INTO t VALUES (1, 'later')")
    new = dataclasses.replace(source, slot_name=f"{source.slot_name}_new")
    allow_plugins(source, "test_decoding")
    try:
        for refused, checkpoint in ((source, lake), (new, None)):
            with pytest.raises(ConfigurationError, match="as an output plugin") as refusal:
                refused.stage(checkpoint=checkpoint, transport=transport)
            assert "output_plugin_libraries" in str(refusal.value.advice)
            assert "GRANT" not in str(refusal.value)
        assert new.confirmed() is None
        assert not new.manifests()
        assert source.confirmed() == str(lake.end_lsn)
        # What the advice says.
        allow_plugins(source, "test_decoding, pgoutput")
        batch = source.stage(checkpoint=lake, transport=transport)
        assert [row["a"] for row in source.changes(batch, "public.t")] == [1]
    finally:
        source.execute("ALTER SYSTEM RESET output_plugin_libraries", "SELECT pg_reload_conf()")
