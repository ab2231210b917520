"""Every cut and every value of every byte of the recorded messages: ``make sweep``.

``Damage`` says which messages are damaged and where; ``test_mutations.py`` takes two values a byte of it in
CI, the run by hand all 255 others. Not every message of every vector is taken: of those that are the same
but for LSNs, times and OIDs only the first (of versions 2 to 4: of the same kind and length in a scenario),
and of runs of inserts of versions 2 to 4 the first and the last. The middle of a long message is inside one
value, so each byte there becomes a single other. Random damage in several places is in ``fuzz.py``.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from tests.capture.pgoutput.support import (
    SCENARIOS,
    Reading,
    newest_bodies,
    newest_version,
    outcome_or_error,
    reading_of,
    thinned,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

END_BYTES = 64


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


def end_positions(body: bytes) -> list[int]:
    """The positions of both ends: a longer message's middle is one value."""
    size = len(body)
    return [each for each in range(size) if each < END_BYTES or each >= size - END_BYTES]


def cuts_and_values(bodies: list[bytes], number: int) -> Iterator[tuple[str, list[bytes]]]:
    """Every damage to one message as (what was done, the stream with it)."""
    body, before, after = bodies[number], bodies[:number], bodies[number + 1 :]
    for size in range(len(body)):
        yield f"cut to {size}", [*before, body[:size], *after]
    ends = set(end_positions(body))
    for position, old in enumerate(body):
        for new in range(256) if position in ends else [old ^ 1]:
            if new != old:
                changed = body[:position] + bytes([new]) + body[position + 1 :]
                yield f"byte {position} is {new}", [*before, changed, *after]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", default="1/1", help="2/4: the second quarter of the messages")
    share, _, shares = parser.parse_args().share.partition("/")
    started = time.monotonic()
    inputs = results = failures = 0
    messages = [(scenario, number) for scenario in DISTINCT for number in DISTINCT[scenario]]
    for scenario, number in messages[int(share) - 1 :: int(shares)]:
        for damage, bodies in cuts_and_values(bodies_of(scenario), number):
            inputs += 1
            where = f"{scenario}, message {number}, {damage}"
            try:
                reference, decoded = outcome_or_error(bodies, reading(scenario))
            except Exception as error:  # Only ProtocolError is allowed, and that was caught.
                failures += 1
                print(f"{where}: {type(error).__name__}: {error}", flush=True)
                continue
            results += reference is not None
            if decoded != reference:
                failures += 1
                print(f"{where}: the fast way and the slow one differ", flush=True)
    seconds = time.monotonic() - started
    print(f"{inputs} inputs in {seconds:.0f} s: {results} with a result, {failures} failed")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
