"""Sweeps over many cases: a few of them run in ``make test``, all of them in ``.ci/run``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable


def slow_but_each(step: int, cases: Iterable[Any]) -> list[Any]:
    """Mark all cases ``slow`` but each ``step``-th one, the first among them.

    :param cases: the values of ``pytest.mark.parametrize``; a tuple holds the values of several arguments.
    """
    return [case if number % step == 0 else _slow(case) for number, case in enumerate(cases)]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
