"""What the protocol tests share: reading vectors, cutting chunks, running both decoders."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.pgoutput.prepared import PreparedTransactions
from airflow_provider_pgoutput.capture.pgoutput.reassemble import Reassembler
from airflow_provider_pgoutput.capture.pgoutput.reference import (
    Change,
    ReferenceDecoder,
    changes_of_block,
    messages_of_block,
)
from airflow_provider_pgoutput.capture.pgoutput.spool import MemorySpool
from airflow_provider_pgoutput.errors import ProtocolError
from tests.capture.pgoutput.slow_reassembly import SlowReassembler
from tests.vectors.record import plugin_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from airflow_provider_pgoutput.capture.pgoutput.spool import Spool

VECTORS = Path(__file__).parents[2] / "vectors"
SCENARIOS: dict[str, dict[str, Any]] = {
    each["name"]: each for each in json.loads((VECTORS / "scenarios.json").read_text())
}
#: Every recorded stream, as (scenario, version).
RECORDED = sorted(
    (path.parent.name, path.name.partition(".")[0].removeprefix("pg"))
    for path in VECTORS.glob("*/pg*.hex*")
)

every_vector = pytest.mark.parametrize(
    ("scenario", "version"), RECORDED, ids=[f"{name}-{version}" for name, version in RECORDED]
)


class Reading(NamedTuple):
    """The options of a read that change what the bytes mean."""

    version: int = 1
    parallel: bool = False
    two_phase: bool = False
    #: See ``prepared.py``.
    commits_without_prepare: bool = False


V1 = Reading()


def reading_of(scenario: str, version: str = "18") -> Reading:
    asked = SCENARIOS[scenario]["pgoutput_options"]
    number = int(plugin_options(SCENARIOS[scenario])["proto_version"])
    two_phase = "two_phase" in asked
    # Recorded from 15.18 and 16.14.
    commits_without_prepare = version in {"15", "16"}
    parallel = asked.get("streaming") == "parallel"
    return Reading(number, parallel, two_phase, commits_without_prepare)


def bodies_of_vector(scenario: str, version: str) -> list[bytes]:
    path = VECTORS / scenario / f"pg{version}.hex"
    if path.exists():
        text = path.read_text()
    else:
        text = gzip.decompress(path.with_suffix(".hex.gz").read_bytes()).decode()
    return [bytes.fromhex(line) for line in text.splitlines()]


def newest_version(scenario: str) -> str:
    return max(version for name, version in RECORDED if name == scenario)


def newest_bodies(scenario: str) -> list[bytes]:
    return bodies_of_vector(scenario, newest_version(scenario))


def thinned(bodies: list[bytes]) -> list[bytes]:
    """A long stream without the middle of its runs of inserts: every other message stays."""
    kept = []
    for tag, run in itertools.groupby(bodies, key=lambda body: body[:1]):
        messages = list(run)
        kept += messages[:1] + messages[-1:] if tag == b"I" and len(messages) > 3 else messages
    return kept


def expected_notation(scenario: str, version: str) -> str:
    entry = SCENARIOS[scenario]
    if "messages" in entry:
        expected: str = entry["messages"]
    else:
        expected = entry["messages_by_version"][version]
    return expected


def chunk_of(bodies: list[bytes], *, gap: int = 0) -> MessageChunk:
    """Lay messages into one buffer, ``gap`` foreign bytes before and after them."""
    edge = b"I" * gap
    data = np.frombuffer(edge + b"".join(bodies) + edge, dtype=np.uint8)
    offsets = np.cumsum([gap, *(len(body) for body in bodies)], dtype=np.int64)
    return MessageChunk(data, offsets)


def by_relation(changes: Iterable[Change]) -> dict[int, list[Change]]:
    """What does not depend on chunk boundaries: the changes of each relation, in their order."""
    found: dict[int, list[Change]] = {}
    for change in changes:
        found.setdefault(change.relation.oid, []).append(change)
    return found


def state_of(decoder: Decoder | ReferenceDecoder) -> dict[str, Any]:
    names = (
        "transactions",
        "last_commit",
        "in_transaction",
        "relations",
        "types",
        "origins",
        "logical_messages",
    )
    return {name: getattr(decoder, name) for name in names}


Outcome = tuple[dict[int, list[Change]], dict[str, Any]]


def slowly(bodies: Iterable[bytes], reading: Reading) -> Iterator[bytes]:
    """The messages of whole transactions, as the slow way gives them."""
    slow = SlowReassembler(
        reading.version,
        parallel=reading.parallel,
        two_phase=reading.two_phase,
        commits_without_prepare=reading.commits_without_prepare,
    )
    for body in bodies:
        yield from slow.take(body)


def quickly(
    chunks: Iterable[list[bytes]],
    reading: Reading,
    new_spool: Callable[[], Spool] = MemorySpool,
) -> Iterator[MessageChunk]:
    """The chunks of whole transactions, as the fast way gives them."""
    prepared = PreparedTransactions(
        Lsn(0), [], commits_without_prepare=reading.commits_without_prepare
    )
    fast = Reassembler(
        reading.version,
        parallel=reading.parallel,
        new_spool=new_spool,
        prepared=prepared if reading.two_phase else None,
    )
    for bodies in chunks:
        yield from fast.take(chunk_of(bodies, gap=3))


def reference_outcome(
    bodies: list[bytes],
    start_lsn: Lsn | None = None,
    end_lsn: Lsn | None = None,
    reading: Reading = V1,
) -> Outcome:
    decoder = ReferenceDecoder(start_lsn, end_lsn)
    changes = [change for body in slowly(bodies, reading) for change in decoder.decode(body)]
    return by_relation(changes), _comparable(decoder, reading)


def decoder_outcome(
    chunks: Iterable[list[bytes]],
    start_lsn: Lsn | None = None,
    end_lsn: Lsn | None = None,
    reading: Reading = V1,
) -> Outcome:
    decoder = Decoder(start_lsn, end_lsn)
    changes = [
        change
        for chunk in quickly(chunks, reading)
        for block in decoder.decode(chunk)
        for change in changes_of_block(block)
    ]
    return by_relation(changes), _comparable(decoder, reading)


def _comparable(decoder: Decoder | ReferenceDecoder, reading: Reading) -> dict[str, Any]:
    state = state_of(decoder)
    if isinstance(decoder, ReferenceDecoder):
        state["messages"] = decoder.messages
    else:
        blocks = decoder.take_messages()
        state["messages"] = [each for block in blocks for each in messages_of_block(block)]
    if reading.version > 1:
        # The slow way announces every relation again and again, the fast one what is needed.
        del state["relations"]
    return state


def outcome_or_error(
    bodies: list[bytes], reading: Reading = V1
) -> tuple[Outcome | None, Outcome | None]:
    """Both outcomes, None where a decoder refused; any exception but ProtocolError goes through."""
    try:
        reference: Outcome | None = reference_outcome(bodies, reading=reading)
    except ProtocolError:
        reference = None
    try:
        decoded: Outcome | None = decoder_outcome([bodies], reading=reading)
    except ProtocolError:
        decoded = None
    return reference, decoded
