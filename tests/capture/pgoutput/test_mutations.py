"""Damaged streams: both decoders refuse them, or both give the same; nothing else is ever raised.

Of versions 2 to 4 the fast reassembly and the slow one stand before the decoders. A change inside a text
value, an LSN or a time can leave a valid stream, and so can one inside a transaction that is rolled back.

Of the messages that ``sweep.py`` chooses, both ends are cut at every byte and each byte becomes two
others; all 255 others are for a run by hand.
"""

from __future__ import annotations

import pytest

from tests.capture.pgoutput.support import SCENARIOS, outcome_or_error
from tests.capture.pgoutput.sweep import (
    DISTINCT,
    bodies_of,
    cuts_and_values,
    end_positions,
    reading,
)
from tests.sweep import slow_but_each

#: Other kinds of tuples, values and messages: the changes that are most likely to look valid.
_LETTERS = b"ntubKONIUDTRYBCM"


@pytest.mark.parametrize("scenario", slow_but_each(13, DISTINCT))
def test_every_cut_of_every_message(scenario: str) -> None:
    bodies = bodies_of(scenario)
    for number in DISTINCT[scenario]:
        body = bodies[number]
        for size in end_positions(body):
            damaged = [*bodies[:number], body[:size], *bodies[number + 1 :]]
            reference, decoded = outcome_or_error(damaged, reading(scenario))
            assert decoded == reference, (number, size)
            # Every length is in the message, so no part of one is a message; but nobody looks at the
            # rows of a transaction that does not commit.
            assert reference is None or reading(scenario).version > 1


@pytest.mark.parametrize("scenario", slow_but_each(13, DISTINCT))
def test_changed_bytes_of_every_message(scenario: str) -> None:
    bodies = bodies_of(scenario)
    refused = 0
    for number in DISTINCT[scenario]:
        body = bodies[number]
        for position in end_positions(body):
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


def test_the_run_by_hand_reaches_every_byte_and_value() -> None:
    bodies = [b"B", bytes([7]) * 200, b"C"]
    damaged = [tuple(stream) for _, stream in cuts_and_values(bodies, 1)]
    assert len(damaged) == len(set(damaged)) == 200 + 128 * 255 + 72
    assert all(len(stream) == 3 and stream[0] == b"B" and stream[2] == b"C" for stream in damaged)


@pytest.mark.parametrize("scenario", slow_but_each(13, SCENARIOS))
def test_lost_doubled_and_swapped_messages(scenario: str) -> None:
    bodies = bodies_of(scenario)
    for number in range(len(bodies)):
        before, this, after = bodies[:number], bodies[number : number + 1], bodies[number + 1 :]
        for damaged in (before + after, before + this + this + after, this + before + after):
            reference, decoded = outcome_or_error(damaged, reading(scenario))
            assert decoded == reference, number
