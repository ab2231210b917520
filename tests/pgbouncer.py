"""Runs PgBouncer, a connection pooler, in front of a server of ours.

The program comes from Debian's packages, see ``debian.py``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from quickstart.binaries import account_options, server_account
from tests.debian import NotHere, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PACKAGES = ("pgbouncer", "libc-ares2")
_START_SECONDS = 20


def fetch_pgbouncer() -> Path:
    """The folder with the unpacked packages; the test is skipped where they cannot be had."""
    try:
        return unpacked("pgbouncer", *_PACKAGES)
    except NotHere as error:
        pytest.skip(str(error))


@contextlib.contextmanager
def pgbouncer(home: Path, conninfo: str, mode: str, settings: str = "") -> Iterator[str]:
    """A pooler in front of the server of ``conninfo``; yields the parameters that lead to it.

    :param home: a folder that every user may enter.
    :param mode: ``session``, ``transaction`` or ``statement``.
    :param settings: further lines of its configuration.
    """
    programs = home / "programs"
    shutil.copytree(fetch_pgbouncer() / "usr", programs, dirs_exist_ok=True)
    programs.chmod(0o755)
    server = conninfo_to_dict(conninfo)
    port = _free_port()
    user, password = server["user"], server["password"]
    (home / "users").write_text(f'"{user}" "{password}"\n')
    (home / "pgbouncer.ini").write_text(
        f"""[databases]
* = host={server["host"]} port={server["port"]}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = plain
auth_file = {home / "users"}
pool_mode = {mode}
{settings}
"""
    )
    library = next(programs.rglob("libcares.so.2"))
    process = subprocess.Popen(
        [str(programs / "sbin" / "pgbouncer"), str(home / "pgbouncer.ini")],
        env={**os.environ, "LD_LIBRARY_PATH": str(library.parent)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        **account_options(server_account()),
    )
    try:
        _wait_for(port)
        yield make_conninfo("", **{**server, "host": "127.0.0.1", "port": port})
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
