"""Streams recorded from real servers: both decoders against the measured stream and each other."""

from __future__ import annotations

import itertools

import pytest

from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from tests.capture.pgoutput.notation import stream_notation
from tests.capture.pgoutput.support import (
    RECORDED,
    SCENARIOS,
    bodies_of_vector,
    chunk_of,
    decoder_outcome,
    every_vector,
    expected_notation,
    newest_bodies,
    newest_version,
    quickly,
    reading_of,
    reference_outcome,
    thinned,
)
from tests.sweep import slow_but_each

_SHORT = 6


def test_every_scenario_is_recorded() -> None:
    assert {name for name, _ in RECORDED} == set(SCENARIOS)


@every_vector
def test_the_vector_is_what_was_measured(scenario: str, version: str) -> None:
    bodies, reading = bodies_of_vector(scenario, version), reading_of(scenario, version)
    assert stream_notation(bodies, reading) == expected_notation(scenario, version)


@every_vector
def test_both_decoders_agree(scenario: str, version: str) -> None:
    bodies, reading = bodies_of_vector(scenario, version), reading_of(scenario, version)
    assert decoder_outcome([bodies], reading=reading) == reference_outcome(bodies, reading=reading)


@pytest.mark.parametrize("scenario", slow_but_each(8, SCENARIOS))
def test_chunk_boundaries_do_not_show(scenario: str) -> None:
    bodies = thinned(newest_bodies(scenario))
    reading = reading_of(scenario, newest_version(scenario))
    expected = reference_outcome(bodies, reading=reading)
    assert decoder_outcome(([body] for body in bodies), reading=reading) == expected
    for cut in range(len(bodies) + 1):
        assert decoder_outcome([bodies[:cut], bodies[cut:]], reading=reading) == expected


@pytest.mark.parametrize("scenario", slow_but_each(8, SCENARIOS))
def test_every_way_to_cut_a_short_stream(scenario: str) -> None:
    bodies = newest_bodies(scenario)[:_SHORT]
    reading = reading_of(scenario, newest_version(scenario))
    expected = reference_outcome(bodies, reading=reading)
    for is_cut in itertools.product((False, True), repeat=max(len(bodies) - 1, 0)):
        chunks = [bodies[:1]]
        for body, starts_chunk in zip(bodies[1:], is_cut, strict=True):
            if starts_chunk:
                chunks.append([])
            chunks[-1].append(body)
        assert decoder_outcome(chunks, reading=reading) == expected


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_bytes_around_the_messages_do_not_show(scenario: str) -> None:
    bodies = [
        chunk.data[first:last].tobytes()
        for chunk in quickly([newest_bodies(scenario)], reading_of(scenario))
        for first, last in itertools.pairwise(chunk.offsets.tolist())
    ]
    plain = Decoder().decode(chunk_of(bodies))
    padded = Decoder().decode(chunk_of(bodies, gap=13))
    assert [block.new for block in padded] == [block.new for block in plain]
    assert [block.old for block in padded] == [block.old for block in plain]
