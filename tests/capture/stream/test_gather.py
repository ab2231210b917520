"""Chunks wait until each of their tables has enough rows, and no longer."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.pgoutput.reference import Change, changes_of_block
from airflow_provider_pgoutput.capture.stream.gather import Gathering
from tests.capture.pgoutput import encode
from tests.capture.pgoutput.support import by_relation, chunk_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_KIB = 1 << 10
_MIB = 1 << 20


def announced(tables: int) -> list[bytes]:
    return [encode.relation(oid, name=f"t{oid}") for oid in range(1, tables + 1)]


def transaction(
    lsn: int, tables: int, text_bytes: int = 1, before: Sequence[bytes] = ()
) -> list[bytes]:
    """One row in each table."""
    rows = [encode.insert(oid, [b"%d" % lsn, b"x" * text_bytes]) for oid in range(1, tables + 1)]
    return [encode.begin(lsn), *before, *rows, encode.commit(lsn)]


def flat(bodies: list[list[bytes]]) -> list[bytes]:
    return list(itertools.chain(*bodies))


@pytest.mark.parametrize("gap", [0, 5])
def test_gathered_chunks_decode_to_the_same_rows_wherever_they_are_cut(gap: int) -> None:
    bodies = transaction(100, 7, before=announced(7))
    bodies += flat([transaction(100 * number, 7) for number in range(2, 9)])
    whole = [
        each for block in Decoder().decode(chunk_of(bodies)) for each in changes_of_block(block)
    ]
    for size in range(1, len(bodies)):
        decoder = Decoder()
        gathering = Gathering(decoder.decode)
        found: list[Change] = []
        for first in range(0, len(bodies), size):
            chunk = chunk_of(bodies[first : first + size], gap=gap)
            found += [each for block in gathering.add(chunk) for each in changes_of_block(block)]
        found += [each for block in gathering.rest() for each in changes_of_block(block)]
        assert by_relation(found) == by_relation(whole)
        assert not decoder.in_transaction
        assert decoder.transactions == 8


def test_a_chunk_of_few_tables_is_decoded_at_once() -> None:
    gathering = Gathering(Decoder().decode)
    first = transaction(100, 2, 100 * _KIB, announced(2))
    assert len(gathering.add(chunk_of(first))) == 2
    assert len(gathering.add(chunk_of(transaction(200, 2, 100 * _KIB)))) == 2
    assert gathering.rest() == []


def test_chunks_of_many_tables_wait_until_each_table_has_enough() -> None:
    gathering = Gathering(Decoder().decode)
    first = transaction(100, 50, 20 * _KIB, announced(50))
    assert gathering.add(chunk_of(first)) == []
    # 40 KiB of each table.
    blocks = gathering.add(chunk_of(transaction(200, 50, 20 * _KIB)))
    assert [len(each) for each in blocks] == [2] * 50
    # Nothing is announced now. The last blocks say that 50 tables take turns.
    assert gathering.add(chunk_of(transaction(300, 50, 20 * _KIB))) == []
    assert [len(each) for each in gathering.rest()] == [1] * 50


@pytest.mark.slow
def test_what_waits_is_bounded_however_many_tables_there_are() -> None:
    gathering = Gathering(Decoder().decode)
    most = waiting = 0
    for number in range(1, 20):
        relations = announced(2000) if number == 1 else []
        chunk = chunk_of(transaction(100 * number, 2000, _KIB, relations))
        waiting = 0 if gathering.add(chunk) else waiting + len(chunk.data)
        most = max(most, waiting)
    assert 8 * _MIB < most < 12 * _MIB


def test_a_chunk_without_messages_changes_nothing() -> None:
    gathering = Gathering(Decoder().decode)
    assert gathering.add(chunk_of([])) == []
    assert gathering.rest() == []
