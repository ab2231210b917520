"""The log of a task has a line for each table, and few lines if the tables are many."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest, Table
from airflow_provider_pgoutput.batch.table_version import Counts
from airflow_provider_pgoutput.tasks.task_run import log_tables, summary


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


def batch_of(**changed: Any) -> Manifest:
    counts = {"inserts": changed.pop("inserts", 0), "copied": changed.pop("copied", 0)}
    table = Table(1, "public", "orders", (), Counts(**counts))
    fields: dict[str, Any] = {
        "slot_name": "s",
        "system_identifier": "7",
        "timeline": 1,
        "database": "app",
        "publication_names": ("p",),
        "start_lsn": Lsn(0x10),
        "end_lsn": Lsn(0x20),
        "tables": (table,) if any(counts.values()) else (),
    }
    return Manifest(**fields | changed)


@pytest.mark.parametrize(
    ("batch", "seconds", "sentence"),
    [
        (batch_of(), 0.04, "Staged no changes, 0/10 to 0/20, in 0.0 s."),
        (batch_of(inserts=1), 0.04, "Staged 1 change of 1 table, 0/10 to 0/20, in 0.0 s."),
        (
            batch_of(inserts=42_544, copied=2),
            5.2,
            "Staged 42,544 changes and 2 copied rows of 1 table, 0/10 to 0/20, in 5.2 s (8,182 rows/s).",
        ),
    ],
)
def test_a_task_says_in_a_sentence_what_it_did(
    batch: Manifest, seconds: float, sentence: str
) -> None:
    assert summary("Staged", batch, seconds) == sentence
    assert summary("Staged", batch, seconds, batch.end_lsn) == sentence


@pytest.mark.parametrize(
    ("ahead_bytes", "words"),
    [
        (1, "1 byte"),
        (999, "999 bytes"),
        (1_234_567, "1.2 MB"),
        (999_999, "1,000.0 kB"),
        (7 * 10**12, "7,000.0 GB"),
    ],
)
def test_the_sentence_says_how_far_the_source_is_ahead(ahead_bytes: int, words: str) -> None:
    batch = batch_of()
    sentence = summary("Staged", batch, 1, Lsn(batch.end_lsn + ahead_bytes))
    assert sentence.endswith(f" The source is {words} ahead.")
