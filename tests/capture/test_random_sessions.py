"""A few runs of ``torture.py``; ``make torture SEED=1 RUNS=100`` does more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.capture.torture import torture
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from pathlib import Path


#: From version 16 on the server cannot decode a transaction of this seed before its end.
_TOO_EARLY = 109


@pytest.mark.parametrize("seed", slow_but_each(3, range(1, 6)))
def test_every_way_stages_the_same(seed: int, postgres_database: str, tmp_path: Path) -> None:
    done = torture(postgres_database, seed, tmp_path)
    assert done["changes"] > 20
    assert (done.get("large subtransaction", 0) > 10) == (seed % 2 == 0)
    # No more than all that ask for two_phase.
    assert done["refused by the server"] <= 9


def test_streaming_is_given_up_when_the_server_fails_at_it(
    postgres_database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = torture(postgres_database, _TOO_EARLY, tmp_path)
    again = [each for each in caplog.messages if "Reading again without streaming" in each]
    with psycopg.connect(postgres_database) as session:
        version = session.info.server_version
    # Both transports, text and binary, two_phase on and off; twice in parts, twice in parallel.
    assert len(again) == (12 if version >= 160000 else 0)
    assert done["refused by the server"] == 0
