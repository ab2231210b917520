"""A few runs of ``torture.py``; ``make torture SEED=1 RUNS=100`` does more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.capture.torture import torture

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("seed", range(1, 6))
def test_every_way_stages_the_same(seed: int, postgres_database: str, tmp_path: Path) -> None:
    done = torture(postgres_database, seed, tmp_path)
    assert done["changes"] > 20
    assert done["refused by the server"] <= 4
