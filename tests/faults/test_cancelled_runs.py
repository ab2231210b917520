"""F50, F37: a run's process ends at a random time; the slot is free soon, and no half of a batch is used.

Airflow sends a task SIGTERM and, five seconds later, SIGKILL. Neither waits for what the task was doing, so
both are the same here. What is not here: the Spark driver of an apply (``test_cancelled_drivers.py``).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.capture.request import AFTER_APPLY
from tests import setting
from tests.capture.pipeline_support import checkpoint_of
from tests.faults import cancelled_task
from tests.faults.network import Action, Fault, Proxy
from tests.faults.waiting_slot import (
    READING,
    ROWS,
    TRANSPORTS,
    expect_whole,
    fill,
    keys,
    new_source,
)
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from quickstart.postgres import EmbeddedPostgres
    from tests.capture.pipeline_support import Source

ROOT = Path(__file__).resolve().parents[2]
#: How many runs are killed.
CANCELLATIONS = int(os.environ.get("PGOUTPUT_CANCELLATIONS", "30"))
SEED = int(os.environ.get("PGOUTPUT_CANCELLATIONS_SEED", "50"))
#: The server looks every two seconds; the rest is for a loaded machine.
_FREE_SECONDS = 15.0
#: Who reads the slot or, as several connections do for a long range, a copy of it.
_READERS = "SELECT 1 FROM pg_replication_slots WHERE database = current_database() AND active"
#: Whether the server decodes the slot. A copy of it is active before that, too.
_AT_WORK = {
    "sql": "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
    " AND query LIKE '%pg_logical_slot_peek_%' AND pid <> pg_backend_pid()",
    "walsender": _READERS,
}


@pytest.fixture
def source(postgres_database: str, tmp_path: Path) -> Source:
    return new_source(postgres_database, tmp_path / "staging")


class Stager:
    """Stages batches in processes that can be killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", cancelled_task.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )

    def start(self, source: Source, checkpoint: Checkpoint, **options: Any) -> int:
        """Begin to stage a batch; the id of the process that does."""
        body = {
            "conninfo": source.reader,
            "slot_name": source.slot_name,
            "publication_names": ["p"],
            "staging_uri": str(source.staging),
            "checkpoint": [str(checkpoint.end_lsn), checkpoint.system_identifier],
            **options,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(body) + "\n")
        self._process.stdin.flush()
        return self._number()

    def end(self) -> int:
        """Wait for the process; its exit status."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._number()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _number(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the stager ended"
        return int(line)


@pytest.fixture
def stager() -> Iterator[Stager]:
    found = Stager()
    yield found
    found.close()


def seconds_until_free(source: Source) -> float:
    """How long the slot is still active, and how long a connection of the run is still there."""
    began = time.monotonic()
    while source.execute(
        "SELECT 1 FROM pg_stat_activity WHERE application_name = 'airflow-provider-pgoutput'"
        f" AND datname = current_database() UNION ALL {_READERS}"
    ):
        assert time.monotonic() - began < _FREE_SECONDS
        time.sleep(0.02)
    return time.monotonic() - began


@pytest.mark.further
def test_f50_runs_that_are_killed_at_any_time_leave_nothing_behind(
    source: Source, stager: Stager
) -> None:
    """F50: connections closed, the slot inactive, nothing half-sealed used; then the run succeeds."""
    chance = random.Random(SEED)  # noqa: S311 - a test has to repeat itself
    checkpoint, confirmed = fill(source), source.confirmed()
    began = time.monotonic()
    stager.start(
        source, checkpoint, staging_uri=str(source.staging / "measured"), advance=AFTER_APPLY
    )
    assert stager.end() == 0
    usual_seconds = time.monotonic() - began
    rows, sealed, killed = range(1, ROWS + 1), 1, 0
    for number in range(CANCELLATIONS):
        transport = TRANSPORTS[number % 2]
        child = stager.start(source, checkpoint, transport=transport)
        time.sleep(chance.random() * usual_seconds / 2)
        # Its id stays its own until it is waited for.
        os.kill(child, chance.choice((signal.SIGTERM, signal.SIGKILL)))
        status = stager.end()
        assert status <= 0, "it failed by itself"
        killed += status < 0
        seconds_until_free(source)
        assert source.confirmed() in {confirmed, *sealed_ends(source)}, f"seed {SEED}, run {number}"
        if setting.advance == AFTER_APPLY:
            assert source.confirmed() == confirmed, f"seed {SEED}, run {number}"
        if sealed_batches(source) > sealed:
            # It came so far: the batch is used as it is.
            checkpoint = expect_batch(source, checkpoint, rows)
            sealed += 1
            rows = range(rows.stop, rows.stop + ROWS)
            source.execute(f"INSERT INTO t SELECT generate_series({rows.start}, {rows.stop - 1})")
    print(f"{killed} of {CANCELLATIONS} runs were killed, seed {SEED}")
    assert killed, "no run was killed before its end"
    expect_batch(source, checkpoint, rows)
    assert sealed_batches(source) == sealed + 1


def sealed_ends(source: Source) -> list[str]:
    """The positions that stage runs may move the slot to."""
    names = (layout.parse_manifest_name(each) for each in source.manifests())
    return [str(each[1]) for each in names if each is not None]


def sealed_batches(source: Source) -> int:
    """How many manifests are whole; one that was being written has another name, and nobody reads it."""
    return sum(each.endswith(".json") for each in source.manifests())


def expect_batch(source: Source, checkpoint: Checkpoint, rows: range) -> Checkpoint:
    batch = source.stage(checkpoint=checkpoint)
    assert keys(source, batch) == list(rows), f"seed {SEED}"
    return checkpoint_of(batch)


@pytest.mark.parametrize("transport", slow_but_each(2, TRANSPORTS))
def test_f50_the_server_stops_working_for_a_reader_that_was_killed(
    source: Source, stager: Stager, transport: str
) -> None:
    """F50: it would else finish the whole answer of the SQL function, and the slot were busy until then."""
    checkpoint = fill(source)
    source.execute(
        "CREATE TABLE unpublished(a int, b text)",
        "INSERT INTO t SELECT g, repeat('x', 20) FROM generate_series(10001, 1200000) g",
    )
    child = stager.start(source, checkpoint, transport=transport)
    deadline = time.monotonic() + 60
    while not source.execute(_AT_WORK[transport]):
        assert time.monotonic() < deadline, "the server was never seen at work"
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    assert stager.end() == -signal.SIGKILL
    seconds_until_free(source)
    assert sealed_batches(source) == 1


def test_f37_a_process_that_the_driver_ends_is_repeated(
    source: Source, stager: Stager, postgres_server: EmbeddedPostgres
) -> None:
    """F37, RST before the first bytes of an answer: version 1.8 of the ADBC driver ends the process.

    See docs/explanation/reading_the_slot.md, "When the network fails"; a later driver gives an error that is
    retried.
    """
    checkpoint = fill(source)
    with Proxy(postgres_server.port, Fault(Action.RESET, READING["sql"])) as proxy:
        stager.start(source, checkpoint, conninfo=proxy.conninfo(source.reader))
        assert stager.end() in {-signal.SIGABRT, cancelled_task.RETRYABLE}
    expect_whole(source, checkpoint, "sql")
