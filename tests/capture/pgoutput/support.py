"""What the protocol tests share: reading vectors, cutting chunks, running both decoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.pgoutput.reference import (
    Change,
    ReferenceDecoder,
    changes_of_block,
    messages_of_block,
)
from airflow_provider_pgoutput.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_pgoutput.batch.lsn import Lsn

VECTORS = Path(__file__).parents[2] / "vectors"
SCENARIOS: dict[str, dict[str, Any]] = {
    each["name"]: each for each in json.loads((VECTORS / "scenarios.json").read_text())
}
#: Every recorded stream, as (scenario, version).
RECORDED = sorted(
    (path.parent.name, path.stem.removeprefix("pg")) for path in VECTORS.glob("*/pg*.hex")
)

every_vector = pytest.mark.parametrize(
    ("scenario", "version"), RECORDED, ids=[f"{name}-{version}" for name, version in RECORDED]
)


def bodies_of_vector(scenario: str, version: str) -> list[bytes]:
    text = (VECTORS / scenario / f"pg{version}.hex").read_text()
    return [bytes.fromhex(line) for line in text.splitlines()]


def newest_bodies(scenario: str) -> list[bytes]:
    newest = max(version for name, version in RECORDED if name == scenario)
    return bodies_of_vector(scenario, newest)


def expected_notation(scenario: str, version: str) -> str:
    entry = SCENARIOS[scenario]
    expected: str = entry.get("messages") or entry["messages_by_version"][version]
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


def reference_outcome(
    bodies: list[bytes], start_lsn: Lsn | None = None, end_lsn: Lsn | None = None
) -> Outcome:
    decoder = ReferenceDecoder(start_lsn, end_lsn)
    changes = [change for body in bodies for change in decoder.decode(body)]
    return by_relation(changes), {**state_of(decoder), "messages": decoder.messages}


def decoder_outcome(
    chunks: Iterable[list[bytes]], start_lsn: Lsn | None = None, end_lsn: Lsn | None = None
) -> Outcome:
    decoder = Decoder(start_lsn, end_lsn)
    changes = [
        change
        for bodies in chunks
        for block in decoder.decode(chunk_of(bodies))
        for change in changes_of_block(block)
    ]
    messages = [each for block in decoder.take_messages() for each in messages_of_block(block)]
    return by_relation(changes), {**state_of(decoder), "messages": messages}


def outcome_or_error(bodies: list[bytes]) -> tuple[Outcome | None, Outcome | None]:
    """Both outcomes, None where a decoder refused; any exception but ProtocolError goes through."""
    try:
        reference: Outcome | None = reference_outcome(bodies)
    except ProtocolError:
        reference = None
    try:
        decoded: Outcome | None = decoder_outcome([bodies])
    except ProtocolError:
        decoded = None
    return reference, decoded
