"""Which transactions a snapshot sees, as the server itself says it.

That a copy waits for them is in ``tests/conformance/test_late_commits.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from airflow_provider_pgoutput.capture.slot.commit_wait import is_seen, wait_for_commits
from airflow_provider_pgoutput.errors import SourceLocked

if TYPE_CHECKING:
    from collections.abc import Iterator

_EPOCH = 1 << 32


@pytest.fixture
def session(postgres_database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_database, autocommit=True) as session:
        yield session


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[int, str]:
    """A transaction, with its epoch, and a snapshot as text, around a change of the epoch or far from one."""
    xmin = draw(st.sampled_from([800, 3 * _EPOCH - 20, 3 * _EPOCH + 3, 5 * _EPOCH + (1 << 31)]))
    xmax = xmin + draw(st.integers(0, 40))
    running = draw(st.sets(st.integers(xmin, xmax - 1))) if xmax > xmin else set()
    # The first three numbers of an epoch are no transaction's.
    assume(all(each % _EPOCH > 2 for each in (xmin, xmax, *running)))
    xid = draw(st.integers(xmin - 700, xmax + 700) | st.integers(xmin - 5, xmax + 5))
    return xid, f"{xmin}:{xmax}:{','.join(map(str, sorted(running)))}"


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=snapshots())
def test_what_a_snapshot_sees_is_what_the_server_says(
    session: psycopg.Connection, case: tuple[int, str]
) -> None:
    xid, snapshot = case
    row = session.execute(
        "SELECT pg_visible_in_snapshot(%s::text::xid8, %s::pg_snapshot)", (str(xid), snapshot)
    ).fetchone()
    assert row is not None
    assert is_seen(xid % _EPOCH, snapshot) is row[0]


def test_what_still_writes_is_not_waited_for(postgres_database: str) -> None:
    """It is in no snapshot that was taken before it commits."""
    with psycopg.connect(postgres_database) as writer, psycopg.connect(postgres_database) as reader:
        writer.execute("CREATE TABLE t()")
        wait_for_commits(reader)


def test_a_wait_may_have_a_limit(postgres_database: str, session: psycopg.Connection) -> None:
    """An ordinary snapshot lists no subtransactions. So an open one looks like a commit that goes on."""
    with psycopg.connect(postgres_database) as writer, psycopg.connect(postgres_database) as reader:
        writer.execute("CREATE TABLE t()")
        writer.execute("SAVEPOINT s")
        writer.execute("INSERT INTO t DEFAULT VALUES")
        session.execute("SELECT pg_current_xact_id()")
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(SourceLocked, match=f"processes {writer.info.backend_pid} did not end"):
            wait_for_commits(reader, 0.2)
        writer.rollback()
        wait_for_commits(reader, 0.2)
