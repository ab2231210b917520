"""A short run of ``fuzz.py``, and every input that ever failed."""

from __future__ import annotations

import pytest

from tests.capture.pgoutput.fuzz import FOUND, Input, check, make
from tests.sweep import slow_but_each

_PORTIONS = 10
_INPUTS = 150


@pytest.mark.parametrize("portion", slow_but_each(10, range(_PORTIONS)))
def test_damaged_streams(portion: int) -> None:
    results = sum(check(make(0, portion * _INPUTS + number)) for number in range(_INPUTS))
    assert 0 < results < _INPUTS


@pytest.mark.parametrize("name", sorted(path.name for path in FOUND.glob("*.json")))
def test_inputs_that_failed_once(name: str) -> None:
    check(Input.from_json((FOUND / name).read_text()))
