"""What the task log says of how far a read or a copy is; the clock of the first tests is moved by hand."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.source import progress_log
from airflow_provider_pgoutput.capture.source.progress_log import CopyProgress, Progress
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.capture.pipeline_support import Source

_MIB = 1 << 20


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let so many seconds pass."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    return pass_by


def test_a_read_says_where_it_is(
    wait: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    told: list[dict[str, Any]] = []
    read = Progress(Lsn(0x100), Lsn(0x500), told.append)
    wait(4)
    read.report(10, _MIB, Lsn(0x200))
    assert not caplog.messages
    wait(6)
    read.report(50_000, 3 * _MIB, Lsn(0x300))
    assert caplog.messages == ["50,000 rows, 4.0 MiB, at 0/300 of 0/500, 5,000 rows/s"]
    assert told == [
        {
            "what": "changes",
            "rows": 50_000,
            "bytes_read": 4 * _MIB,
            "lsn": "0/300",
            "end_lsn": "0/500",
            "rows_per_second": 5000,
            "seconds_left": 10,
        }
    ]


def test_tables_that_others_copy_count_as_they_go(
    wait: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    copy = CopyProgress({"public.large": 30 * _MIB, "public.small": 10 * _MIB})
    wait(5)
    copy.so_far("public.large", 1 / 3, 1000, 5 * _MIB)
    wait(5)
    copy.so_far("public.large", 2 / 3, 2000, 10 * _MIB)
    copy.so_far("public.large", 1, 3000, 15 * _MIB)
    wait(5)
    copy.so_far("public.small", 0.5, 100, _MIB)
    assert [message.partition(" rows")[0] for message in caplog.messages] == [
        "0 of 2 tables, 10.0 of about 40.0 MiB copied; 1,000",
        "0 of 2 tables, 20.0 of about 40.0 MiB copied; 2,000",
        "1 of 2 tables, 35.0 of about 40.0 MiB copied; 3,100",
    ]


def test_a_copy_says_what_is_done_and_how_long_the_rest_takes(
    wait: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    told: list[dict[str, Any]] = []
    copy = CopyProgress({"public.large": 30 * _MIB, "public.small": 10 * _MIB}, told.append)
    wait(5)
    copy.rows(100, 2 * _MIB)
    copy.part("public.small", 1)
    copy.part("public.large", 1 / 3)
    wait(5)
    copy.rows(1900, 8 * _MIB)
    copy.part("public.large", 2 / 3)
    wait(2)
    copy.done()
    first, second, third = caplog.messages
    assert first == (
        "0 of 2 tables, 0.0 of about 40.0 MiB copied; 100 rows, 20 rows/s, 0.4 MiB/s; "
        "time left not known yet"
    )
    assert second == (
        "1 of 2 tables, 20.0 of about 40.0 MiB copied; 2,000 rows, 200 rows/s, 1.0 MiB/s; "
        "about 10 s left"
    )
    assert third == (
        "2 of 2 tables, 40.0 of about 40.0 MiB copied; 2,000 rows, 167 rows/s, 0.8 MiB/s; "
        "about 0 s left"
    )
    assert told[1] == {
        "what": "copy",
        "tables_done": 1,
        "tables": 2,
        "bytes_done": 20 * _MIB,
        "bytes": 40 * _MIB,
        "rows": 2000,
        "rows_per_second": 200,
        "seconds_left": 10,
    }
    assert [each["seconds_left"] for each in told] == [None, 10]


def test_a_run_says_how_far_its_copy_and_its_read_are(
    source: Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress_log, "_SECONDS_BETWEEN", 0.0)
    caplog.set_level(logging.INFO)
    source.execute(
        "INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, 20000) g",
        "CREATE TABLE u(a int PRIMARY KEY)",
        "INSERT INTO u SELECT generate_series(1, 500)",
        "ALTER PUBLICATION p ADD TABLE u",
        "ANALYZE",
    )
    told: list[dict[str, Any]] = []
    first = source.stage(copy_connections=2, tell=told.append)
    lines = [each for each in caplog.messages if " MiB copied; " in each]
    assert lines[-1].startswith("2 of 2 tables, ")
    assert "; 20,500 rows, " in lines[-1]
    assert lines[-1].endswith("about 0 s left")
    assert len(lines) > 1
    # What the copy is measured against is what the tables take on the server's disk.
    ((size,),) = source.execute("SELECT pg_table_size('t') + pg_table_size('u')")
    about = float(lines[-1].partition(" of about ")[2].partition(" MiB")[0])
    assert about == pytest.approx(size / _MIB, abs=0.2)
    source.execute("UPDATE t SET b = 'y' WHERE a <= 3000")
    assert (told[-1]["what"], told[-1]["rows"]) == ("copy", 20_500)
    batch = source.stage(checkpoint=checkpoint_of(first), tell=told.append)
    assert (told[-1]["what"], told[-1]["rows"]) == ("changes", 3000)
    reads = [each for each in caplog.messages if f" of {batch.end_lsn}, " in each]
    assert reads, caplog.messages
    assert reads[-1].startswith("3,000 rows, ")
