"""A pipeline lives its whole life in catalogs and stores of other makers (``make lakes``, or ``ALL=1``)."""

from __future__ import annotations

import pytest

from tests.lakes.lakes import LAKES, live_in
from tests.lakes.programs import Unavailable


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LAKES)
def test_a_pipeline_lives_in(name: str) -> None:
    """``tests/matrix/life.py`` has the steps, and compares every row after each of them."""
    try:
        live_in(name)
    except Unavailable as error:
        pytest.skip(str(error))
