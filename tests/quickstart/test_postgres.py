"""The embedded server: its settings, its ways to stop, and that it never outlives its owner."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgoutput.errors import ConfigurationError, SourceUnavailable
from quickstart.binaries import (
    Installation,
    can_enter,
    find_installation,
    readable_by,
    server_account,
)
from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation


def _value(conninfo: str, query: str) -> Any:
    with psycopg.connect(conninfo, autocommit=True) as session:
        row = session.execute(query).fetchone()
        assert row is not None
        return row[0]


def _process_exists(pid: int) -> bool:
    try:
        return b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_the_fixture_server_is_ready_for_logical_replication(
    postgres_server: EmbeddedPostgres,
) -> None:
    conninfo = postgres_server.conninfo()
    assert _value(conninfo, "SHOW wal_level") == "logical"
    assert _value(conninfo, "SHOW listen_addresses") == "127.0.0.1"
    assert _value(conninfo, "SELECT current_setting('server_version')").startswith(
        postgres_server.version
    )


def test_a_database_of_the_fixture_is_empty_and_its_own(postgres_database: str) -> None:
    assert (
        _value(
            postgres_database,
            "SELECT count(*) FROM pg_class WHERE relkind = 'r'"
            " AND relnamespace = 'public'::regnamespace",
        )
        == 0
    )
    assert _value(postgres_database, "SELECT pg_create_logical_replication_slot('s', 'pgoutput')")


def test_a_wrong_password_is_refused(postgres_server: EmbeddedPostgres) -> None:
    conninfo = postgres_server.conninfo().replace(postgres_server.password, "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(conninfo)


def test_committed_rows_survive_each_way_to_stop(server_home: Path) -> None:
    server = EmbeddedPostgres(server_home, settings={"fsync": "off"}, authentication="trust")
    with server:
        port = server.port
        assert server.password == ""
        with psycopg.connect(server.conninfo(), autocommit=True) as session:
            session.execute("CREATE TABLE t (n int)")
            session.execute("INSERT INTO t VALUES (1)")
        server.restart("immediate", settings={"work_mem": "5MB"})
        assert _value(server.conninfo(), "SHOW work_mem") == "5MB"
        server.kill()
        assert not server.is_running
        server.start()
        assert _value(server.conninfo(), "SELECT n FROM t") == 1
        assert server.port == port
    assert not server.is_running


def test_a_server_ends_with_the_process_that_started_it(server_home: Path) -> None:
    code = (
        "import os, sys, pathlib\n"
        "from quickstart.postgres import EmbeddedPostgres\n"
        "server = EmbeddedPostgres(pathlib.Path(sys.argv[1])).start()\n"
        "print((server.data_directory / 'postmaster.pid').read_text().split()[0], flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(server_home)], capture_output=True, text=True, check=False
    )
    assert result.returncode == -signal.SIGKILL, result.stderr
    pid = int(result.stdout)
    deadline = time.monotonic() + 20
    while _process_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _process_exists(pid)


def test_a_server_that_somebody_left_running_is_stopped_first(server_home: Path) -> None:
    left = EmbeddedPostgres(server_home, settings={"fsync": "off"}).start()
    first_pid = int((left.data_directory / "postmaster.pid").read_text().split()[0])
    with EmbeddedPostgres(server_home, settings={"fsync": "off"}) as server:
        assert not _process_exists(first_pid)
        assert server.password == left.password
        assert _value(server.conninfo(), "SELECT 1") == 1
    left.stop()


def test_what_an_interrupted_initdb_left_is_replaced(server_home: Path) -> None:
    (server_home / "data" / "base").mkdir(parents=True)
    (server_home / "data.unfinished").mkdir()
    with EmbeddedPostgres(server_home, settings={"fsync": "off"}) as server:
        assert _value(server.conninfo(), "SELECT 1") == 1


def test_a_setting_that_the_server_refuses_is_in_the_error(server_home: Path) -> None:
    server = EmbeddedPostgres(server_home, settings={"shared_buffers": "many"})
    with pytest.raises(SourceUnavailable, match="shared_buffers"):
        server.start()
    assert not server.is_running


@pytest.mark.parametrize("major", [15, 16, 17])
def test_each_older_major_version_can_be_had(server_home: Path, major: int) -> None:
    installation = find_or_fetch_installation(major)
    with EmbeddedPostgres(
        server_home, installation=installation, settings={"fsync": "off"}
    ) as server:
        assert server.major == major
        number = _value(server.conninfo(), "SELECT current_setting('server_version_num')::int")
        assert number // 10000 == major
        assert _value(
            server.conninfo(), "SELECT pg_create_logical_replication_slot('s', 'pgoutput')"
        )


def test_a_missing_major_version_names_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"No PostgreSQL 99 .*make setup"):
        find_installation(99)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs a server as somebody else")
def test_programs_below_a_closed_folder_are_copied_to_an_open_one(server_home: Path) -> None:
    original = find_installation(18)
    closed = server_home / "closed"
    root = closed / "site-packages"
    part = original.bin_directory.parent.relative_to(original.root)
    shutil.copytree(original.root / part, root / part)
    libraries = f"{part.parts[0]}.libs"
    shutil.copytree(original.root / libraries, root / libraries)
    closed.chmod(0o700)
    account = server_account()
    hidden = Installation(18, original.version, root, root / part / "bin")
    assert not can_enter(hidden.bin_directory, account)

    copy = readable_by(account, hidden)

    assert copy.version == original.version
    assert can_enter(copy.bin_directory, account)
    with EmbeddedPostgres(server_home / "server", installation=hidden) as server:
        assert _value(server.conninfo(), "SELECT 1") == 1
