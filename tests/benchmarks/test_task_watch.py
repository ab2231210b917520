"""The watch of a DAG run sees what the worker and what it started used, and when."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from benchmarks.task_watch import TaskWatch

if TYPE_CHECKING:
    from pathlib import Path

#: Works for a moment with 40 open files and 64 MiB, and starts another process that has 20 open files.
_WORKER = """
import subprocess, sys, time
files = [open(sys.argv[0]) for _ in range(40)]
memory = b"x" * 2**26
driver = "import sys, time; files = [open(sys.executable, 'rb') for _ in range(20)]; time.sleep(3)"
started = subprocess.Popen([sys.executable, "-c", driver])
ended = time.process_time() + 0.5
while time.process_time() < ended:
    pass
started.wait()
"""


@pytest.mark.slow
def test_it_tells_worker_and_driver_apart(postgres_database: str, tmp_path: Path) -> None:
    program = tmp_path / "watched_worker.py"
    program.write_text(_WORKER)
    with psycopg.connect(postgres_database) as session:
        row = session.execute("SELECT current_database()").fetchone()
        assert row is not None
        other = psycopg.conninfo.make_conninfo(postgres_database, dbname="postgres")
        with TaskWatch(program.name.encode(), other, row[0]) as watch:
            began = time.time()
            subprocess.run([sys.executable, str(program)], check=True)
            ended, seen = time.time(), len(watch.samples)
            while len(watch.samples) < seen + 3:
                time.sleep(0.05)
    found = watch.figures(began, ended)
    assert found["connections"] == 1
    assert found["worker_cpu_seconds"] >= 0.4
    assert found["worker_peak_mib"] >= 64
    assert 40 <= found["worker_open_files"] < 60
    assert 20 <= found["driver_open_files"] < 40
    assert found["driver_cpu_seconds"] < 0.5
    # The first look since then may have begun before.
    after = watch.figures(watch.samples[seen + 1].time, time.time())
    assert "driver_open_files" not in after
    assert after["worker_cpu_seconds"] == 0
