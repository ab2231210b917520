"""Where a backlog is cut: the whole range, no part twice, and none that costs more to reach than to read."""

from __future__ import annotations

import pytest

from airflow_provider_pgoutput.capture.stream.sql_parallel import (
    PART_BYTES,
    Cutting,
    sensible_connections,
    useful_connections,
)

_MIB = 1 << 20


def widths(cutting: Cutting, restart: int | None = None) -> list[int]:
    """The widths of all parts in MiB; the server restarts at each part's start, or always at ``restart``."""
    low, found = cutting.start, []
    while low < cutting.target:
        end = cutting.end(low, low if restart is None else restart)
        assert low < end <= cutting.target
        found.append((end - low) // _MIB)
        low = end
    return found


def test_parts_are_equal_and_as_many_for_each_connection() -> None:
    start = 7 * _MIB
    assert widths(Cutting(start, start + 100 * _MIB, 2)) == [50, 50]
    assert widths(Cutting(start, start + 384 * _MIB, 2)) == [192, 192]
    assert widths(Cutting(start, start + 400 * _MIB, 2)) == [100] * 4
    assert widths(Cutting(start, start + 900 * _MIB, 3)) == [150] * 6
    assert widths(Cutting(start, start + 400 * _MIB, 1)) == [133, 133, 133]


def test_a_part_is_as_wide_as_the_way_to_it() -> None:
    """A transaction that stays open: the server reads the WAL again from its beginning each time."""
    cutting = Cutting(100 * _MIB, 4000 * _MIB, 2, 64 * _MIB)
    assert widths(cutting, restart=0) == [100, 200, 400, 800, 1600, 800]
    # The rest is read where it would cost more to get there.
    assert widths(Cutting(0, 400 * _MIB, 4), restart=0) == [100, 100, 200]


@pytest.mark.parametrize("part_bytes", [1, 1 << 13])
def test_small_parts_stay_small(part_bytes: int) -> None:
    end = Cutting(5_000, 100_000, 3, part_bytes).end(5_000, 5_000)
    assert 5_000 < end <= 5_000 + max(part_bytes, 1024)
    assert end % 1024 == 0


@pytest.mark.parametrize("start", [0x1A000, 0x1A001, 0x1BFFF, 12_345_678])
def test_no_cut_is_inside_the_header_of_a_wal_page(start: int) -> None:
    """A record that ends where the page before does would leave the one behind the header to both parts."""
    cutting, low, cuts = Cutting(start, start + 100 * _MIB + 77, 3, 5_000_000), start, []
    while low < cutting.target:
        low = cutting.end(low, low)
        cuts.append(low)
    assert len(cuts) > 20
    assert all(cut % 1024 == 0 for cut in cuts[:-1])


def test_the_number_of_connections_follows_backlog_cores_and_free_slots() -> None:
    assert sensible_connections(0, 16, 9) == 1
    # Copies of the slot cost more than a second connection gains.
    assert sensible_connections(63 * _MIB, 16, 9) == 1
    assert sensible_connections(64 * _MIB, 16, 9) == 2
    assert sensible_connections(10**12, 16, 9) == 4
    assert sensible_connections(10**12, 2, 9) == 2
    assert sensible_connections(10**12, 1, 9) == 1
    # Other processes use all cores.
    assert sensible_connections(10**12, 0, 9) == 1
    # Half of what is free is left to others.
    assert sensible_connections(10**12, 16, 5) == 2
    assert sensible_connections(10**12, 16, 1) == 1


def test_no_connection_without_a_part() -> None:
    assert useful_connections(0, PART_BYTES) == 1
    assert useful_connections(20 * _MIB, PART_BYTES) == 2
    assert useful_connections(3 * PART_BYTES, PART_BYTES) > 8
