"""The log of a task has a line for each table, and few lines if the tables are many."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.tasks.task_run import log_tables

if TYPE_CHECKING:
    import pytest


def said(caplog: pytest.LogCaptureFixture, number: int) -> list[str]:
    tables = {
        f"public.t{n:04}": {"inserts": 10 * n, "copied": 0, "rejected": n % 2}
        for n in range(number)
    }
    with caplog.at_level(logging.INFO):
        log_tables(tables)
    return [record.getMessage() for record in caplog.records]


def test_each_of_few_tables_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    lines = [line for line in said(caplog, 50) if "did not fit" not in line]
    assert len(lines) == 50
    assert lines[:2] == ["public.t0000: no changes", "public.t0001: 10 inserts, 1 rejected"]


def test_of_many_tables_one_line_sums_up_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    lines = said(caplog, 4_000)
    assert len(lines) == 50 + 25 + 2
    assert lines[0] == "public.t3950: 39,500 inserts"
    assert lines[-2] == f"3,950 more tables: {10 * sum(range(3_950)):,} inserts, 1,975 rejected"
    assert lines[-1].startswith("3,950 more tables: 1,975 value(s) did not fit")
