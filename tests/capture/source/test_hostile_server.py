"""B38: what answers at the source's address is no PostgreSQL, or one that means harm. A run ends with a name.

The servers here speak as much of the protocol as it takes to be believed.
Source: https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.errors import ConfigurationError, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECRET = "canary-secret"
#: Seconds that a client gives the server to let it in.
PATIENCE = 3


def message(kind: bytes, body: bytes, length: int | None = None) -> bytes:
    """A message, or the beginning of one that says it is longer."""
    return kind + struct.pack("!i", 4 + len(body) if length is None else length) + body


WELCOME = message(b"R", struct.pack("!i", 0)) + message(b"Z", b"I")


def says_nothing(client: socket.socket) -> None:
    time.sleep(PATIENCE + 2)


def is_a_web_server(client: socket.socket) -> None:
    client.recv(4096)
    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def announces_two_gibibytes(client: socket.socket) -> None:
    client.recv(4096)
    client.sendall(WELCOME)
    client.recv(4096)
    client.sendall(message(b"D", b"x" * 1000, 2**31 - 1))


def announces_a_negative_length(client: socket.socket) -> None:
    client.recv(4096)
    client.sendall(WELCOME)
    client.recv(4096)
    client.sendall(message(b"D", b"x" * 1000, -1))


@contextlib.contextmanager
def serving(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve one behaviour to all clients; the conninfo."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # Closed: the test is over.
            with client, contextlib.suppress(OSError):
                behave(client)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    try:
        yield (
            f"host=127.0.0.1 port={port} user=u dbname=d password={SECRET} sslmode=disable"
            f" gssencmode=disable connect_timeout={PATIENCE}"
        )
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE + 6)


@pytest.mark.parametrize(
    "behave",
    [
        says_nothing,
        is_a_web_server,
        announces_two_gibibytes,
        announces_a_negative_length,
    ],
)
def test_a_server_that_is_none_ends_the_run_with_a_name(
    behave: Callable[[socket.socket], None], tmp_path: Path
) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    with serving(behave) as conninfo:
        request = CaptureRequest(conninfo, "s", ("p",), str(tmp_path))
        with pytest.raises((SourceUnavailable, ConfigurationError)) as caught:
            stage_batch(request)
        assert SECRET not in str(caught.value)
    assert time.monotonic() - began < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 200 << 10, "KiB"
    assert not list(tmp_path.rglob("*.json"))


def test_it_is_the_same_through_adbc() -> None:
    with (
        serving(is_a_web_server) as conninfo,
        pytest.raises((SourceUnavailable, ConfigurationError)) as caught,
    ):
        sessions.connect_adbc(conninfo)
    assert SECRET not in str(caught.value)
