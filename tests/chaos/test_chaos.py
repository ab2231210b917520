"""A few random programs in every test run; ``make chaos`` has as many as are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.__main__ import line, runs

if TYPE_CHECKING:
    from pathlib import Path


SEEDS = [4, 5]


@pytest.mark.slow
def test_what_random_programs_do_reaches_the_lake(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    version = request.config.getoption("--postgres-version")
    for result in runs(version, SEEDS, tmp_path, java=False, small=True):
        print(line(result))
        assert not result.faults, result.faults
        assert result.known or result.rows > 0
