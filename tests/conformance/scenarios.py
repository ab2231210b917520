"""All scenarios that run end to end, in the order of their ids."""

from __future__ import annotations

from tests.conformance import (
    scenarios_filters,
    scenarios_keys,
    scenarios_partitions,
    scenarios_publications,
    scenarios_reading,
    scenarios_schema,
    scenarios_streaming,
    scenarios_values,
)

SCENARIOS = tuple(
    sorted(
        (
            *scenarios_keys.SCENARIOS,
            *scenarios_values.SCENARIOS,
            *scenarios_schema.SCENARIOS,
            *scenarios_publications.SCENARIOS,
            *scenarios_filters.SCENARIOS,
            *scenarios_partitions.SCENARIOS,
            *scenarios_reading.SCENARIOS,
            *scenarios_streaming.SCENARIOS,
        ),
        key=lambda scenario: int(scenario.id[1:]),
    )
)
