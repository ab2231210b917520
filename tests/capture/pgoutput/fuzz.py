"""Damaged streams of every version, as many as wanted: ``make fuzz INPUTS=100000 SEED=1``.

An input is a recorded vector or a random program, damaged in up to four places and cut into chunks at
random. ``Reassembler`` and ``Decoder`` must give what the slow reassembly and the reference decoder give, or
both must raise ProtocolError; any other exception is a failure. Number and seed make the input, so a run
can be repeated. What fails is written to ``found/``, from where ``test_fuzz.py`` replays it for ever.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import json
import random
import sys
import time
from pathlib import Path

from airflow_provider_pgoutput.errors import ProtocolError
from tests.capture.pgoutput.programs import Program, cuts
from tests.capture.pgoutput.support import (
    SCENARIOS,
    Outcome,
    Reading,
    decoder_outcome,
    newest_bodies,
    newest_version,
    reading_of,
    reference_outcome,
    thinned,
)

FOUND = Path(__file__).parent / "found"
#: Longer streams only make an input slower.
_LONGEST = 60
_LETTERS = b"ntubKONIUDTRYBCMSEcAPprK"


@dataclasses.dataclass(frozen=True)
class Input:
    """One stream, its chunks and how it is read."""

    chunks: list[list[bytes]]
    reading: Reading

    @property
    def bodies(self) -> list[bytes]:
        return [body for chunk in self.chunks for body in chunk]

    def to_json(self) -> str:
        chunks = [[body.hex() for body in chunk] for chunk in self.chunks]
        return json.dumps({"reading": self.reading._asdict(), "chunks": chunks}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Input:
        content = json.loads(text)
        chunks = [[bytes.fromhex(body) for body in chunk] for chunk in content["chunks"]]
        return cls(chunks, Reading(**content["reading"]))


def make(seed: int, number: int) -> Input:
    """The input of a seed and a number."""
    choose = random.Random(f"{seed} {number}")  # noqa: S311 - a test has to repeat itself
    bodies, reading = _base(choose)
    # Most streams are short: what an input finds hardly depends on its length, what it costs does.
    bodies = list(bodies[: choose.choice((4, 6, 8, 10, 12, 40))])
    for _ in range(choose.randint(0, 4)):
        if bodies:
            _damage(choose, bodies)
    # What a chunk costs is most of what an input costs, so few inputs are cut into many.
    most = choose.choice((0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 8))
    return Input(cuts(bodies, choose.randrange(1 << 30), most), reading)


def check(one: Input) -> bool:
    """Demand that both ways agree; whether they gave a result."""
    reference, decoded = reference_of(one), decoded_of(one)
    assert decoded == reference, "the fast way and the slow one differ"
    return reference is not None


def reference_of(one: Input) -> Outcome | None:
    try:
        return reference_outcome(one.bodies, reading=one.reading)
    except ProtocolError:
        return None


def decoded_of(one: Input) -> Outcome | None:
    try:
        return decoder_outcome(one.chunks, reading=one.reading)
    except ProtocolError:
        return None


@functools.cache
def _vectors() -> list[tuple[list[bytes], Reading]]:
    found = []
    for scenario in SCENARIOS:
        bodies = thinned(newest_bodies(scenario))[:_LONGEST]
        reading = reading_of(scenario, newest_version(scenario))
        # Half of what is drawn shall be of a version that needs reassembly.
        found += [(bodies, reading)] * (5 if reading.version > 1 else 1)
    return found


def _base(choose: random.Random) -> tuple[list[bytes], Reading]:
    if choose.random() < 0.5:
        return Program(choose.randrange(1 << 30)).run(choose.choice((4, 6, 9, 20))), Reading(
            4, False, True
        )
    bodies, reading = choose.choice(_vectors())
    if reading.version == 1 and choose.random() < 0.5:
        # Whole transactions look the same in every version.
        reading = reading._replace(version=choose.randint(2, 4), two_phase=choose.random() < 0.5)
    return bodies, reading


def _damage(choose: random.Random, bodies: list[bytes]) -> None:
    place = choose.randrange(len(bodies))
    body = bytearray(bodies[place])
    kind = choose.random()
    if kind < 0.4 and body:
        position = min(choose.randrange(len(body)), choose.randrange(len(body)))
        body[position] = choose.choice((choose.randrange(256), choose.choice(_LETTERS), 0, 1, 255))
        bodies[place] = bytes(body)
    elif kind < 0.5:
        bodies[place] = bytes(body[: choose.randint(0, len(body))])
    elif kind < 0.55:
        bodies[place] = bytes(body) + choose.randbytes(choose.randint(1, 9))
    elif kind < 0.65:
        del bodies[place]
    elif kind < 0.75:
        bodies.insert(choose.randint(0, len(bodies)), bytes(body))
    elif kind < 0.85:
        other = choose.randrange(len(bodies))
        bodies[place], bodies[other] = bodies[other], bodies[place]
    elif kind < 0.95:
        _copy_number(choose, bodies, place)
    else:
        others, _ = _base(choose)
        bodies[place:place] = others[: choose.randint(0, 6)]


def _copy_number(choose: random.Random, bodies: list[bytes], place: int) -> None:
    """Put four bytes of one message into another: ids and OIDs that exist are the interesting ones."""
    source, target = choose.choice(bodies), bytearray(bodies[place])
    if len(source) > 5 and len(target) > 5:
        start = choose.choice((1, choose.randrange(1, len(source) - 4)))
        position = choose.choice((1, choose.randrange(1, len(target) - 4)))
        target[position : position + 4] = source[start : start + 4]
        bodies[place] = bytes(target)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    asked = parser.parse_args()
    started = time.monotonic()
    number = results = failures = 0
    # Looking for cycles after every few inputs took a sixth of the time.
    gc.freeze()
    gc.disable()
    while number < asked.inputs and time.monotonic() - started < asked.seconds:
        one = make(asked.seed, number)
        try:
            results += check(one)
        except Exception as error:  # Whatever it is, the input is what counts.
            failures += 1
            path = FOUND / f"seed_{asked.seed}_{number}.json"
            path.write_text(one.to_json())
            print(f"{path}: {type(error).__name__}: {error}", flush=True)
        number += 1
        if number % 10_000 == 0:
            gc.collect()
    seconds = time.monotonic() - started
    print(
        f"{number} inputs in {seconds:.0f} s, seed {asked.seed}: {results} with a result, {failures} failed"
    )
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
