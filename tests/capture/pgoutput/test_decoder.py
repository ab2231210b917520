"""What the decoder promises beyond agreeing with the reference: blocks, numbers, ranges, buffers."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.pgoutput import decoder as decoder_module
from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock, MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.pgoutput.messages import (
    POSTGRES_EPOCH_US,
    Commit,
    TypeMessage,
)
from airflow_provider_pgoutput.capture.pgoutput.reference import (
    UNCHANGED,
    EmittedMessage,
    changes_of_block,
    messages_of_block,
)
from airflow_provider_pgoutput.errors import ProtocolError
from tests.capture.pgoutput import encode
from tests.capture.pgoutput.support import chunk_of

T, U = 16385, 16386
THREE = (("a", 23), ("b", 25), ("c", 25))


def decode(*bodies: bytes) -> list[ChangeBlock]:
    return Decoder().decode(chunk_of(list(bodies)))


def values(column: pa.Array | None) -> list[bytes | None]:
    assert column is not None
    assert column.type == pa.binary()
    column.validate(full=True)
    found: list[bytes | None] = column.to_pylist()
    return found


def transaction(lsn: int, *bodies: bytes) -> list[bytes]:
    return [encode.begin(lsn), *bodies, encode.commit(lsn)]


def test_a_block_holds_raw_columns() -> None:
    (block,) = decode(
        encode.begin(100, committed_at_us=5, xid=4_000_000_000),
        encode.relation(T, THREE),
        encode.insert(T, [b"1", "é".encode(), None]),
        encode.update(T, [b"2", UNCHANGED, b""], [b"1", None, None]),
        encode.delete(T, [b"2", None, None]),
        encode.truncate([T]),
        encode.commit(100),
    )
    assert block.relation.name == "public.t"
    assert bytes(block.op) == b"IUDT"
    assert bytes(block.old_kind) == b"\0KK\0"
    assert block.seq.tolist() == [0, 1, 2, 3]
    assert block.commit_lsn.tolist() == [100] * 4
    assert block.xid.tolist() == [4_000_000_000] * 4
    epoch = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
    assert block.commit_ts_us.tolist() == [int(epoch.timestamp()) * 1_000_000 + 5] * 4
    assert values(block.new[0]) == [b"1", b"2", None, None]
    assert values(block.new[1]) == ["é".encode(), None, None, None]
    assert values(block.new[2]) == [None, b"", None, None]
    assert values(block.old[0]) == [None, b"1", b"2", None]
    assert values(block.old[1]) == [None] * 4
    assert block.unchanged[0] is None
    assert block.unchanged[1] is not None
    assert block.unchanged[1].tolist() == [False, True, False, False]
    assert block.unchanged[2] is None


def test_columns_without_a_tuple_are_left_out_also_beside_a_relation_that_has_them() -> None:
    inserted, deleted = decode(
        encode.begin(100),
        encode.relation(T),
        encode.relation(U),
        encode.insert(T, [b"1", b"x"]),
        encode.delete(U, [b"1", None]),
    )
    assert inserted.old == (None, None)
    assert deleted.new == (None, None)
    assert values(inserted.new[0]) == values(deleted.old[0]) == [b"1"]


def test_a_truncate_is_a_change_of_each_relation_with_one_number() -> None:
    first, second = decode(
        encode.begin(100),
        encode.relation(T),
        encode.relation(U, THREE),
        encode.insert(T, [b"1", b"x"]),
        encode.truncate([U, T], flags=3),
        encode.insert(T, [b"2", b"y"]),
    )
    assert (bytes(first.op), first.seq.tolist()) == (b"ITI", [0, 1, 2])
    assert values(first.new[0]) == [b"1", None, b"2"]
    assert (bytes(second.op), second.seq.tolist()) == (b"T", [1])
    assert second.new == second.old == (None, None, None)


def test_rows_are_decoded_with_the_version_in_force() -> None:
    wider = encode.relation(T, THREE)
    plain = encode.relation(T)
    blocks = decode(
        encode.begin(100),
        plain,
        encode.insert(T, [b"1", b"x"]),
        plain,
        encode.insert(T, [b"2", b"y"]),
        wider,
        encode.insert(T, [b"3", b"z", b"7"]),
        plain,
        encode.insert(T, [b"4", b"w"]),
    )
    assert [len(block.relation.columns) for block in blocks] == [2, 3, 2]
    assert [block.seq.tolist() for block in blocks] == [[0, 1], [2], [3]]
    assert blocks[0].relation == blocks[2].relation


def test_blocks_come_in_the_order_of_their_first_changes() -> None:
    blocks = decode(
        encode.begin(100),
        encode.relation(T),
        encode.relation(U, THREE),
        encode.insert(U, [b"1", b"x", b"y"]),
        encode.insert(T, [b"1", b"x"]),
        encode.insert(U, [b"2", b"x", b"y"]),
    )
    assert [block.relation.oid for block in blocks] == [U, T]
    assert [block.seq.tolist() for block in blocks] == [[0, 2], [1]]


def test_numbers_count_changes_only() -> None:
    bodies = [
        encode.begin(100),
        encode.origin(7, "up"),
        encode.type_message(16390, "mood"),
        encode.relation(T),
        encode.logical_message(b"", transactional=True),
        encode.insert(T, [b"1", b"x"]),
        encode.relation(T),
        encode.insert(T, [b"2", b"y"]),
        encode.commit(100),
        encode.logical_message(b"", transactional=False),
        encode.begin(200),
        encode.insert(T, [b"3", b"z"]),
    ]
    (whole,) = decode(*bodies)
    assert whole.seq.tolist() == [0, 1, 0]
    decoder = Decoder()
    one_by_one = [block for body in bodies for block in decoder.decode(chunk_of([body]))]
    assert [block.seq.tolist() for block in one_by_one] == [[0], [1], [0]]


def test_an_origin_is_that_of_its_transaction_alone() -> None:
    row = encode.insert(T, [b"1", b"x"])
    bodies = [
        *transaction(100, encode.origin(7, "up"), encode.relation(T), row, row),
        *transaction(200, row),
        *transaction(300, encode.origin(0, "down"), row),
        *transaction(400, row),
    ]
    wanted = [("up", 7), ("up", 7), (None, None), ("down", None), (None, None)]
    for size in (1, 2, 3, 5, len(bodies)):
        decoder = Decoder()
        chunks = [chunk_of(bodies[at : at + size]) for at in range(0, len(bodies), size)]
        found = [
            (change.origin, change.origin_lsn)
            for chunk in chunks
            for block in decoder.decode(chunk)
            for change in changes_of_block(block)
        ]
        assert found == wanted


def test_without_an_origin_a_block_has_no_such_column() -> None:
    (block,) = decode(*transaction(100, encode.relation(T), encode.insert(T, [b"1", b"x"])))
    assert (block.origin, block.origin_lsn) == (None, None)


def test_logical_messages_are_columns() -> None:
    decoder = Decoder(Lsn(100), Lsn(300))
    bodies = [
        encode.logical_message(b"before", transactional=False, lsn=100),
        encode.begin(150, 7, 700),
        encode.logical_message(b"\x00\xff", transactional=True, prefix="", lsn=120),
        encode.relation(T),
        encode.insert(T, [b"1", b"x"]),
        encode.logical_message(b"", transactional=True, prefix="é", lsn=140),
        encode.commit(150, 160, 7),
        encode.logical_message(b"alone", transactional=False, lsn=300),
        encode.logical_message(b"after", transactional=False, lsn=301),
    ]
    decoder.decode(chunk_of(bodies))
    (block,) = decoder.take_messages()
    time_us = 7 + POSTGRES_EPOCH_US
    assert messages_of_block(block) == [
        EmittedMessage(120, True, 150, 0, 700, time_us, "", b"\x00\xff"),
        EmittedMessage(140, True, 150, 1, 700, time_us, "é", b""),
        EmittedMessage(300, False, None, None, None, None, "app", b"alone"),
    ]
    assert decoder.take_messages() == []
    assert decoder.logical_messages == 5


def test_what_is_exposed_follows_the_stream() -> None:
    decoder = Decoder()
    assert (decoder.transactions, decoder.last_commit, decoder.in_transaction) == (0, None, False)
    assert decoder.decode(chunk_of([])) == []
    decoder.decode(
        chunk_of([encode.begin(100), encode.origin(7, "up"), encode.type_message(9, "mood")])
    )
    assert (decoder.transactions, decoder.last_commit, decoder.in_transaction) == (0, None, True)
    decoder.decode(
        chunk_of(
            [
                encode.relation(T),
                encode.commit(100, 148, 3),
                encode.logical_message(b"", transactional=False),
            ]
        )
    )
    assert decoder.last_commit == Commit(Lsn(100), Lsn(148), 3)
    assert (decoder.transactions, decoder.in_transaction) == (1, False)
    assert (decoder.origins, decoder.logical_messages) == (1, 1)
    assert decoder.types == {9: TypeMessage(9, "public", "mood")}
    assert decoder.relations[T].table_name == "t"


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        (None, None, [100, 200, 300]),
        (200, None, [200, 300]),
        (201, None, [300]),
        (None, 200, [100]),
        (None, 201, [100, 200]),
        (200, 300, [200]),
        (2**64 - 1, None, []),
        (None, 2**64 - 1, [100, 200, 300]),
    ],
)
def test_a_transaction_belongs_to_the_range_that_holds_its_commit(
    start: int | None, end: int | None, wanted: list[int]
) -> None:
    row = encode.insert(T, [b"1", b"x"])
    bodies = [
        *transaction(100, encode.relation(T), row),
        *transaction(200, row, encode.truncate([T])),
        *transaction(300, row),
    ]
    decoder = Decoder(None if start is None else Lsn(start), None if end is None else Lsn(end))
    blocks = decoder.decode(chunk_of(bodies))
    found = sorted({lsn for block in blocks for lsn in block.commit_lsn.tolist()})
    assert found == wanted
    assert decoder.transactions == len(wanted)
    assert decoder.last_commit is not None
    assert decoder.last_commit.commit_lsn == 300


def test_a_block_does_not_hold_the_chunk() -> None:
    chunk = chunk_of([encode.begin(100), encode.relation(T), encode.insert(T, [b"1", b"x"])])
    data = chunk.data.copy()
    (block,) = Decoder().decode(MessageChunk(data, chunk.offsets))
    data[:] = 0
    assert changes_of_block(block)[0].new == (b"1", b"x")


def test_a_chunk_beyond_the_reach_of_arrow_is_decoded_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [encode.insert(T, [str(number).encode(), b"x" * number]) for number in range(100)]
    bodies = [encode.begin(100), encode.relation(T), *rows, encode.commit(100)]
    monkeypatch.setattr(decoder_module, "_PART_BYTES", 300)
    blocks = Decoder().decode(chunk_of(bodies))
    assert len(blocks) > 10
    assert np.concatenate([block.seq for block in blocks]).tolist() == list(range(100))
    assert [len(value or b"") for block in blocks for value in values(block.new[1])] == list(
        range(100)
    )


def test_many_relations_of_several_widths() -> None:
    oids = range(1, 400)
    widths = {oid: oid % 3 for oid in oids}
    relations = [
        encode.relation(oid, [(f"c{each}", 25) for each in range(widths[oid])]) for oid in oids
    ]
    rows = [
        encode.insert(oid, [b"%d" % (oid + round_number)] * widths[oid])
        for round_number in range(3)
        for oid in oids
    ]
    blocks = decode(encode.begin(100), *relations, *rows)
    assert [block.relation.oid for block in blocks] == list(oids)
    for block in blocks:
        oid = block.relation.oid
        assert block.seq.tolist() == [oid - 1, oid - 1 + 399, oid - 1 + 798]
        for column in block.new:
            assert values(column) == [b"%d" % (oid + each) for each in range(3)]


@pytest.mark.parametrize(
    ("size", "offsets"), [(4, [0, 5]), (4, [-1, 3]), (4, [0, 3, 2]), (4, [0, 0]), (0, [])]
)
def test_offsets_that_do_not_fit_are_refused(size: int, offsets: list[int]) -> None:
    chunk = MessageChunk(np.zeros(size, dtype=np.uint8), np.array(offsets, dtype=np.int64))
    with pytest.raises(ProtocolError):
        Decoder().decode(chunk)
