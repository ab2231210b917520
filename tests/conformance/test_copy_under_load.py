"""The first copy while pgbench changes all that is copied: the lake then holds each row, and holds it once.

Killed on the way, in parts of tables and over several connections. What is not here: what such a copy stages
(``tests/capture/staging/test_sealed_copies.py``).
"""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.capture.copy import plan
from quickstart.servers import find_or_fetch_installation
from tests.conformance.compare import connect, difference, lake_fields, read_lake, read_source
from tests.conformance.pipeline import CATALOG
from tests.faults.processes import stage_in_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.pipeline import Pipeline


TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
_ENTRIES = "SELECT count(*) FROM pgbench_history"


@contextmanager
def pgbench(conninfo: str) -> Iterator[None]:
    """Tables of pgbench, and transactions on them meanwhile."""
    program = str(find_or_fetch_installation(18).program("pgbench"))
    filling = [program, "-i", "-q", "-s", "1", "--fillfactor=80", conninfo]
    subprocess.run(filling, check=True, capture_output=True)
    with connect(conninfo) as session:
        session.execute(f"CREATE PUBLICATION p FOR TABLE {', '.join(TABLES)}")
    command = [program, "-c", "4", "-T", "600", "--rate=100", conninfo]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as load:
        try:
            wait_for_entries(conninfo, 1)
            yield
            assert load.poll() is None, load.stderr and load.stderr.read()
        finally:
            load.terminate()
    end_sessions(conninfo)


def end_sessions(conninfo: str) -> None:
    """End the sessions of a pgbench that is gone: the server may still commit what it asked for."""
    with connect(conninfo) as session:
        session.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'pgbench'"
        )


def wait_for_entries(conninfo: str, count: int) -> None:
    """Wait until the load has written so many entries of its history."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if entries(conninfo) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("pgbench does not write")


def entries(conninfo: str) -> int:
    with connect(conninfo) as session:
        row = session.execute(_ENTRIES).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "write_mode", ["merge-on-read", pytest.param("copy-on-write", marks=pytest.mark.exhaustive)]
)
def test_every_row_arrives_once(
    pipeline: Pipeline, write_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "PART_BYTES", 256 * 8192)
    pipeline.plan_options["write_mode"] = write_mode
    options: dict[str, Any] = {"copy_connections": 3}
    with pgbench(pipeline.conninfo):
        assert stage_in_process(pipeline, "stage.after_copied_table", **options)
        written = entries(pipeline.conninfo)
        first = pipeline.stage(**options)
        wait_for_entries(pipeline.conninfo, written + 20)
        pipeline.apply(first)
        second = pipeline.stage()
        pipeline.apply(second)
        pipeline.advance()
    # Tables that were sealed before the kill are of another snapshot than the rest.
    assert len({each.copy_lsn for each in first.manifest.tables}) == 2
    assert second.manifest.changes > 0
    pipeline.drain(pipeline.flush_lsn())
    with connect(pipeline.conninfo) as session:
        for table in TABLES:
            name = f"{CATALOG}.{pipeline.namespace}.{table}"
            pipeline.spark.catalog.refreshTable(name)
            fields = list(lake_fields(pipeline.spark, name).values())
            found = read_lake(pipeline.spark, name, fields)
            assert found == (held := read_source(session, "public", table, fields)), (
                f"{table}: {difference(found, held)}"
            )
            assert held
