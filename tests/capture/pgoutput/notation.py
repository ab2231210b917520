"""Writes a decoded stream in the notation of ``tests/vectors/scenarios.json``.

``B`` begin, ``C`` commit, ``R[schema.table ri=identity *key:type_oid column:type_oid]``, ``Y[schema.type]``,
``O[name lsn=...]``, ``I:t(1,x)``, ``U:t K(1,NULL)->N(2,x)``, ``D:t O(1,x)``, ``T[t,u opt=3]``,
``M[tx=1 prefix b'content']``. ``<u>`` is unchanged TOAST, ``pg_catalog`` is empty, OIDs of user types are
``user``, and a value longer than 24 characters is its first 6 and its length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.pgoutput.messages import (
    parse_logical_message,
    parse_origin,
    parse_relation,
    parse_truncate,
    parse_type,
)
from airflow_provider_pgoutput.capture.pgoutput.reference import UNCHANGED, ReferenceDecoder

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.pgoutput.reference import Change, Tuple, Value

_FIRST_USER_OID = 16384


def stream_notation(bodies: list[bytes]) -> str:
    decoder = ReferenceDecoder()
    return " ".join(_message(decoder, body) for body in bodies)


def _message(decoder: ReferenceDecoder, body: bytes) -> str:
    tag = chr(body[0])
    changes = decoder.decode(body)
    if tag in "IUD":
        return _row(changes[0])
    if tag == "T":
        truncate = parse_truncate(body)
        names = ",".join(change.relation.table_name for change in changes)
        return f"T[{names} opt={truncate.cascade + 2 * truncate.restart_identity}]"
    return {"R": _relation, "Y": _type, "O": _origin, "M": _logical}.get(tag, lambda _: tag)(body)


def _relation(body: bytes) -> str:
    relation = parse_relation(body)
    columns = " ".join(
        f"{'*' if each.is_identity else ''}{each.name}:"
        f"{each.type_oid if each.type_oid < _FIRST_USER_OID else 'user'}"
        for each in relation.columns
    )
    name = f"{_schema(relation.schema_name)}.{relation.table_name}"
    return f"R[{name} ri={relation.replica_identity} {columns}]"


def _type(body: bytes) -> str:
    message = parse_type(body)
    return f"Y[{_schema(message.schema_name)}.{message.name}]"


def _schema(name: str) -> str:
    return "" if name == "pg_catalog" else name


def _origin(body: bytes) -> str:
    message = parse_origin(body)
    return f"O[{message.name} lsn={message.commit_lsn:X}]"


def _logical(body: bytes) -> str:
    message = parse_logical_message(body)
    return f"M[tx={int(message.transactional)} {message.prefix} {message.content!r}]"


def _row(change: Change) -> str:
    name = f"{change.op}:{change.relation.table_name}"
    old = None if change.old is None else f"{change.old_kind}{_tuple(change.old)}"
    if change.op == "I":
        assert change.new is not None
        return f"{name}{_tuple(change.new)}"
    new = None if change.new is None else f"N{_tuple(change.new)}"
    return f"{name} {'->'.join(each for each in (old, new) if each)}"


def _tuple(values: Tuple) -> str:
    return f"({','.join(_value(each) for each in values)})"


def _value(value: Value) -> str:
    if value is None:
        return "NULL"
    if value is UNCHANGED:
        return "<u>"
    text = value.decode()
    return text if len(text) <= 24 else f"{text[:6]}..[{len(text)}]"
