"""Ranges of keys for many scattered differences, and how rows are added to them. No server is needed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_pgoutput.proof.key_ranges import KeyRanges
from airflow_provider_pgoutput.proof.ranges import Ranges

_NAMES = ("id", "id")


@pytest.mark.parametrize(
    ("least", "greatest", "count", "fine"),
    [
        (1, 1, 1, 1),
        (1, 500, 500, 500),
        (-(2**63), 2**63 - 1, 4_096, 1 << 20),
        (1, 20_000_000, 2_442, 625_001),
        (5_000_000, 5_200_000, 3_126, 6_251),
    ],
)
def test_fine_ranges_have_few_numbers(least: int, greatest: int, count: int, fine: int) -> None:
    assert KeyRanges.between(_NAMES, least, greatest).count == count
    found = KeyRanges.between(_NAMES, least, greatest, is_fine=True)
    assert found.count == fine
    ends = pa.array([least, greatest], pa.int64())
    assert found.numbers(ends).tolist() == [0, fine - 1]


def test_rows_are_added_to_their_ranges() -> None:
    random, count = np.random.default_rng(7), 1_000
    found, rows, totals = Ranges.empty(count), [0] * count, [0] * count
    for size, least, end in ((0, 0, 1), (1, 999, 1_000), (5_000, 0, 1_000), (3_000, 400, 420)):
        numbers = random.integers(least, end, size, np.int64)
        hashes = random.integers(0, 2**64, size, np.uint64)
        found.add(numbers, hashes)
        for number, one in zip(numbers.tolist(), hashes.tolist(), strict=True):
            rows[number] += 1
            totals[number] = (totals[number] + one) % 2**64
    assert found.rows.tolist() == rows
    assert found.totals.tolist() == totals
