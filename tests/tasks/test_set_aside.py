"""What a task says about batches that stay for tables that are set aside."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_pgoutput.capture.staging.retention import Pruned
from airflow_provider_pgoutput.tasks.set_aside import log_kept

NOW = datetime(2026, 11, 26, tzinfo=UTC)
RETENTION = timedelta(days=30)


@pytest.mark.parametrize(
    ("days", "level", "left"),
    [
        (0, "INFO", "30 days, 0:00:00"),
        (14, "INFO", "16 days, 0:00:00"),
        (16, "WARNING", "14 days, 0:00:00"),
        (31, "WARNING", "0:00:00"),
    ],
)
def test_from_half_of_the_time_on_it_is_a_warning(
    days: int, level: str, left: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log_kept(Pruned(0, 0, 0, None, 2, 700, NOW - timedelta(days=days)), RETENTION, NOW)
    said = (
        f"2 batches with 700 bytes stay for tables that are set aside. The first of them goes in {left}."
        " Then only a copy (copy_tables) brings its tables back."
    )
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [(level, said)]


def test_nothing_is_said_if_nothing_stays_for_such_tables(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_kept(Pruned(3, 3, 900, None), RETENTION, NOW)
    assert caplog.records == []
