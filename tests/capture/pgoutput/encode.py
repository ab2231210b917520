"""Writes messages: the mirror of ``messages.py`` and ``reference.py``, for streams no server would send.

Nothing is checked, so that invalid messages can be written too. A tuple is a list of bytes, None for
NULL or ``UNCHANGED``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.pgoutput.reference import UNCHANGED, Value

if TYPE_CHECKING:
    from collections.abc import Sequence


def begin(final_lsn: int, committed_at_us: int = 0, xid: int = 700) -> bytes:
    return struct.pack("!cQqI", b"B", final_lsn, committed_at_us, xid)


def commit(
    commit_lsn: int, end_lsn: int | None = None, committed_at_us: int = 0, flags: int = 0
) -> bytes:
    end = commit_lsn + 48 if end_lsn is None else end_lsn
    return struct.pack("!cBQQq", b"C", flags, commit_lsn, end, committed_at_us)


def origin(commit_lsn: int, name: str) -> bytes:
    return b"O" + struct.pack("!Q", commit_lsn) + text(name)


def relation(
    oid: int,
    columns: Sequence[tuple[str, int]] = (("a", 23), ("b", 25)),
    *,
    identity: str = "d",
    keys: int = 1,
    name: str = "t",
    schema: str = "public",
) -> bytes:
    """Write a Relation; its first ``keys`` columns are flagged."""
    head = b"R" + struct.pack("!I", oid) + text(schema) + text(name)
    body = b"".join(
        bytes([position < keys]) + text(column) + struct.pack("!Ii", type_oid, -1)
        for position, (column, type_oid) in enumerate(columns)
    )
    return head + identity.encode() + struct.pack("!h", len(columns)) + body


def type_message(oid: int, name: str, schema: str = "public") -> bytes:
    return b"Y" + struct.pack("!I", oid) + text(schema) + text(name)


def insert(oid: int, new: Sequence[Value]) -> bytes:
    return b"I" + struct.pack("!I", oid) + b"N" + tuple_data(new)


def update(
    oid: int, new: Sequence[Value], old: Sequence[Value] | None = None, kind: str = "K"
) -> bytes:
    before = b"" if old is None else kind.encode() + tuple_data(old)
    return b"U" + struct.pack("!I", oid) + before + b"N" + tuple_data(new)


def delete(oid: int, old: Sequence[Value], kind: str = "K") -> bytes:
    return b"D" + struct.pack("!I", oid) + kind.encode() + tuple_data(old)


def truncate(oids: Sequence[int], flags: int = 0) -> bytes:
    return struct.pack(f"!ciB{len(oids)}I", b"T", len(oids), flags, *oids)


def logical_message(
    content: bytes, *, transactional: bool, prefix: str = "app", lsn: int = 1
) -> bytes:
    head = struct.pack("!cBQ", b"M", transactional, lsn)
    return head + text(prefix) + struct.pack("!i", len(content)) + content


def tuple_data(values: Sequence[Value]) -> bytes:
    return struct.pack("!h", len(values)) + b"".join(map(_value, values))


def _value(value: Value) -> bytes:
    if value is None:
        return b"n"
    if value is UNCHANGED:
        return b"u"
    assert isinstance(value, bytes)
    return b"t" + struct.pack("!i", len(value)) + value


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def streamed(body: bytes, xid: int) -> bytes:
    """Put a (sub)transaction's id into a message, as inside a stream block."""
    return body[:1] + struct.pack("!I", xid) + body[1:]


def stream_start(xid: int, first: bool) -> bytes:
    return struct.pack("!cIB", b"S", xid, first)


def stream_stop() -> bytes:
    return b"E"


def stream_commit(
    xid: int, commit_lsn: int, end_lsn: int | None = None, committed_at_us: int = 0, flags: int = 0
) -> bytes:
    end = commit_lsn + 48 if end_lsn is None else end_lsn
    return struct.pack("!cIBQQq", b"c", xid, flags, commit_lsn, end, committed_at_us)


def stream_abort(xid: int, subxid: int, lsn: int | None = None) -> bytes:
    """With an LSN: as ``streaming 'parallel'`` has it."""
    body = struct.pack("!cII", b"A", xid, subxid)
    return body if lsn is None else body + struct.pack("!Qq", lsn, 0)


def begin_prepare(prepare_lsn: int, xid: int, gid: str) -> bytes:
    return struct.pack("!cQQqI", b"b", prepare_lsn, prepare_lsn + 48, 0, xid) + text(gid)


def prepare(prepare_lsn: int, xid: int, gid: str, tag: bytes = b"P") -> bytes:
    """With the tag ``p``: of a streamed transaction."""
    return struct.pack("!cBQQqI", tag, 0, prepare_lsn, prepare_lsn + 48, 0, xid) + text(gid)


def commit_prepared(commit_lsn: int, xid: int, gid: str) -> bytes:
    return struct.pack("!cBQQqI", b"K", 0, commit_lsn, commit_lsn + 48, 0, xid) + text(gid)


def rollback_prepared(prepare_lsn: int, lsn: int, xid: int, gid: str) -> bytes:
    return struct.pack("!cBQQqqI", b"r", 0, prepare_lsn + 48, lsn + 48, 0, 0, xid) + text(gid)
