"""A commit that another process flushes and that has not ended when a slot is made (C105), into the lake.

Its record is in the WAL, so the slot begins behind it, and it is not in the commit log, so nobody can read
the row. What is not here: commits that wait after that (``test_source_events.py``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput import crash_points
from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation
from tests.conformance.many_tables import Tables
from tests.conformance.test_source_events import TABLE, running, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conformance.pipeline import Pipeline


#: Who flushes waits 0.1 s for others that commit, with the lock on the WAL; these find their records flushed.
GROUP_COMMIT = {"fsync": "on", "commit_delay": "100000", "commit_siblings": "0"}


@pytest.fixture
def postgres_database(request: pytest.FixtureRequest, server_home: Path) -> Iterator[str]:
    """An empty database of a server that flushes the commits of several processes at once."""
    version = request.config.getoption("--postgres-version")
    server = EmbeddedPostgres(
        server_home,
        installation=find_or_fetch_installation(version),
        settings=GROUP_COMMIT,
    )
    try:
        yield server.start().conninfo()
    finally:
        server.destroy()


def test_c105_a_commit_that_is_in_the_wal_and_not_in_the_commit_log(pipeline: Pipeline) -> None:
    """C105 without injection points: a process is stopped after another has flushed its commit record."""
    tables = Tables(pipeline)
    tables.execute(
        *TABLE,
        "CREATE TABLE other(a int)",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    reached: list[str] = []
    with contextlib.ExitStack() as stack:
        first, second, writer = (
            stack.enter_context(psycopg.connect(pipeline.conninfo)) for _ in range(3)
        )
        first.execute("INSERT INTO other VALUES (1)")
        stack.enter_context(crash_points.watched(reached.append))
        stack.enter_context(running(tables))
        # The server waits for all who write, and then for those who began to write meanwhile.
        wait_until(lambda: is_waited_for(tables, first))
        second.execute("INSERT INTO other VALUES (2)")
        first.commit()
        wait_until(lambda: is_waited_for(tables, second))
        with stopped_in_commit(tables, writer) as written:
            second.commit()
            time.sleep(3)
            assert "stage.during_copy" not in reached, "the copy waits for the commit"
    # Who reads in the snapshot meanwhile marks the row as one that nobody committed, at the source itself.
    assert len(tables.execute("SELECT 1 FROM t WHERE b = 'committed late'")) == written
    tables.assert_equal("t")
    tables.run("UPDATE t SET b = 'later' WHERE a > 1")
    tables.assert_equal("t")


def is_waited_for(tables: Tables, session: psycopg.Connection[Any]) -> bool:
    """Whether somebody waits for the end of the session's transaction."""
    waiting = (
        "SELECT 1 FROM pg_locks l JOIN pg_locks w USING (locktype, transactionid)"
        f" WHERE locktype = 'transactionid' AND l.pid = {session.info.backend_pid} AND NOT w.granted"
    )
    return bool(tables.execute(waiting))


@contextlib.contextmanager
def stopped_in_commit(tables: Tables, writer: psycopg.Connection[Any]) -> Iterator[int]:
    """Insert into ``t`` and stop the server's process while its commit is flushed and has not ended.

    That another process flushes it takes some tries; the rows of the others are committed as any. Gives how
    many rows there are then.
    """
    conninfo, pid = tables.pipeline.conninfo, writer.info.backend_pid
    waits = (
        f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"
        " AND wait_event_type = 'LWLock' AND wait_event = 'WALWrite'"
    )
    with (
        psycopg.connect(conninfo) as leader,
        psycopg.connect(conninfo, autocommit=True) as watching,
    ):
        for written in range(1, 100):
            leader.execute("INSERT INTO other VALUES (3)")
            writer.execute("INSERT INTO t VALUES (%s, 'committed late')", (written + 100,))
            leads, commits = (begun(each.commit) for each in (leader, writer))
            while commits.is_alive() and not watching.execute(waits).fetchone():
                pass
            os.kill(pid, signal.SIGSTOP)
            flushes = begun(lambda: tables.execute("INSERT INTO other VALUES (4)"))
            try:
                # They go on, unless the process took the lock on the WAL before it was stopped.
                flushes.join(5)
                seen = watching.execute("SELECT 1 FROM t WHERE a = %s", (written + 100,))
                if commits.is_alive() and not flushes.is_alive() and not seen.fetchone():
                    yield written
                    return
            finally:
                os.kill(pid, signal.SIGCONT)
                for each in (leads, commits, flushes):
                    each.join(60)
        pytest.fail("no commit was stopped")


def begun(work: Callable[[], object]) -> threading.Thread:
    """A thread that does it, a hundredth of a second after it was begun."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    time.sleep(0.01)
    return thread
