"""Every refusal of the state table and of the rules beside it, by both decoders and with the same words."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.pgoutput.reference import UNCHANGED, ReferenceDecoder
from airflow_provider_pgoutput.capture.pgoutput.state import (
    BEGUN,
    CHANGING,
    EVENT_NAMES,
    OUTSIDE,
    WHOLE,
    WHOLE_EVENTS,
)
from airflow_provider_pgoutput.errors import ProtocolError
from tests.capture.pgoutput import encode
from tests.capture.pgoutput.support import chunk_of, decoder_outcome, reference_outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

LSN = 0x16_B374D848
T, FULL = 16385, 16386
RELATIONS = [encode.relation(T), encode.relation(FULL, identity="f", keys=2, name="full")]
OPEN = [encode.begin(LSN), *RELATIONS]
INSERT = encode.insert(T, [b"1", b"x"])

MESSAGE_OF_EVENT = {
    "B": encode.begin(LSN + 64),
    "C": encode.commit(LSN),
    "O": encode.origin(7, "up"),
    "R": encode.relation(T),
    "Y": encode.type_message(16390, "mood"),
    "I": INSERT,
    "U": encode.update(T, [b"1", b"y"]),
    "D": encode.delete(T, [b"1", None]),
    "T": encode.truncate([T]),
    "M": encode.logical_message(b"x", transactional=True),
    "m": encode.logical_message(b"x", transactional=False),
}
# A stream that ends in the state.
WAY_TO = {
    OUTSIDE: [*OPEN, encode.commit(LSN)],
    BEGUN: OPEN,
    CHANGING: [*OPEN, INSERT],
}


def refusals(bodies: Sequence[bytes]) -> tuple[ProtocolError, ProtocolError, ProtocolError]:
    """What both decoders say, the fast one also when every message is a chunk of its own."""
    with pytest.raises(ProtocolError) as by_reference:
        list(map(ReferenceDecoder().decode, bodies))
    with pytest.raises(ProtocolError) as at_once:
        Decoder().decode(chunk_of(list(bodies)))
    with pytest.raises(ProtocolError) as one_by_one:
        decoder_outcome([body] for body in bodies)
    return by_reference.value, at_once.value, one_by_one.value


@pytest.mark.parametrize(("state", "event"), list(itertools.product(WHOLE, WHOLE_EVENTS)))
def test_every_pair_of_state_and_event(state: str, event: str) -> None:
    bodies = [*WAY_TO[state], MESSAGE_OF_EVENT[event]]
    if event in WHOLE[state]:
        list(map(ReferenceDecoder().decode, bodies))
        Decoder().decode(chunk_of(bodies))
        return
    for error in refusals(bodies):
        assert f"{EVENT_NAMES[event]} message {state}" in str(error)
        assert error.lsn == (None if state == OUTSIDE else "16/B374D848")


REFUSED: dict[str, tuple[list[bytes], str]] = {
    "insert before any relation": ([encode.begin(LSN), INSERT], "before its Relation message"),
    "unknown OID": ([*OPEN, encode.insert(16399, [b"1"])], "OID 16399 comes before its Relation"),
    "OID zero": ([*OPEN, encode.insert(0, [b"1"])], "OID 0 comes before its Relation"),
    "truncate of an unknown OID": ([*OPEN, encode.truncate([T, 16399])], "OID 16399 comes before"),
    "relation after its row": ([encode.begin(LSN), INSERT, RELATIONS[0]], "before its Relation"),
    "too few columns": ([*OPEN, encode.insert(T, [b"1"])], "1 columns instead of 2"),
    "too many columns": ([*OPEN, encode.insert(T, [b"1", b"2", b"3"])], "3 columns instead of 2"),
    "too few columns in a new tuple behind an old one": (
        [*OPEN, encode.update(T, [b"1"], [b"1", None])],
        "1 columns instead of 2",
    ),
    "unchanged in an old key": (
        [*OPEN, encode.delete(T, [UNCHANGED, None])],
        "a value of this kind may not stand here",
    ),
    "unchanged in an old row": (
        [*OPEN, encode.update(FULL, [b"1", UNCHANGED], [b"1", UNCHANGED], "O")],
        "a value of this kind may not stand here",
    ),
    "a value of an unknown form": (
        [*OPEN, encode.insert(T, [b"1", b"x"]).replace(b"t\0\0\0\x01x", b"c\0\0\0\x01x")],
        "a value of this kind may not stand here, at byte 14",
    ),
    "key with replica identity full": (
        [*OPEN, encode.delete(FULL, [b"1", None])],
        "K does not go with replica identity f",
    ),
    "whole old row without replica identity full": (
        [*OPEN[:2], encode.update(T, [b"1", b"y"], [b"1", b"x"], "O")],
        "O does not go with replica identity d",
    ),
    "insert with a key": (
        [*OPEN, INSERT.replace(b"N", b"K", 1)],
        "Insert of public.t message: no tuple of this kind may follow, at byte 5",
    ),
    "delete with a new tuple": ([*OPEN, encode.delete(T, [b"1", None], "N")], "no tuple of this"),
    "update with an unknown tuple": (
        [*OPEN, encode.update(T, [b"1", b"x"], [b"1", None], "X")],
        "no tuple of this kind may follow",
    ),
    "update with two old tuples": (
        [*OPEN, encode.update(T, [b"1", b"x"], [b"1", None]).replace(b"N", b"K")],
        "no tuple of this kind may follow",
    ),
    "delete with a new tuple behind": (
        [*OPEN, encode.delete(T, [b"1", None]) + b"N" + encode.tuple_data([b"1", None])],
        "bytes too long",
    ),
    "update without a new tuple": (
        [*OPEN, b"U" + encode.delete(T, [b"1", None])[1:]],
        "cut short, 1 bytes expected",
    ),
    "trailing byte": ([*OPEN, INSERT + b"\0"], "1 bytes too long, at byte 20"),
    "negative length": (
        [*OPEN, encode.insert(T, [b"1", b"x"]).replace(b"\0\0\0\x01x", b"\xff\xff\xff\xffx")],
        "a length is negative, at byte 15",
    ),
    "length of 2 GiB": (
        [*OPEN, encode.insert(T, [b"1", b"x"]).replace(b"\0\0\0\x01x", b"\x7f\xff\xff\xffx")],
        "a length leads past the end, at byte 15",
    ),
    "length that swallows the next message": (
        [*OPEN, INSERT.replace(b"\0\0\0\x01x", b"\0\0\0\x15x"), INSERT],
        "a length leads past the end, at byte 15",
    ),
    "commit of another transaction": (
        [*OPEN, encode.commit(LSN + 8)],
        "its commit_lsn is 16/B374D850, not that of its Begin",
    ),
    "transactions out of order": (
        [*OPEN, encode.commit(LSN), encode.begin(LSN)],
        "after one that ended at 16/B374D878",
    ),
    "begin too long": ([encode.begin(LSN) + b"\0"], "1 bytes too long"),
    "commit too short": ([*OPEN, encode.commit(LSN)[:-1]], "cut short"),
    "commit with flags": ([*OPEN, encode.commit(LSN, flags=1)], "unknown flags 0x01"),
    "stream start of version 2": (
        [b"S\0\0\x02\xbc\x01"],
        "byte 53, which protocol version 1 lacks",
    ),
    "begin prepare of version 3": ([b"b" + bytes(30)], "byte 62, which protocol version 1 lacks"),
    "the event that is no tag": ([b"m" + bytes(30)], "byte 6d, which protocol version 1 lacks"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    bodies, what = REFUSED[case]
    for error in refusals(bodies):
        assert what in str(error)


def test_an_empty_message_is_refused() -> None:
    with pytest.raises(ProtocolError, match="at byte 0"):
        Decoder().decode(chunk_of([*OPEN, b""]))
    with pytest.raises(ProtocolError):
        ReferenceDecoder().decode(b"")


def test_the_rows_of_an_error_name_the_transaction() -> None:
    for error in refusals([*OPEN, encode.insert(T, [b"1"])]):
        assert error.lsn == "16/B374D848"


def test_a_decoder_that_failed_refuses_to_go_on() -> None:
    decoder = Decoder()
    with pytest.raises(ProtocolError):
        decoder.decode(chunk_of([encode.commit(LSN)]))
    with pytest.raises(ProtocolError, match="cannot go on"):
        decoder.decode(chunk_of([encode.begin(LSN)]))


def test_an_update_of_a_full_relation_may_come_without_its_old_row() -> None:
    """A partitioned table with FULL whose partition has another identity."""
    bodies = [*OPEN, encode.update(FULL, [b"1", b"x"])]
    assert decoder_outcome([bodies]) == reference_outcome(bodies)
    (block,) = Decoder().decode(chunk_of(bodies))
    assert block.old == (None, None)
    assert not block.old_kind.any()
