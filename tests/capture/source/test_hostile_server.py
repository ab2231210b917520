"""B38: what answers at the source's address is no PostgreSQL, or one that means harm. A run ends with a name.

The first servers here speak as much of the protocol as it takes to be believed. The last ones are real, and
what they say of a slot is changed on the way.
Source: https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

from __future__ import annotations

import contextlib
import re
import resource
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    ProtocolError,
    SourceUnavailable,
)
from tests.capture.pipeline_support import checkpoint_of
from tests.faults.network import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.capture.pipeline_support import Source

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


#: A message of the server's with one of pgoutput's in it: a row of the SQL function's answer in binary COPY
#: format, and an XLogData of the walsender's.
IN_SQL = rb"d....\x00\x01...."
IN_WALSENDER = rb"d....w.{24}"
ANYWHERE = rb"(?:" + IN_SQL + rb"|" + IN_WALSENDER + rb")"
#: A Stream Start of a transaction's first block, up to the flag that says so.
FIRST_BLOCK = rb"S....(?=\x01$)"
#: A certain row, in a stream block or not, up to the kind of its second value.
ROW = rb"I.*\x00\x00\x00\x02-2(?=t\x00\x00\x00\x04evil)"


def changing(where: bytes, what: bytes) -> Callable[[bytes], bytes]:
    """Make the byte behind ``what``, in messages that are at ``where``, one that it must not be."""
    wanted = re.compile(b"(" + where + what + b").", re.DOTALL)
    return lambda message: wanted.sub(rb"\g<1>\0", message, count=1)


@pytest.fixture
def streamed(source: Source) -> Checkpoint:
    """The checkpoint before a transaction that the server streams, and two small ones."""
    (version, database) = source.execute(
        "SELECT current_setting('server_version_num')::int, current_database()"
    )[0]
    setting = (
        "debug_logical_replication_streaming = immediate"
        if version >= 160000
        else "logical_decoding_work_mem = '64kB'"
    )
    lake = checkpoint_of(source.stage())
    source.execute(
        "INSERT INTO t VALUES (-1, 'small')",
        "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 2000) g",
        "INSERT INTO t VALUES (-2, 'evil')",
        f"ALTER DATABASE {database} SET {setting}",
    )
    return lake


def stage_through(
    source: Source, lake: Checkpoint, rewrite: Callable[[bytes], bytes], **options: Any
) -> list[int]:
    """Stage what the server says when it is rewritten on the way; the keys of what was staged."""
    port = int(conninfo_to_dict(source.reader)["port"] or 0)
    with Proxy(port, rewrite=rewrite) as proxy:
        conninfo = proxy.conninfo(source.reader, sslmode="disable", gssencmode="disable")
        batch = source.stage(conninfo=conninfo, checkpoint=lake, **options)
    return [row["a"] for row in source.changes(batch, "public.t")]


def again(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The ways that were tried after a protocol error, and the one that helped."""
    words = r"(Reading again [\w ,]+)\.$|(the batch was read [\w ]+), because .* (\w+='\w+') saves"
    found = (re.search(words, each, re.DOTALL) for each in caplog.messages)
    return [" ".join(filter(None, each.groups())) for each in found if each]


EVERYTHING = [-1, *range(1, 2001), -2]
NOT_STREAMED = "Reading again without streaming"
#: Which messages are changed, what is asked for, and what the log says.
WAYS_ON: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "sql": (
        changing(IN_SQL, FIRST_BLOCK),
        {"transport": "sql", "decode_parallelism": 2, "part_bytes": 100_000},
        [
            "Reading again over the walsender",
            "the batch was read over the walsender transport='walsender'",
        ],
    ),
    "walsender": (
        changing(IN_WALSENDER, FIRST_BLOCK),
        {"transport": "walsender"},
        [
            "Reading again over SQL",
            "the batch was read over SQL transport='auto'",
        ],
    ),
    "both": (
        changing(ANYWHERE, FIRST_BLOCK),
        {"transport": "auto"},
        [
            "Reading again over the walsender",
            NOT_STREAMED,
            "the batch was read without streaming streaming='off'",
        ],
    ),
}


@pytest.mark.parametrize("case", WAYS_ON)
def test_a_stream_that_breaks_the_protocol_is_read_another_way(
    case: str, source: Source, streamed: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    rewrite, options, expected = WAYS_ON[case]
    assert stage_through(source, streamed, rewrite, **options) == EVERYTHING
    assert again(caplog) == expected


def test_a_walsender_that_cannot_be_had_is_passed_over(
    source: Source, streamed: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    (most,) = source.execute("SELECT current_setting('max_wal_senders')::int")[0]
    with contextlib.ExitStack() as others:
        for _ in range(most):
            others.enter_context(psycopg.connect(source.conninfo, replication="database"))
        assert stage_through(source, streamed, changing(ANYWHERE, FIRST_BLOCK)) == EVERYTHING
    assert again(caplog) == WAYS_ON["both"][2]


def test_when_no_way_helps_the_error_says_what_does(
    source: Source, streamed: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    rewrite = changing(ANYWHERE, ROW)
    with pytest.raises(ProtocolError) as refused:
        stage_through(source, streamed, rewrite)
    assert again(caplog) == ["Reading again over the walsender", NOT_STREAMED]
    assert "also read over the walsender" in str(refused.value)
    assert "also read without streaming" in str(refused.value)
    (named,) = re.findall(r"skip_lsns=\['(\w+/\w+)'\]", str(refused.value))
    assert (
        stage_through(source, streamed, rewrite, skip_lsns=(Lsn.parse(named),)) == EVERYTHING[:-1]
    )


def test_who_asked_for_no_streaming_is_read_over_the_other_transport_only(
    source: Source, streamed: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ProtocolError):
        stage_through(
            source, streamed, changing(ANYWHERE, ROW), options=StreamOptions(streaming="off")
        )
    assert again(caplog) == ["Reading again over the walsender"]
