"""Where the history of the source left the one that the lake was filled from: after a promotion or a restore.

Positions of two timelines can be compared only up to there. What is not here: what is done about it
(``capture/positions.py``).

Source: https://www.postgresql.org/docs/current/protocol-replication.html (TIMELINE_HISTORY)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.errors import translated

if TYPE_CHECKING:
    from collections.abc import Mapping


def end_of_timeline(
    conninfo: str | Mapping[str, object], timeline: int, *, now: int, slot: str
) -> Lsn | None:
    """Where a timeline ended from which the server's own, ``now``, descends; None: it does not.

    :raises SourceUnavailable: when the source does not answer.
    """
    with sessions.connect(conninfo, replication=True, slot=slot) as session, translated(slot=slot):
        statement = sql.SQL("TIMELINE_HISTORY {}").format(sql.Literal(now))
        row = session.execute(statement).fetchone()
    assert row is not None, "TIMELINE_HISTORY answers with a row"
    content = row[1].decode("utf-8", "replace") if isinstance(row[1], bytes) else str(row[1])
    return parse_history(content).get(timeline)


def parse_history(content: str) -> dict[int, Lsn]:
    """The timelines before one, and where each ended, from the text of its history file."""
    ends: dict[int, Lsn] = {}
    for line in content.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0].isdecimal():
            ends[int(words[0])] = Lsn.parse(words[1])
    return ends
