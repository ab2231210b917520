"""Where a backlog is cut: the whole range, no part twice, and none that costs more to reach than to read."""

from __future__ import annotations

import pytest

from airflow_provider_pgoutput.capture.source.parts import (
    PART_BYTES,
    Cutting,
    sensible_connections,
    useful_connections,
)

_MIB = 1 << 20


def widths(cutting: Cutting, start: int, restart_of: dict[int, int] | None = None) -> list[int]:
    """The widths of all parts in MiB; ``restart_of`` a start the server restarts behind it, else at it."""
    found = []
    while start < cutting.target:
        end = cutting.end(start, (restart_of or {}).get(start, start))
        assert start < end <= cutting.target
        found.append((end - start) // _MIB)
        start = end
    return found


def test_parts_become_narrower_so_that_connections_end_together() -> None:
    assert widths(Cutting(1000 * _MIB, 2), 0) == [192, 192, 192, 192, 116, 58, 29, 16, 13]
    assert widths(Cutting(1000 * _MIB, 4), 0)[:3] == [192, 192, 154]


def test_one_connection_cuts_by_size_alone() -> None:
    assert widths(Cutting(500 * _MIB, 1), 0) == [192, 192, 116]


def test_a_part_is_as_wide_as_the_way_to_it() -> None:
    """A transaction that stays open: the server reads the WAL again from its beginning each time."""
    cutting = Cutting(4000 * _MIB, 2, 64 * _MIB)
    start, found = 100 * _MIB, []
    while start < cutting.target:
        end = cutting.end(start, 0)
        found.append((end - start) // _MIB)
        start = end
    assert found == [100, 200, 400, 800, 1600, 800]


@pytest.mark.parametrize("part_bytes", [1, 1 << 13])
def test_small_parts_stay_small(part_bytes: int) -> None:
    assert Cutting(100_000, 3, part_bytes).end(5_000, 5_000) == 5_000 + part_bytes


def test_the_number_of_connections_follows_backlog_cores_and_free_slots() -> None:
    assert sensible_connections(0, 16, 9) == 1
    assert sensible_connections(63 * _MIB, 16, 9) == 1
    assert sensible_connections(64 * _MIB, 16, 9) == 2
    assert sensible_connections(10**12, 16, 9) == 4
    assert sensible_connections(10**12, 2, 9) == 2
    assert sensible_connections(10**12, 1, 9) == 1
    # Half of what is free is left to others.
    assert sensible_connections(10**12, 16, 5) == 2
    assert sensible_connections(10**12, 16, 1) == 1


def test_no_connection_without_a_part() -> None:
    assert useful_connections(0, PART_BYTES) == 1
    assert useful_connections(20 * _MIB, PART_BYTES) == 2
    assert useful_connections(3 * PART_BYTES, PART_BYTES) > 8
