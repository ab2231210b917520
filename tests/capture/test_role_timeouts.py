"""Timeouts that are set on the role end neither a copy nor a read of the slot that lasts longer.

A proxy lets the network stand still before the server's answer, for longer than each timeout. While many
rows wait, a statement lasts. If the answer is short, its transaction is idle, and other sessions are, too.
A slot waits for a lock: for the end of an open transaction.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.capture.pipeline_support import checkpoint_with_shapes
from tests.faults.network import Action, Fault, Proxy
from tests.pgbouncer import pgbouncer
from tests.reader_role import role_with_short_timeouts

if TYPE_CHECKING:
    from pathlib import Path

    from tests.capture.pipeline_support import Source

_TIMEOUT_MS = 300
_STANDS_STILL_SECONDS = 1.0
#: More than the sockets on the way hold: the server has not sent all when the network stands still.
_ROWS, _BYTES = 24_000, 1000
_SMALL_TABLES = 8


@pytest.mark.parametrize("is_pooled", [False, True], ids=["direct", "pooler"])
def test_copies_and_reads_outlast_the_timeouts_of_the_role(
    source: Source, server_home: Path, *, is_pooled: bool
) -> None:
    rows = f"SELECT g, repeat('x', {_BYTES}) FROM generate_series({{}}, {{}}) g"
    source.execute(f"INSERT INTO t {rows.format(1, _ROWS)}")
    port = int(str(conninfo_to_dict(source.conninfo)["port"]))
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy(port))
        direct = proxy.conninfo(source.reader)
        both: dict[str, object] = {"conninfo": direct}
        if is_pooled:
            pooled = stack.enter_context(pgbouncer(server_home, direct, "session"))
            both = {"conninfo": pooled, "direct_conninfo": direct}
        stack.enter_context(role_with_short_timeouts(source.conninfo, _TIMEOUT_MS))
        with (
            psycopg.connect(source.reader) as plain,
            pytest.raises(psycopg.Error, match=r"due to .* timeout"),
        ):
            plain.execute("SELECT pg_sleep(10)")

        copied = proxy.fault = _stall(b"COPY")
        first = source.stage(**both)
        assert copied.struck.is_set()
        assert len(source.copied(first, "public.t")) == _ROWS

        source.execute(f"INSERT INTO t {rows.format(_ROWS + 1, 2 * _ROWS)}")
        read = proxy.fault = _stall(b"pg_logical_slot_peek_binary_changes")
        second = source.stage(checkpoint=checkpoint_with_shapes(first), **both)
        assert read.struck.is_set()
        assert len(source.changes(second, "public.t")) == _ROWS

        # Some of them are copied in one transaction.
        for number in range(_SMALL_TABLES):
            source.execute(
                f"CREATE TABLE u{number} (a int PRIMARY KEY)",
                f"INSERT INTO u{number} VALUES ({number})",
                f"ALTER PUBLICATION p ADD TABLE u{number}",
            )
        short = proxy.fault = _stall(b"COPY")
        writer = stack.enter_context(psycopg.connect(source.conninfo))
        writer.execute("SELECT pg_current_xact_id()")
        end = threading.Timer(_STANDS_STILL_SECONDS, writer.rollback)
        end.start()
        third = source.stage(checkpoint=checkpoint_with_shapes(second), **both)
        end.join()
        assert short.struck.is_set()
        for number in range(_SMALL_TABLES):
            assert source.copied(third, f"public.u{number}") == [{"a": number}]


def _stall(marker: bytes) -> Fault:
    return Fault(Action.STALL, marker, seconds=_STANDS_STILL_SECONDS, times=8)
