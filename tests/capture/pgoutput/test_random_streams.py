"""Random streams, as no server would write them together: both decoders must agree on every one."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.pgoutput.reference import (
    UNCHANGED,
    Change,
    ReferenceDecoder,
    Value,
    changes_of_block,
)
from tests.capture.pgoutput import encode
from tests.capture.pgoutput.support import (
    Outcome,
    by_relation,
    chunk_of,
    decoder_outcome,
    outcome_or_error,
    reference_outcome,
    state_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_SETTINGS = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
_OIDS = (16385, 16386, 17000, 0xFFFFFFF0)
_LONGEST_TRANSACTION = 12

values = st.one_of(st.none(), st.binary(max_size=4), st.binary(min_size=200, max_size=300))


class Version(NamedTuple):
    width: int
    identity: str


versions = st.builds(Version, st.integers(0, 4), st.sampled_from("dnfi"))


origins = st.builds(encode.origin, st.integers(0, 3), st.sampled_from(["", "up", "é"]))


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], list[int]]:
    """Draw a valid stream and the LSNs of its commits."""
    known: dict[int, Version] = {}
    bodies: list[bytes] = []
    commits: list[int] = []
    lsn = draw(st.integers(1, 1 << 40))
    for _ in range(draw(st.integers(0, 6))):
        lsn += draw(st.integers(48, 1000))
        commits.append(lsn)
        bodies += draw(transactions(known, lsn))
        if draw(st.booleans()):
            bodies.append(draw(logical_messages(lsn + 44, transactional=False)))
    if bodies and draw(st.integers(0, 4)) == 0:
        # Ends inside a transaction, as a chunk may.
        bodies += draw(transactions(known, lsn + 5000))[:-1]
    return bodies, commits


@st.composite
def transactions(draw: st.DrawFn, known: dict[int, Version], lsn: int) -> list[bytes]:
    time_us = draw(st.integers(-(2**62), 2**62))
    bodies = [encode.begin(lsn, time_us, draw(st.integers(0, 2**32 - 1)))]
    bodies += draw(st.lists(origins, max_size=2))
    for _ in range(draw(st.integers(0, _LONGEST_TRANSACTION))):
        oid = draw(st.sampled_from(_OIDS))
        if oid not in known or draw(st.integers(0, 5)) == 0:
            # Often the same version again.
            version = draw(versions) if oid not in known or draw(st.booleans()) else known[oid]
            known[oid] = version
            columns = [(f"c{position}", 25) for position in range(version.width)]
            bodies.append(encode.relation(oid, columns, identity=version.identity))
        bodies.append(draw(changes(known, oid)))
    return [*bodies, encode.commit(lsn, lsn + 40, time_us)]


@st.composite
def changes(draw: st.DrawFn, known: dict[int, Version], oid: int) -> bytes:
    width, identity = known[oid]
    kind = "O" if identity == "f" else "K"
    old = st.lists(values, min_size=width, max_size=width)
    new = st.lists(values | st.just(UNCHANGED), min_size=width, max_size=width)
    event = draw(st.sampled_from("IIIUUUDDTMY"))
    if event == "I":
        return encode.insert(oid, draw(new))
    if event == "U":
        before: Sequence[Value] | None = draw(st.none() | old)
        return encode.update(oid, draw(new), before, kind)
    if event == "D":
        return encode.delete(oid, draw(old), kind)
    if event == "T":
        others = draw(st.lists(st.sampled_from(sorted(known)), min_size=1, unique=True))
        return encode.truncate(others, draw(st.integers(0, 3)))
    if event == "Y":
        return encode.type_message(oid, "mood")
    return draw(logical_messages(1, transactional=True))


@st.composite
def logical_messages(draw: st.DrawFn, lsn: int, *, transactional: bool) -> bytes:
    prefix = draw(st.sampled_from(["", "app", "é"]))
    content = draw(st.binary(max_size=8))
    return encode.logical_message(content, transactional=transactional, prefix=prefix, lsn=lsn)


@st.composite
def cuts(draw: st.DrawFn, bodies: list[bytes]) -> list[list[bytes]]:
    places = draw(st.lists(st.integers(0, len(bodies)), max_size=4).map(sorted))
    edges = [0, *places, len(bodies)]
    return [bodies[first:last] for first, last in itertools.pairwise(edges)]


@pytest.mark.slow
@given(st.data())
@_SETTINGS
def test_both_decoders_agree_wherever_the_stream_is_cut(data: st.DataObject) -> None:
    bodies, _ = data.draw(streams())
    assert decoder_outcome(data.draw(cuts(bodies))) == reference_outcome(bodies)


@pytest.mark.slow
@given(st.data())
@_SETTINGS
def test_ranges_of_lsns_together_are_the_whole(data: st.DataObject) -> None:
    bodies, commits = data.draw(streams())
    middle = Lsn(data.draw(st.sampled_from(commits) if commits else st.just(1)))
    middle = Lsn(middle + data.draw(st.integers(0, 1)))
    chunks = data.draw(cuts(bodies))
    below = decoder_outcome(chunks, None, middle)
    above = decoder_outcome(chunks, middle, None)
    assert below == reference_outcome(bodies, None, middle)
    assert above == reference_outcome(bodies, middle, None)
    whole, state = reference_outcome(bodies)
    assert joined(below, above) == whole
    found = [*below[1]["messages"], *above[1]["messages"]]
    assert Counter(found) == Counter(state["messages"])
    assert below[1]["transactions"] + above[1]["transactions"] == state["transactions"]


@pytest.mark.slow
@given(st.data())
@_SETTINGS
def test_transactions_that_are_left_out_leave_no_change(data: st.DataObject) -> None:
    bodies, commits = data.draw(streams())
    skip_lsns = {Lsn(each) for each in commits if data.draw(st.booleans())}
    slow, fast = ReferenceDecoder(skip_lsns=skip_lsns), Decoder(skip_lsns=skip_lsns)
    kept = by_relation(change for body in bodies for change in slow.decode(body))
    blocks = [b for part in data.draw(cuts(bodies)) for b in fast.decode(chunk_of(part))]
    assert by_relation(c for block in blocks for c in changes_of_block(block)) == kept
    assert state_of(fast) == state_of(slow)
    assert fast.skipped == slow.skipped
    assert set(fast.skipped) == skip_lsns
    everything, _ = reference_outcome(bodies)
    wanted = {
        oid: [each for each in found if each.commit_lsn not in skip_lsns]
        for oid, found in everything.items()
    }
    assert kept == {oid: found for oid, found in wanted.items() if found}


def joined(below: Outcome, above: Outcome) -> dict[int, list[Change]]:
    oids = {*below[0], *above[0]}
    return {oid: [*below[0].get(oid, []), *above[0].get(oid, [])] for oid in oids}


@pytest.mark.slow
@given(st.data())
@_SETTINGS
def test_both_decoders_agree_on_damaged_streams(data: st.DataObject) -> None:
    bodies, _ = data.draw(streams().filter(lambda stream: stream[0]))
    number = data.draw(st.integers(0, len(bodies) - 1))
    body = bytearray(bodies[number])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    reference, decoded = outcome_or_error([*bodies[:number], bytes(body), *bodies[number + 1 :]])
    assert decoded == reference


@given(st.lists(st.binary(max_size=40), max_size=6))
@_SETTINGS
def test_both_decoders_agree_on_noise(noise: list[bytes]) -> None:
    reference, decoded = outcome_or_error([encode.begin(100), encode.relation(1), *noise])
    assert decoded == reference
