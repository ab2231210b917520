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
    reference_outcome,
)

_SHORT = 6


def test_every_scenario_is_recorded() -> None:
    assert {name for name, _ in RECORDED} == set(SCENARIOS)


@every_vector
def test_reference_decodes_what_was_measured(scenario: str, version: str) -> None:
    assert stream_notation(bodies_of_vector(scenario, version)) == expected_notation(
        scenario, version
    )


@every_vector
def test_both_decoders_agree(scenario: str, version: str) -> None:
    bodies = bodies_of_vector(scenario, version)
    assert decoder_outcome([bodies]) == reference_outcome(bodies)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_chunk_boundaries_do_not_show(scenario: str) -> None:
    bodies = newest_bodies(scenario)
    expected = reference_outcome(bodies)
    assert decoder_outcome([body] for body in bodies) == expected
    for cut in range(len(bodies) + 1):
        assert decoder_outcome([bodies[:cut], bodies[cut:]]) == expected


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_way_to_cut_a_short_stream(scenario: str) -> None:
    bodies = newest_bodies(scenario)[:_SHORT]
    expected = reference_outcome(bodies)
    for is_cut in itertools.product((False, True), repeat=len(bodies) - 1):
        chunks = [bodies[:1]]
        for body, starts_chunk in zip(bodies[1:], is_cut, strict=True):
            if starts_chunk:
                chunks.append([])
            chunks[-1].append(body)
        assert decoder_outcome(chunks) == expected


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_bytes_around_the_messages_do_not_show(scenario: str) -> None:
    bodies = newest_bodies(scenario)
    plain, padded = Decoder().decode(chunk_of(bodies)), Decoder().decode(chunk_of(bodies, gap=13))
    assert [block.new for block in padded] == [block.new for block in plain]
    assert [block.old for block in padded] == [block.old for block in plain]
