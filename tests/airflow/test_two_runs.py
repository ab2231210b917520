"""F15: two DAG runs at once of one pipeline, as when somebody triggers a DAG without ``max_active_runs=1``.

The first run is stopped in the middle of a task, so that the second meets it there. Both are made as ``dags
test`` makes one, and are manual. What is not here: two stage runs at once without Airflow, over both
transports (``tests/faults/test_source_faults.py``), a slot that is busy (``test_stage.py``), and a driver
that comes back after newer batches (``tests/faults/test_zombies.py``).
"""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest

from airflow_provider_pgoutput.crash_points import VARIABLE
from tests.airflow.example_pipeline import TABLES, newest_run, run_before_newest
from tests.faults.processes import kill_group, wait_until_stopped

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.airflow.example_pipeline import Pipeline

pytestmark = pytest.mark.submit

PROGRAM = str(Path(__file__).with_name("patient_run.py"))
#: Of each task, a second after each other.
RETRIES = "60"
#: Its change log holds each change that was applied, so what is applied twice is in it twice.
LOGGED = "sales.lines"
CONF: dict[str, Any] = {"table_options": {LOGGED: {"mode": "change_log"}}}
_SECONDS = 600


@contextlib.contextmanager
def begun(pipeline: Pipeline, log: Path, stop_at: str) -> Iterator[subprocess.Popen[str]]:
    """A DAG run in a process of its own, which is stopped at a point."""
    variables = {VARIABLE: f"{stop_at}:1:SIGSTOP"}
    process = pipeline.start(log, PROGRAM, pipeline.conf(**CONF), RETRIES, **variables)
    try:
        yield process
    finally:
        kill_group(process.pid)
        process.wait(_SECONDS)


def to_its_end(process: subprocess.Popen[str]) -> int:
    """Let a run go on wherever it stops, as the driver of each try does; its exit status."""
    deadline = time.monotonic() + _SECONDS
    while (status := process.poll()) is None:
        assert time.monotonic() < deadline, "it does not end"
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in psutil.Process(process.pid).children(recursive=True):
                if each.status() == psutil.STATUS_STOPPED:
                    each.send_signal(signal.SIGCONT)
        time.sleep(0.2)
    return status


def change_source(pipeline: Pipeline) -> int:
    """Change every table; how many changes of it a change log gets."""
    with psycopg.connect(pipeline.conninfo) as session:
        session.execute("UPDATE orders SET price = price + 1 WHERE id % 7 = 0")
        session.execute("DELETE FROM orders WHERE id = 1")
        session.execute("INSERT INTO customers VALUES ('new', 'epoch', NULL)")
        return session.execute("UPDATE sales.lines SET amount = amount + 1 WHERE b = 2").rowcount


def changes_in_log(pipeline: Pipeline) -> int:
    """Changes in the change log, beside those that were copied; each has a position of its own."""
    log = pipeline.lake_catalog().load_table(("shop", TABLES[LOGGED])).scan().to_arrow().to_pylist()
    changes = [row for row in log if row["_pgoutput_op"] != "C"]
    positions = {(row["_pgoutput_commit_lsn"], row["_pgoutput_seq"]) for row in changes}
    assert len(positions) == len(changes), "a change was applied twice"
    return len(changes)


def assert_equal(pipeline: Pipeline, changes: int) -> None:
    wanted = pipeline.source_rows()
    del wanted[LOGGED]
    assert pipeline.lake_rows(without=LOGGED) == wanted
    assert {count for rows in wanted.values() for count in rows.values()} == {1}
    assert changes_in_log(pipeline) == changes


@pytest.mark.further
def test_f15_two_runs_at_once_end_and_apply_each_change_once(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """The second begins while the first stages, and its driver has prepared when the first goes on."""
    pipeline.run(**CONF)
    changes = change_source(pipeline)
    first_log, second_log = tmp_path / "first.log", tmp_path / "second.log"
    # When a chunk has come over the SQL function, the slot is free.
    with begun(pipeline, first_log, "stage.after_chunk") as first:
        staging = wait_until_stopped(first, first_log)
        with begun(pipeline, second_log, "apply.after_prepare") as second:
            wait_until_stopped(second, second_log)
            staging.send_signal(signal.SIGCONT)
            assert first.wait(_SECONDS) == 0, first_log.read_text()[-5000:]
            assert_equal(pipeline, changes)
            assert to_its_end(second) == 0, second_log.read_text()[-5000:]
    for run in (run_before_newest(), newest_run()):
        assert {state for state, _ in run.tasks.values()} == {"success"}, run
    assert run_before_newest().values["apply"]["applied"] is True
    assert_equal(pipeline, changes)
