"""Damaged streams: both decoders refuse them, or both give the same; nothing else is ever raised.

Of versions 2 to 4 the fast reassembly and the slow one stand before the decoders. A change inside a text
value, an LSN or a time can leave a valid stream, and so can one inside a transaction that is rolled back.

Every recorded message is cut at every byte, and each of its bytes becomes two others (``fuzz.py`` tries
more). Not all of them: of messages that are the same but for LSNs, times and OIDs only the first is
taken (of versions 2 to 4: of the same kind and length in a scenario), of long ones both ends, because
their middle is one value, and of runs of inserts of versions 2 to 4 the first and the last.
"""

from __future__ import annotations

import pytest

from tests.capture.pgoutput.support import (
    SCENARIOS,
    Reading,
    newest_bodies,
    newest_version,
    outcome_or_error,
    reading_of,
    thinned,
)

_END_BYTES = 64
#: Other kinds of tuples, values and messages: the changes that are most likely to look valid.
_LETTERS = b"ntubKONIUDTRYBCM"


def distinct_messages() -> dict[str, list[int]]:
    """By scenario: numbers of the messages that no scenario before has, LSNs, times and OIDs aside."""
    seen: set[object] = set()
    numbers: dict[str, list[int]] = {}
    for scenario in SCENARIOS:
        streams = reading_of(scenario).version > 1
        in_block = False
        for number, body in enumerate(bodies_of(scenario)):
            content: object = body[:1] + body[5:]
            if body[:1] in {b"B", b"C"}:
                content = body[:1]
            if streams:
                # What a row holds is damaged in the streams of version 1.
                content = (scenario, in_block, body[:1], len(body))
                in_block = body[:1] == b"S" or (in_block and body[:1] != b"E")
            if content not in seen:
                seen.add(content)
                numbers.setdefault(scenario, []).append(number)
    return numbers


def bodies_of(scenario: str) -> list[bytes]:
    bodies = newest_bodies(scenario)
    return thinned(bodies) if reading_of(scenario).version > 1 else bodies


def reading(scenario: str) -> Reading:
    return reading_of(scenario, newest_version(scenario))


DISTINCT = distinct_messages()


def positions(body: bytes) -> list[int]:
    size = len(body)
    return [each for each in range(size) if each < _END_BYTES or each >= size - _END_BYTES]


@pytest.mark.parametrize("scenario", DISTINCT)
def test_every_cut_of_every_message(scenario: str) -> None:
    bodies = bodies_of(scenario)
    for number in DISTINCT[scenario]:
        body = bodies[number]
        for size in positions(body):
            damaged = [*bodies[:number], body[:size], *bodies[number + 1 :]]
            reference, decoded = outcome_or_error(damaged, reading(scenario))
            assert decoded == reference, (number, size)
            # Every length is in the message, so no part of one is a message; but nobody looks at the
            # rows of a transaction that does not commit.
            assert reference is None or reading(scenario).version > 1


@pytest.mark.parametrize("scenario", DISTINCT)
def test_changed_bytes_of_every_message(scenario: str) -> None:
    bodies = bodies_of(scenario)
    refused = 0
    for number in DISTINCT[scenario]:
        body = bodies[number]
        for position in positions(body):
            old = body[position]
            letter = _LETTERS[(position + number) % len(_LETTERS)]
            other = (old ^ 1, old ^ 0x80, 0xFF, 0)[position % 4]
            for new in {letter, other} - {old}:
                changed = body[:position] + bytes([new]) + body[position + 1 :]
                damaged = [*bodies[:number], changed, *bodies[number + 1 :]]
                reference, decoded = outcome_or_error(damaged, reading(scenario))
                assert decoded == reference, (number, position, new)
                refused += reference is None
    assert refused


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_lost_doubled_and_swapped_messages(scenario: str) -> None:
    bodies = bodies_of(scenario)
    for number in range(len(bodies)):
        before, this, after = bodies[:number], bodies[number : number + 1], bodies[number + 1 :]
        for damaged in (before + after, before + this + this + after, this + before + after):
            reference, decoded = outcome_or_error(damaged, reading(scenario))
            assert decoded == reference, number
