"""Damaged streams: both decoders refuse them, or both give the same; nothing else is ever raised.

A change inside a text value, an LSN or a time can leave a valid stream. Every recorded message is cut
and changed once, though many scenarios record the same; of long messages only both ends are, because
their middle is one value.
"""

from __future__ import annotations

import pytest

from tests.capture.pgoutput.support import SCENARIOS, newest_bodies, outcome_or_error

_END_BYTES = 64
#: Other kinds of tuples, values and messages: the changes that are most likely to look valid.
_LETTERS = b"ntubKONIUDTRYBCM"


def distinct_messages() -> dict[str, list[int]]:
    """By scenario: numbers of the messages that no scenario before has, LSNs, times and OIDs aside."""
    seen: set[bytes] = set()
    numbers: dict[str, list[int]] = {}
    for scenario in SCENARIOS:
        for number, body in enumerate(newest_bodies(scenario)):
            content = body[:1] if body[:1] in {b"B", b"C"} else body[:1] + body[5:]
            if content not in seen:
                seen.add(content)
                numbers.setdefault(scenario, []).append(number)
    return numbers


DISTINCT = distinct_messages()


def positions(body: bytes) -> list[int]:
    size = len(body)
    return [each for each in range(size) if each < _END_BYTES or each >= size - _END_BYTES]


@pytest.mark.parametrize("scenario", DISTINCT)
def test_every_cut_of_every_message(scenario: str) -> None:
    bodies = newest_bodies(scenario)
    for number in DISTINCT[scenario]:
        body = bodies[number]
        for size in positions(body):
            damaged = [*bodies[:number], body[:size], *bodies[number + 1 :]]
            reference, decoded = outcome_or_error(damaged)
            assert decoded == reference
            # Every length is in the message, so no part of one is a message.
            assert reference is None


@pytest.mark.parametrize("scenario", DISTINCT)
def test_changed_bytes_of_every_message(scenario: str) -> None:
    bodies = newest_bodies(scenario)
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
                reference, decoded = outcome_or_error(damaged)
                assert decoded == reference, (number, position, new)
                refused += reference is None
    assert refused


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_lost_doubled_and_swapped_messages(scenario: str) -> None:
    bodies = newest_bodies(scenario)
    for number in range(len(bodies)):
        before, this, after = bodies[:number], bodies[number : number + 1], bodies[number + 1 :]
        for damaged in (before + after, before + this + this + after, this + before + after):
            reference, decoded = outcome_or_error(damaged)
            assert decoded == reference
