"""LSNs in messages are counted from an offset: as if the server itself had sent the greater ones."""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgoutput.capture.pgoutput.lsn_fields import (
    OF_LOGICAL_MESSAGES,
    OF_TRANSACTIONS,
    with_offset,
)
from airflow_provider_pgoutput.capture.pgoutput.messages import LAST_LSN
from tests.capture.pgoutput import encode
from tests.capture.pgoutput.support import chunk_of

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk

_OFFSET = 0x17 << 32
_AT = 0x1A2B3C0


def _messages(at: int) -> list[bytes]:
    """A message of each kind, with all its LSNs at or after ``at``."""
    return [
        encode.begin(at),
        encode.relation(7),
        encode.insert(7, [b"1", None]),
        encode.origin(_AT, "of another server"),
        encode.commit(at, at + 48),
        encode.stream_start(9, first=True),
        encode.stream_stop(),
        encode.stream_commit(9, at, at + 9),
        encode.stream_abort(9, 10, at),
        encode.begin_prepare(at, 9, "gid"),
        encode.prepare(at, 9, "gid"),
        encode.prepare(at, 9, "gid", b"p"),
        encode.commit_prepared(at, 9, "gid"),
        encode.rollback_prepared(at, at + 9, 9, "gid"),
    ]


@pytest.mark.parametrize("gap", [0, 3])
def test_messages_of_transactions_are_those_of_a_server_with_greater_lsns(gap: int) -> None:
    sent = chunk_of(_messages(_AT), gap=gap)
    before = sent.data.copy()
    found = with_offset(sent, OF_TRANSACTIONS, _OFFSET)
    wanted = chunk_of(_messages(_AT + _OFFSET), gap=gap)
    assert bodies(found) == bodies(wanted)
    assert np.array_equal(sent.data, before), "the given chunk stays"


def test_a_logical_message_gets_the_offset_when_its_transaction_is_whole() -> None:
    sent, wanted = (
        [encode.logical_message(b"B", transactional=True, lsn=at), encode.begin(_AT)]
        for at in (_AT, _AT + _OFFSET)
    )
    assert bodies(with_offset(chunk_of(sent), OF_LOGICAL_MESSAGES, _OFFSET)) == wanted
    assert bodies(with_offset(chunk_of(sent), OF_TRANSACTIONS, _OFFSET))[0] == sent[0]


def test_zero_stays_zero() -> None:
    """A crash ended the transaction, so the server does not know the LSN of its end."""
    sent = [encode.stream_abort(9, 10, 0), encode.begin(0)]
    assert bodies(with_offset(chunk_of(sent), OF_TRANSACTIONS, _OFFSET)) == sent


def test_the_abort_of_a_stream_has_an_lsn_only_in_parallel_mode() -> None:
    sent = [encode.stream_abort(9, 10)]
    assert bodies(with_offset(chunk_of(sent), OF_TRANSACTIONS, _OFFSET)) == sent


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_bytes_that_are_no_message_keep_their_lengths(sent: list[bytes]) -> None:
    """The decoder refuses them. Only the bytes of whole LSNs change."""
    for fields in (OF_TRANSACTIONS, OF_LOGICAL_MESSAGES):
        found = bodies(with_offset(chunk_of(sent), fields, _OFFSET))
        assert list(map(len, found)) == list(map(len, sent))
        for body, then in zip(found, sent, strict=True):
            places = fields.get(chr(then[0]), ()) if then else ()
            whole = [each for each in places if each + 8 <= len(then)]
            wanted = bytearray(then)
            for each in whole:
                (lsn,) = struct.unpack_from("!Q", then, each)
                struct.pack_into("!Q", wanted, each, lsn + _OFFSET if 0 < lsn <= LAST_LSN else lsn)
            assert body == bytes(wanted)


def bodies(chunk: MessageChunk) -> list[bytes]:
    ends = chunk.offsets.tolist()
    return [chunk.data[a:b].tobytes() for a, b in itertools.pairwise(ends)]
