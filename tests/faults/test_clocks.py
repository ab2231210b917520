"""F46: a clock that jumps: a table was written by a driver whose clock was an hour ahead.

Iceberg takes no commit from a clock that is more than a minute behind the table's last one. The clock of a
machine cannot be moved in a test, so the table's times are: what Iceberg compares is the same. What is not
here: time zones, see ``tests/capture/test_surroundings.py``.

Source: https://github.com/apache/iceberg/blob/main/core/src/main/java/org/apache/iceberg/TableMetadata.java
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import LakeUnavailable
from tests.faults.table_times import shift_times

if TYPE_CHECKING:
    from collections.abc import Callable

    from quickstart.spark import LocalLake
    from tests.faults.conftest import Subject


_HOUR_MS = 3_600_000
_TABLE = "account"


def shift(run: Subject, lake: LocalLake, milliseconds: int) -> None:
    """Move all times of the table that every run changes."""
    shift_times(lake, run.pipeline.namespace, _TABLE, milliseconds)


def test_f46_a_clock_that_went_back_is_waited_for(
    subject: Callable[[int], Subject], local_lake: LocalLake
) -> None:
    run = subject(46)
    run.run()
    run.change_each()
    batch = run.stage()
    shift(run, local_lake, _HOUR_MS)
    before = run.table_snapshots()
    with pytest.raises(LakeUnavailable, match="clock") as stop:
        run.apply(batch)
    assert stop.value.table == f"{run.pipeline.namespace}.{_TABLE}"
    assert stop.value.advice
    assert run.table_snapshots() == before
    assert not run.left_branches()
    run.judge.after_any_run()
    # An hour later.
    shift(run, local_lake, -_HOUR_MS)
    run.apply(batch)
    run.advance()
    # A clock that went forward holds up nothing; nor do branches look dead for it.
    shift(run, local_lake, -_HOUR_MS)
    run.work(2)
    run.run()
    run.finish()
