"""Writes a recorded stream in the notation of ``tests/vectors/scenarios.json``.

``B`` begin, ``C`` commit, ``R[schema.table ri=identity *key:type_oid column:type_oid]``, ``Y[schema.type]``,
``O[name lsn=...]``, ``I:t(1,x)``, ``U:t K(1,NULL)->N(2,x)``, ``D:t O(1,x)``, ``T[t,u opt=3]``,
``M[tx=1 prefix b'content']``. ``<u>`` is unchanged TOAST, ``pg_catalog`` is empty, OIDs of user types are
``user``, a value longer than 24 characters is its first 6 and its length, a binary one ``0x...``.

Streamed transactions: ``S1`` first and ``S0`` later start of a block, ``E`` its end, ``A(sub)`` and
``A(top)`` abort, ``c`` commit. Prepared ones: ``b[gid]`` begin, ``P[gid]`` prepare, ``p[gid]`` prepare of
a streamed one, ``K[gid]`` commit, ``r[gid]`` roll back. Of more than 20 inserts in a row only the first
and the last are written, and their number between them.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.pgoutput import stream_messages as streams
from airflow_provider_pgoutput.capture.pgoutput.messages import (
    Relation,
    parse_begin,
    parse_commit,
    parse_logical_message,
    parse_origin,
    parse_relation,
    parse_truncate,
    parse_type,
)
from airflow_provider_pgoutput.capture.pgoutput.reference import (
    UNCHANGED,
    Binary,
    oid_of_row,
    parse_row,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.capture.pgoutput.reference import Tuple, Value
    from tests.capture.pgoutput.support import Reading

_FIRST_USER_OID = 16384
_LONGEST_RUN = 20


def stream_notation(bodies: list[bytes], reading: Reading) -> str:
    writer = _Writer(reading)
    written = []
    for tag, run in itertools.groupby(bodies, key=lambda body: body[:1]):
        messages = [writer.message(body) for body in run]
        if tag == b"I" and len(messages) > _LONGEST_RUN:
            messages = [messages[0], f"..x{len(messages)}..", messages[-1]]
        written += messages
    return " ".join(written)


class _Writer:
    """Knows the relations that were announced; whether a message may stand where it stands is not its."""

    def __init__(self, reading: Reading) -> None:
        self._relations: dict[int, Relation] = {}
        self._in_block = False
        self._reading = reading

    def message(self, body: bytes) -> str:
        if self._in_block and body[:1] not in {b"E", b"O"}:
            body = body[:1] + body[5:]
        tag = chr(body[0])
        if tag in "IUD":
            return self._row(body)
        if tag in _ABOUT:
            return tag + _ABOUT[tag](body)
        return {
            "R": self._relation,
            "T": self._truncate,
            "S": self._start,
            "E": self._stop,
            "A": self._abort,
        }[tag](body)

    def _start(self, body: bytes) -> str:
        self._in_block = True
        return f"S{int(streams.parse_stream_start(body).is_first)}"

    def _stop(self, body: bytes) -> str:
        streams.parse_stream_stop(body)
        self._in_block = False
        return "E"

    def _abort(self, body: bytes) -> str:
        abort = streams.parse_stream_abort(body, with_time=self._reading.parallel)
        return "A(top)" if abort.xid == abort.subxid else "A(sub)"

    def _relation(self, body: bytes) -> str:
        relation = parse_relation(body)
        self._relations[relation.oid] = relation
        columns = " ".join(
            f"{'*' if each.is_identity else ''}{each.name}:"
            f"{each.type_oid if each.type_oid < _FIRST_USER_OID else 'user'}"
            for each in relation.columns
        )
        name = f"{_schema(relation.schema_name)}.{relation.table_name}"
        return f"R[{name} ri={relation.replica_identity} {columns}]"

    def _truncate(self, body: bytes) -> str:
        truncate = parse_truncate(body)
        names = ",".join(self._relations[oid].table_name for oid in truncate.relation_oids)
        return f"T[{names} opt={truncate.cascade + 2 * truncate.restart_identity}]"

    def _row(self, body: bytes) -> str:
        relation = self._relations[oid_of_row(body, None)]
        old_kind, old, new = parse_row(body, relation, None)
        name = f"{chr(body[0])}:{relation.table_name}"
        if body[:1] == b"I":
            assert new is not None
            return f"{name}{self._tuple(new)}"
        written = [] if old is None else [f"{old_kind}{self._tuple(old)}"]
        written += [] if new is None else [f"N{self._tuple(new)}"]
        return f"{name} {'->'.join(written)}"

    def _tuple(self, values: Tuple) -> str:
        return f"({','.join(self._value(each) for each in values)})"

    def _value(self, value: Value) -> str:
        if value is None:
            return "NULL"
        if value is UNCHANGED:
            return "<u>"
        if isinstance(value, Binary):
            return f"0x{value.content.hex()}"
        text = value.decode()
        return text if len(text) <= 24 else f"{text[:6]}..[{len(text)}]"


def _checked(parse: Callable[[bytes], object]) -> Callable[[bytes], str]:
    """Write nothing but the tag of a message that can be parsed."""

    def write(body: bytes) -> str:
        parse(body)
        return ""

    return write


def _type(body: bytes) -> str:
    message = parse_type(body)
    return f"[{_schema(message.schema_name)}.{message.name}]"


def _schema(name: str) -> str:
    return "" if name == "pg_catalog" else name


def _origin(body: bytes) -> str:
    message = parse_origin(body)
    return f"[{message.name} lsn={message.commit_lsn:X}]"


def _logical(body: bytes) -> str:
    message = parse_logical_message(body)
    return f"[tx={int(message.transactional)} {message.prefix} {message.content!r}]"


_ABOUT: dict[str, Callable[[bytes], str]] = {
    "B": _checked(parse_begin),
    "C": _checked(parse_commit),
    "Y": _type,
    "O": _origin,
    "M": _logical,
    "c": _checked(streams.parse_stream_commit),
    "b": lambda body: f"[{streams.parse_begin_prepare(body).gid}]",
    "P": lambda body: f"[{streams.parse_prepare(body).gid}]",
    "p": lambda body: f"[{streams.parse_prepare(body).gid}]",
    "K": lambda body: f"[{streams.parse_commit_prepared(body).gid}]",
    "r": lambda body: f"[{streams.parse_rollback_prepared(body).gid}]",
}
