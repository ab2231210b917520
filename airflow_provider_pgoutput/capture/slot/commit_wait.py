"""Waits until every transaction that an exported snapshot sees has ended on the server.

The snapshot of a new slot is made from the WAL: if a transaction's commit record is there, the snapshot takes
it for committed. But the server writes the record before the commit log. Until the commit log has the
transaction, its rows are invisible, and a read at that moment marks them as invisible for good. So the copy
lacks the row, and the stream, which begins after the commit, lacks it too. Servers from September 2026 on
wait by themselves.

Source: https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT-PARTS and
https://www.postgresql.org/docs/current/view-pg-locks.html (a transaction locks its own ID until it has ended)
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Final

from psycopg import sql

from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.errors import SourceLocked

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.source.session import Session

log = logging.getLogger(__name__)

_SHORTEST_PAUSE_SECONDS: Final = 0.01
_LONGEST_PAUSE_SECONDS: Final = 1.0
#: Seconds until the log mentions the wait, and until it does so again.
_LONG_SECONDS: Final = 1.0
_TELL_SECONDS: Final = 60.0
_EPOCH: Final = 1 << 32

_LOCKS_QUERY = """
SELECT transactionid::pg_catalog.text, pid FROM pg_catalog.pg_locks
 WHERE locktype = 'transactionid' AND granted AND mode = 'ExclusiveLock'
"""


def begin_in_snapshot(session: Session, snapshot_name: str, most_seconds: float = math.inf) -> None:
    """Begin a transaction that reads in an exported snapshot; see ``wait_for_commits``.

    :raises SnapshotLost: the snapshot does not exist any more.
    :raises SourceLocked: see ``wait_for_commits``.
    """
    with translated():
        session.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        session.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot_name)))
        wait_for_commits(session, most_seconds)


def wait_for_commits(session: Session, most_seconds: float = math.inf) -> None:
    """Return when every transaction that the session's snapshot takes for committed has ended.

    Nearly always that is at once: a commit takes moments, and only those count that began while the slot was
    made.

    :param session: its transaction has taken over an exported snapshot, and has read nothing yet.
    :param most_seconds: the longest wait.
    :raises SourceLocked: they did not end in that time.
    """
    began = time.monotonic()
    row = session.execute("SELECT pg_catalog.pg_current_snapshot()::pg_catalog.text").fetchone()
    assert row is not None, "a query without a table has a row"
    pause, tell_at = _SHORTEST_PAUSE_SECONDS, time.monotonic() + _LONG_SECONDS
    # Later transactions are not in the snapshot.
    while committing := _committing(session, row[0]):
        if time.monotonic() - began >= most_seconds:
            raise SourceLocked(
                f"Commits of the processes {_named(committing)} did not end in {most_seconds:g} seconds.",
                advice="pg_stat_activity says what they wait for, a synchronous standby for example.",
            )
        if time.monotonic() >= tell_at:
            _tell_of(committing)
            tell_at = time.monotonic() + _TELL_SECONDS
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _tell_of(committing: set[int | None]) -> None:
    log.warning(
        "The copy begins when commits that its snapshot sees have ended, of the processes %s."
        " pg_stat_activity says what they wait for, a synchronous standby for example.",
        _named(committing),
    )


def _named(committing: set[int | None]) -> str:
    pids = ", ".join(sorted(str(pid) for pid in committing if pid))
    return pids or "that end prepared transactions"


def _committing(session: Session, snapshot: str) -> set[int | None]:
    """Processes of transactions that a snapshot sees and that have not ended. A prepared one has none."""
    held = session.execute(_LOCKS_QUERY).fetchall()
    return {pid for xid, pid in held if is_seen(int(xid), snapshot)}


def is_seen(xid: int, snapshot: str) -> bool:
    """Whether a snapshot takes a transaction for committed, unless it aborted.

    :param xid: without its epoch, and less than half of all IDs away from the snapshot.
    :param snapshot: the text of a ``pg_snapshot``, ``xmin:xmax:xip,xip``, with epochs.
    """
    _, xmax_text, running = snapshot.split(":")
    xmax = int(xmax_text)
    distance = (xid - xmax) % _EPOCH
    if distance < _EPOCH // 2:
        return False
    return str(xmax + distance - _EPOCH) not in running.split(",")
