"""One golden message per kind, then every way in which its bytes can be wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.pgoutput.messages import (
    Begin,
    Commit,
    LogicalMessage,
    Origin,
    Relation,
    RelationColumn,
    Truncate,
    TypeMessage,
    parse_begin,
    parse_commit,
    parse_logical_message,
    parse_origin,
    parse_relation,
    parse_truncate,
    parse_type,
)
from airflow_provider_pgoutput.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

# Written by hand from the documentation, not by the encoder beside this file.
BEGIN = bytes.fromhex("42 00000000016B3748 0002A5F1C0DE0000 000002F1")
COMMIT = bytes.fromhex("43 00 00000000016B3748 00000000016B3778 0002A5F1C0DE0000")
ORIGIN = bytes.fromhex("4F 00000000AABBCCDD") + b"up\0"
RELATION = (
    bytes.fromhex("52 00004001")
    + b"public\0t\0d"
    + bytes.fromhex("0002")
    + b"\x01a\0"
    + bytes.fromhex("00000017 FFFFFFFF")
    + b"\x00b\0"
    + bytes.fromhex("00000413 0000000A")
)
TYPE = bytes.fromhex("59 00004002") + b"\0numeric\0"
TRUNCATE = bytes.fromhex("54 00000002 03 00004001 00004002")
MESSAGE = (
    bytes.fromhex("4D 01 00000000016B3700") + b"app\0" + bytes.fromhex("00000003") + b"\xff\0z"
)

GOLDEN: list[tuple[Callable[..., Any], bytes, object]] = [
    (parse_begin, BEGIN, Begin(Lsn(0x16B3748), 0x2A5F1C0DE0000, 753)),
    (parse_commit, COMMIT, Commit(Lsn(0x16B3748), Lsn(0x16B3778), 0x2A5F1C0DE0000)),
    (parse_origin, ORIGIN, Origin(Lsn(0xAABBCCDD), "up")),
    (
        parse_relation,
        RELATION,
        Relation(
            oid=0x4001,
            schema_name="public",
            table_name="t",
            replica_identity="d",
            columns=(RelationColumn("a", 23, -1, True), RelationColumn("b", 1043, 10, False)),
        ),
    ),
    (parse_type, TYPE, TypeMessage(0x4002, "pg_catalog", "numeric")),
    (parse_truncate, TRUNCATE, Truncate((0x4001, 0x4002), cascade=True, restart_identity=True)),
    (
        parse_logical_message,
        MESSAGE,
        LogicalMessage(transactional=True, lsn=Lsn(0x16B3700), prefix="app", content=b"\xff\0z"),
    ),
]
every_kind = pytest.mark.parametrize(
    ("parse", "body", "parsed"), GOLDEN, ids=[parse.__name__ for parse, _, _ in GOLDEN]
)


@every_kind
def test_a_message_is_parsed(parse: Callable[..., Any], body: bytes, parsed: object) -> None:
    assert parse(body) == parsed


@every_kind
def test_a_message_cut_short_anywhere_is_refused(
    parse: Callable[..., Any], body: bytes, parsed: object
) -> None:
    for size in range(len(body)):
        with pytest.raises(ProtocolError, match=r"at byte \d+"):
            parse(body[:size])


@every_kind
def test_trailing_bytes_are_refused(parse: Callable[..., Any], body: bytes, parsed: object) -> None:
    with pytest.raises(ProtocolError):
        parse(body + b"\0")


@every_kind
def test_a_changed_byte_never_raises_anything_else(
    parse: Callable[..., Any], body: bytes, parsed: object
) -> None:
    for position in range(1, len(body)):
        for value in range(256):
            changed = body[:position] + bytes([value]) + body[position + 1 :]
            try:
                assert (parse(changed) == parsed) == (changed == body)
            except ProtocolError:
                assert changed != body


@pytest.mark.parametrize(
    ("parse", "body", "what"),
    [
        (parse_begin, BEGIN[:1] + bytes(8) + BEGIN[9:], "final_lsn is zero, at byte 1"),
        (parse_begin, BEGIN[:1] + b"\x80" + BEGIN[2:], "final_lsn is out of range"),
        (
            parse_begin,
            BEGIN[:9] + b"\x7f" + b"\xff" * 7 + BEGIN[17:],
            "commit time is out of range",
        ),
        (parse_commit, COMMIT[:1] + b"\x01" + COMMIT[2:], "unknown flags 0x01, at byte 1"),
        (parse_commit, COMMIT[:2] + bytes(8) + COMMIT[10:], "commit_lsn is zero, at byte 2"),
        (parse_commit, COMMIT[:10] + bytes(8) + COMMIT[18:], "end_lsn is zero, at byte 10"),
        (parse_commit, COMMIT[:10] + COMMIT[2:10] + COMMIT[18:], "not past commit_lsn"),
        (parse_origin, ORIGIN[:-1], "the name has no end, at byte 9"),
        (parse_origin, ORIGIN[:-2] + b"\xff\0", "the name is not UTF-8, at byte 10"),
        (parse_relation, RELATION[:1] + bytes(4) + RELATION[5:], "an OID is zero, at byte 1"),
        (
            parse_relation,
            RELATION.replace(b"t\0d", b"t\0x"),
            "unknown replica identity, at byte 14",
        ),
        (parse_relation, RELATION.replace(b"d\0\x02", b"d\xff\xff"), "columns is negative"),
        (parse_relation, RELATION.replace(b"\x01a", b"\x02a"), "unknown column flags 0x02"),
        (parse_relation, RELATION.replace(b"public", b"p\xc3blic"), "schema name is not UTF-8"),
        (parse_type, bytes.fromhex("59 00000000") + b"\0x\0", "an OID is zero"),
        (parse_truncate, TRUNCATE[:5] + b"\x04" + TRUNCATE[6:], "unknown flags 0x04"),
        (parse_truncate, bytes.fromhex("54 00000000 00"), "no relation is named"),
        (parse_truncate, bytes.fromhex("54 FFFFFFFF 00"), "no relation is named"),
        (parse_truncate, bytes.fromhex("54 7FFFFFFF 00 00004001"), "do not fill 4 bytes"),
        (parse_truncate, TRUNCATE[:10] + TRUNCATE[6:10], "named twice"),
        (parse_logical_message, MESSAGE[:1] + b"\x02" + MESSAGE[2:], "unknown flags 0x02"),
        (
            parse_logical_message,
            MESSAGE.replace(b"app\0\0\0\0\x03", b"app\0\xff\xff\xff\xff"),
            "a length is negative, at byte 14",
        ),
        (
            parse_logical_message,
            MESSAGE.replace(b"app\0\0\0\0\x03", b"app\0\x7f\xff\xff\xff"),
            "a length leads past the end, at byte 14",
        ),
    ],
)
def test_what_is_refused_is_named(parse: Callable[..., Any], body: bytes, what: str) -> None:
    with pytest.raises(ProtocolError, match=what) as refused:
        parse(body, Lsn.parse("16/B374D848"))
    assert refused.value.lsn == "16/B374D848"


def test_an_origin_without_a_position_is_accepted() -> None:
    assert parse_origin(b"O" + bytes(8) + b"up\0") == Origin(Lsn(0), "up")


def test_the_codec_does_not_leak_the_text_it_refuses() -> None:
    with pytest.raises(ProtocolError) as refused:
        parse_origin(b"O" + bytes(8) + b"s3cret\xff\0")
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_the_same_announcement_is_the_same_version() -> None:
    first, second = parse_relation(RELATION), parse_relation(bytes(RELATION))
    assert first == second
    assert len({first, second}) == 1
    assert first.name == "public.t"
