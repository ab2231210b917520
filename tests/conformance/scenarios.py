"""All scenarios that run end to end, in the order of their ids."""

from __future__ import annotations

from tests.conformance import (
    scenarios_keys,
    scenarios_publications,
    scenarios_schema,
    scenarios_values,
)

SCENARIOS = tuple(
    sorted(
        (
            *scenarios_keys.SCENARIOS,
            *scenarios_values.SCENARIOS,
            *scenarios_schema.SCENARIOS,
            *scenarios_publications.SCENARIOS,
        ),
        key=lambda scenario: scenario.id,
    )
)
