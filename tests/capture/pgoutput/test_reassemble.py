"""Streams of versions 2 to 4 made whole: the fast way against the slow one, and every refusal of both."""

from __future__ import annotations

import itertools
import tempfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.pgoutput.prepared import PreparedTransactions
from airflow_provider_pgoutput.capture.pgoutput.reassemble import Reassembler, UnstreamedAborts
from airflow_provider_pgoutput.capture.pgoutput.reference import (
    Change,
    ReferenceDecoder,
    changes_of_block,
)
from airflow_provider_pgoutput.capture.pgoutput.spool import MemorySpool, one_message
from airflow_provider_pgoutput.capture.pgoutput.state import (
    BEGUN,
    BLOCK_STARTED,
    CHANGING,
    EVENT_NAMES,
    NEXT_STATE,
    OUTSIDE,
    PREPARE_BEGUN,
    PREPARING,
    STREAMING,
    events_of,
    next_states,
)
from airflow_provider_pgoutput.capture.stream.spill import SpillFolder
from airflow_provider_pgoutput.errors import ProtocolError, StagingFull
from tests.capture.pgoutput import encode
from tests.capture.pgoutput.programs import LSN, Program, T, U, cuts
from tests.capture.pgoutput.slow_reassembly import SlowReassembler
from tests.capture.pgoutput.support import by_relation, chunk_of
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from airflow_provider_pgoutput.capture.pgoutput.spool import Spool


def slowly(bodies: Iterable[bytes], version: int = 4) -> list[Change]:
    slow, decoder = SlowReassembler(version), ReferenceDecoder()
    return [
        change for body in bodies for whole in slow.take(body) for change in decoder.decode(whole)
    ]


def quickly(
    chunks: Iterable[Sequence[bytes]],
    version: int = 4,
    new_spool: Callable[[], Spool] = MemorySpool,
    chunk_bytes: int = 3 << 20,
) -> list[Change]:
    prepared = (
        PreparedTransactions(Lsn(0), [], commits_without_prepare=False) if version > 2 else None
    )
    fast = Reassembler(version, new_spool=new_spool, prepared=prepared, chunk_bytes=chunk_bytes)
    decoder = Decoder()
    changes = [
        change
        for bodies in chunks
        for whole in fast.take(chunk_of(list(bodies), gap=3))
        for block in decoder.decode(whole)
        for change in changes_of_block(block)
    ]
    assert not decoder.in_transaction
    return changes


@pytest.mark.parametrize("seed", slow_but_each(50, range(150)))
def test_random_streams_come_out_as_the_slow_way_says(seed: int) -> None:
    bodies = Program(seed).run(60)
    expected = by_relation(slowly(bodies))
    assert by_relation(quickly([bodies])) == expected
    assert by_relation(quickly([each] for each in bodies)) == expected
    spill = SpillFolder(memory_bytes=2000)
    try:
        assert by_relation(quickly(cuts(bodies, seed), new_spool=spill.new)) == expected
        assert by_relation(quickly(cuts(bodies, -seed), chunk_bytes=50)) == expected
    finally:
        spill.close()


def test_the_random_streams_hold_what_they_should() -> None:
    kinds = {chr(body[0]) for seed in range(20) for body in Program(seed).run(60)}
    assert kinds >= set("BCRIUDTSEcAbPKrp")
    assert any(slowly(Program(seed).run(60)) for seed in range(20))


ROW = encode.insert(T, [b"1", b"x"])
RELATION = encode.relation(T)
IN_BLOCK = {"R", "Y", "I", "U", "D", "T", "M"}
BODIES = {
    "B": encode.begin(LSN + 64),
    "C": encode.commit(LSN),
    "O": encode.origin(7, "up"),
    "R": RELATION,
    "Y": encode.type_message(16390, "mood"),
    "I": ROW,
    "U": encode.update(T, [b"1", b"y"]),
    "D": encode.delete(T, [b"1", None]),
    "T": encode.truncate([T]),
    "M": encode.logical_message(b"x", transactional=True),
    "m": encode.logical_message(b"x", transactional=False),
    "S": encode.stream_start(800, True),
    "E": encode.stream_stop(),
    "c": encode.stream_commit(700, LSN + 64),
    "A": encode.stream_abort(700, 700),
    "b": encode.begin_prepare(LSN, 701, "g"),
    "P": encode.prepare(LSN, 701, "g"),
    "p": encode.prepare(LSN + 64, 700, "h", b"p"),
    "K": encode.commit_prepared(LSN + 64, 702, "k"),
    "r": encode.rollback_prepared(LSN, LSN + 64, 702, "k"),
}
# Transaction 700 is streamed already, 702 is prepared.
BEFORE = [
    *(encode.begin_prepare(LSN - 640, 702, "k"), RELATION, encode.prepare(LSN - 640, 702, "k")),
    *(encode.stream_start(700, True), encode.streamed(RELATION, 700), encode.stream_stop()),
]
WAY_TO = {
    OUTSIDE: [*BEFORE],
    BEGUN: [*BEFORE, encode.begin(LSN), RELATION],
    CHANGING: [*BEFORE, encode.begin(LSN), RELATION, ROW],
    BLOCK_STARTED: [*BEFORE, encode.stream_start(700, False), encode.streamed(RELATION, 700)],
    STREAMING: [
        *(*BEFORE, encode.stream_start(700, False)),
        *(encode.streamed(RELATION, 700), encode.streamed(ROW, 700)),
    ],
    PREPARE_BEGUN: [*BEFORE, encode.begin_prepare(LSN, 701, "g"), RELATION],
    PREPARING: [*BEFORE, encode.begin_prepare(LSN, 701, "g"), RELATION, ROW],
}


def both_refuse(bodies: list[bytes], version: int = 4) -> list[ProtocolError]:
    errors = []
    for run in (
        lambda: slowly(bodies, version),
        lambda: quickly([bodies], version),
        lambda: quickly([[body] for body in bodies], version),
    ):
        with pytest.raises(ProtocolError) as refused:
            run()
        errors.append(refused.value)
    return errors


# Inside a block every Message carries an id, and whether it is transactional is seen at the commit.
PAIRS = [
    (state, event)
    for state, event in itertools.product(NEXT_STATE, events_of(4))
    if event != "m" or state not in {BLOCK_STARTED, STREAMING}
]


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_every_pair_of_state_and_event(state: str, event: str) -> None:
    body = BODIES[event]
    if state in {BLOCK_STARTED, STREAMING} and event in IN_BLOCK:
        body = encode.streamed(body, 700)
    bodies = [*WAY_TO[state], body]
    if event in NEXT_STATE[state]:
        slow, fast = (
            SlowReassembler(4),
            Reassembler(
                4, prepared=PreparedTransactions(Lsn(0), [], commits_without_prepare=False)
            ),
        )
        for each in bodies:
            slow.take(each)
        list(fast.take(chunk_of(bodies)))
        return
    for error in both_refuse(bodies):
        assert f"{EVENT_NAMES[event]} message {state}" in str(error)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_messages_of_later_versions_are_refused(version: int) -> None:
    # A rollback of what was never streamed comes in every version.
    for event in set(events_of(4)) - set(events_of(version)) - {"A"}:
        for error in both_refuse([BODIES[event]], version):
            assert f"which protocol version {version} lacks" in str(error)


def test_versions_reach_their_part_of_the_table() -> None:
    assert set(next_states(1)) == {OUTSIDE, BEGUN, CHANGING}
    assert set(next_states(2)) == {OUTSIDE, BEGUN, CHANGING, BLOCK_STARTED, STREAMING}
    assert next_states(4) == next_states(3) == NEXT_STATE


REFUSED = {
    "stream start again": [encode.stream_start(1, True), b"E", encode.stream_start(1, True)],
    "later block of an unknown transaction": [encode.stream_start(1, False)],
    "commit of an unknown transaction": [encode.stream_commit(1, LSN)],
    "a row of a subtransaction that was rolled back before the first block": [
        encode.stream_abort(1, 2),
        *(encode.stream_start(1, True), encode.streamed(RELATION, 2)),
    ],
    "abort of an unknown transaction that is too short": [encode.stream_abort(1, 1)[:-1]],
    "abort with the fields of parallel": [
        encode.stream_start(1, True),
        b"E",
        encode.stream_abort(1, 1, 9),
    ],
    "stream prepare of an unknown transaction": [encode.prepare(LSN, 1, "g", b"p")],
    "commit after abort": [
        *(encode.stream_start(1, True), b"E"),
        *(encode.stream_abort(1, 1), encode.stream_commit(1, LSN)),
    ],
    "a row of a subtransaction that was rolled back": [
        *(encode.stream_start(1, True), encode.streamed(RELATION, 2), b"E"),
        *(encode.stream_abort(1, 2), encode.stream_start(1, False), encode.streamed(ROW, 2)),
    ],
    "streamed message too short": [encode.stream_start(1, True), b"I\0\0\0", b"E"],
    "another prepare": [encode.begin_prepare(LSN, 1, "g"), encode.prepare(LSN, 1, "h")],
    "commit prepared of an unknown transaction": [encode.commit_prepared(LSN, 1, "g")],
    "commit prepared of another transaction with the gid": [
        *(encode.begin_prepare(LSN, 1, "g"), encode.prepare(LSN, 1, "g")),
        encode.commit_prepared(LSN + 64, 2, "g"),
    ],
    "stream commit with flags": [
        *(encode.stream_start(1, True), b"E"),
        encode.stream_commit(1, LSN, flags=1),
    ],
    "xid zero": [encode.stream_start(0, True)],
    "stream stop too long": [encode.stream_start(1, True), b"E\0"],
    "commits out of order": [
        *(encode.begin(LSN + 640), encode.commit(LSN + 640)),
        *(encode.stream_start(1, True), b"E", encode.stream_commit(1, LSN)),
    ],
    "a streamed row without its relation": [
        *(encode.stream_start(1, True), encode.streamed(ROW, 1), b"E"),
        encode.stream_commit(1, LSN),
    ],
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    both_refuse(REFUSED[case])


def test_a_prepare_without_its_begin_is_an_empty_transaction() -> None:
    """PostgreSQL 18.4 sends it of a transaction that changed nothing."""
    bodies = [encode.prepare(LSN, 1, "g"), encode.commit_prepared(LSN + 64, 1, "g")]
    bodies += [encode.begin(LSN + 128), RELATION, ROW, encode.commit(LSN + 128)]
    assert slowly(bodies) == quickly([bodies]) != []


def test_a_rollback_of_what_was_never_streamed_changes_nothing() -> None:
    """PostgreSQL 18 sends it of a large subtransaction; of what comes later nothing is missing."""
    never = [encode.stream_abort(1, 2), encode.stream_abort(1, 3), encode.stream_abort(1, 2)]
    bodies = [
        *(*never, encode.begin(LSN), RELATION, ROW, encode.commit(LSN)),
        *(
            encode.stream_start(1, True),
            encode.streamed(RELATION, 1),
            encode.streamed(ROW, 4),
            b"E",
        ),
        *(encode.stream_abort(9, 9), encode.stream_commit(1, LSN + 64)),
        *(encode.begin(LSN + 128), ROW, encode.commit(LSN + 128)),
    ]
    changes = slowly(bodies)
    assert [change.commit_lsn for change in changes] == [LSN, LSN + 64, LSN + 128]
    assert by_relation(quickly([bodies])) == by_relation(changes)
    assert by_relation(quickly([body] for body in bodies)) == by_relation(changes)
    whole = [*never, encode.begin(LSN), RELATION, ROW, encode.commit(LSN)]
    assert (
        by_relation(slowly(whole, 1))
        == by_relation(quickly([whole], 1))
        == by_relation(changes[:1])
    )
    unstreamed = UnstreamedAborts()
    for _ in range(2):
        # Several connections read the same rollback.
        list(Reassembler(4, unstreamed=unstreamed).take(chunk_of(bodies)))
    assert len(unstreamed) == 3


def test_an_abort_of_parallel_streaming_is_longer() -> None:
    bodies = [encode.stream_start(1, True), b"E", encode.stream_abort(1, 1, 9)]
    fast = Reassembler(4, parallel=True)
    assert not list(fast.take(chunk_of(bodies)))
    assert fast.open_streams == 0


def test_a_read_without_two_phase_refuses_prepared_transactions() -> None:
    with pytest.raises(ProtocolError, match="did not ask for two_phase"):
        list(Reassembler(4).take(chunk_of([BODIES["b"]])))


def test_an_unfinished_transaction_gives_nothing() -> None:
    bodies = [
        encode.stream_start(1, True),
        encode.streamed(RELATION, 1),
        encode.streamed(ROW, 1),
        b"E",
    ]
    fast = Reassembler(2)
    assert not list(fast.take(chunk_of(bodies)))
    assert fast.open_streams == 1


def test_what_is_unfinished_leaves_nothing_behind() -> None:
    """Prepared content outlives an answer of the server; what was still open in it does not."""
    spill = SpillFolder(memory_bytes=0)
    prepared = PreparedTransactions(Lsn(0), [], commits_without_prepare=False)
    block = [encode.stream_start(800, first=True), encode.streamed(RELATION, 800)]
    bodies = [
        *(encode.begin_prepare(LSN, 900, "g"), RELATION, ROW, encode.prepare(LSN, 900, "g")),
        *(*block, encode.streamed(ROW, 800), encode.stream_stop()),
        *(encode.begin_prepare(LSN + 64, 901, "h"), ROW),
    ]
    try:
        fast = Reassembler(4, new_spool=spill.new, prepared=prepared)
        assert list(fast.take(chunk_of(bodies))) == []
        (kept,) = prepared.open_at(Lsn(LSN + 1))
        folder = spill.path(0).parent
        assert len(list(folder.iterdir())) == 3
        fast.drop()
        assert len(list(folder.iterdir())) == 1
        assert sum(map(len, kept.spool.fragments())) == 2
    finally:
        spill.close()


def test_whole_transactions_pass_without_a_copy() -> None:
    chunk = chunk_of([encode.begin(LSN), RELATION, ROW, encode.commit(LSN)])
    (passed,) = Reassembler(4).take(chunk)
    assert passed is chunk


def test_a_relation_of_a_streamed_transaction_does_not_hide_a_newer_one() -> None:
    """The server announced version 2 to everybody after version 1 inside the transaction."""
    newer = encode.relation(T, [("a", 23), ("b", 25), ("c", 25)])
    bodies = [
        *(
            encode.stream_start(1, True),
            encode.streamed(RELATION, 1),
            encode.streamed(ROW, 1),
            b"E",
        ),
        *(encode.begin(LSN), newer, encode.insert(T, [b"2", b"x", b"c"]), encode.commit(LSN)),
        encode.stream_commit(1, LSN + 64),
        *(encode.begin(LSN + 128), encode.insert(T, [b"3", b"x", b"c"]), encode.commit(LSN + 128)),
    ]
    rows = [change.new for change in quickly([bodies])]
    assert rows == [(b"2", b"x", b"c"), (b"1", b"x"), (b"3", b"x", b"c")]


def test_a_prepared_transaction_keeps_the_relations_that_it_relies_on() -> None:
    newer = encode.relation(T, [("a", 23)])
    bodies = [
        *(encode.begin(LSN), RELATION, ROW, encode.commit(LSN)),
        *(encode.begin_prepare(LSN + 64, 5, "g"), ROW, encode.prepare(LSN + 64, 5, "g")),
        *(encode.begin(LSN + 128), newer, encode.insert(T, [b"9"]), encode.commit(LSN + 128)),
        encode.commit_prepared(LSN + 192, 5, "g"),
        *(encode.begin(LSN + 256), encode.insert(T, [b"8"]), encode.commit(LSN + 256)),
    ]
    rows = [change.new for change in quickly([bodies])]
    assert rows == [(b"1", b"x"), (b"9",), (b"1", b"x"), (b"8",)]


def test_a_prepared_transaction_may_change_a_table_between_its_rows() -> None:
    newer = encode.relation(T, [("a", 23)])
    bodies = [
        *(encode.begin(LSN), RELATION, ROW, encode.commit(LSN)),
        *(encode.begin_prepare(LSN + 64, 5, "g"), ROW, newer, encode.insert(T, [b"8"])),
        encode.prepare(LSN + 64, 5, "g"),
        *(encode.begin(LSN + 128), encode.relation(U), encode.commit(LSN + 128)),
        encode.commit_prepared(LSN + 192, 5, "g"),
        *(encode.begin(LSN + 256), encode.insert(T, [b"9"]), encode.commit(LSN + 256)),
    ]
    rows = [change.new for change in quickly([bodies])]
    assert rows == [(b"1", b"x"), (b"1", b"x"), (b"8",), (b"9",)]


def test_a_relation_of_a_prepared_transaction_comes_before_the_newer_ones_of_a_chunk() -> None:
    newer = encode.relation(T, [("a", 23)])
    bodies = [
        *(encode.begin_prepare(LSN, 5, "g"), RELATION, ROW, encode.prepare(LSN, 5, "g")),
        encode.rollback_prepared(LSN, LSN + 64, 5, "g"),
        *(encode.begin(LSN + 128), ROW, encode.commit(LSN + 128)),
        *(encode.begin(LSN + 192), newer, encode.insert(T, [b"9"]), encode.commit(LSN + 192)),
    ]
    assert [change.new for change in quickly([bodies])] == [(b"1", b"x"), (b"9",)]


def test_large_transactions_come_in_chunks_of_the_wanted_size() -> None:
    rows = [encode.streamed(encode.insert(T, [b"1", b"x" * 100]), 1) for _ in range(1000)]
    bodies = [encode.stream_start(1, True), encode.streamed(RELATION, 1), *rows, b"E"]
    bodies.append(encode.stream_commit(1, LSN))
    chunks = list(Reassembler(2, chunk_bytes=10_000).take(chunk_of(bodies)))
    assert len(chunks) > 5
    sizes = [int(each.offsets[-1] - each.offsets[0]) for each in chunks]
    assert max(sizes) <= 20_000 + 200
    assert sum(len(each.offsets) - 1 for each in chunks) >= 1003


def test_memory_of_spools_stays_within_the_budget() -> None:
    spill = SpillFolder(memory_bytes=100_000)
    fast = Reassembler(2, new_spool=spill.new)
    content = b"x" * 1000
    for number in range(400):
        xid = 1 + number % 3
        bodies = [
            encode.stream_start(xid, number < 3),
            encode.streamed(RELATION, xid),
            *[encode.streamed(encode.insert(T, [b"%d" % number, content]), xid)] * 5,
            b"E",
        ]
        assert not list(fast.take(chunk_of(bodies)))
        assert spill.held_bytes <= 100_000
    assert spill.written_bytes > 1_500_000
    decoder = Decoder()
    (blocks,) = (
        [*decoder.decode(each)] for each in fast.take(chunk_of([encode.stream_commit(2, LSN)]))
    )
    assert sum(len(each) for each in blocks) == 5 * 133
    assert np.concatenate([each.seq for each in blocks])[-1] == 5 * 133 - 1
    spill.close()


def test_a_disk_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    spill = SpillFolder(memory_bytes=1)
    with pytest.raises(StagingFull, match="cannot be put aside"):
        spill.new().append(one_message(b"I" * 100, 7))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill = SpillFolder(memory_bytes=1)
    spool = spill.new()
    spool.append(one_message(b"I" * 100, 7))
    for cut in (50, None):
        (file,) = tmp_path.glob("*/*")
        if cut is None:
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:cut])
        with pytest.raises(StagingFull, match="cannot be read back"):
            list(spool.fragments())
    spill.close()
