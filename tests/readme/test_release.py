"""The archives of a release can be built and would be taken by the package index.

What is not here: the tutorial from the wheel, which ``make release`` does as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput import __version__
from tests.lakes.programs import Unavailable
from tests.readme.release import build, check, newest_in_changelog

if TYPE_CHECKING:
    from pathlib import Path


def test_the_changelog_begins_with_this_version() -> None:
    assert newest_in_changelog()[0] == __version__


@pytest.mark.slow
def test_sdist_and_wheel_would_be_taken(tmp_path: Path) -> None:
    archives = build(tmp_path)
    try:
        check(*archives)
    except Unavailable as error:
        pytest.skip(str(error))
    for each in archives:
        assert each.stat().st_size < 5_000_000, each
