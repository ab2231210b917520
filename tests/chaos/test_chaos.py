"""A few random programs in every test run; ``make chaos`` has as many as are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.__main__ import line, runs

if TYPE_CHECKING:
    from pathlib import Path


#: The second one shares tables, and meets more refusals, in another order each time.
SEEDS = [pytest.param(4, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.further)]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_random_programs_do_reaches_the_lake(
    tmp_path: Path, request: pytest.FixtureRequest, seed: int
) -> None:
    version = request.config.getoption("--postgres-version")
    for result in runs(version, [seed], tmp_path, java=False, small=True):
        print(line(result))
        assert not result.faults, result.faults
        assert result.known or result.rows > 0
