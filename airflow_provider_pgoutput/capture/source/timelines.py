"""Where the source's history left the history from which the lake was filled: at a promotion or a restore.

LSNs of two timelines can be compared only up to that point.

Source: https://www.postgresql.org/docs/current/protocol-replication.html (TIMELINE_HISTORY)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from psycopg import sql

from airflow_provider_pgoutput.batch.earlier_systems import EarlierTimeline
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.errors import SourceChanged, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.capture.source.catalog import Server

log = logging.getLogger(__name__)

#: The way on if the source is another one, or went back for good. Copies with the same slot do not help: a
#: run is refused before it looks at what to copy, and apply refuses tables that another slot filled.
BEGIN_ANEW = (
    "Begin anew with another slot_name and another namespace (or this one, after the pipeline's tables in it"
    " were dropped): the first run copies the tables."
)
#: The way on if the source went back.
ADOPT_OR_BEGIN_ANEW = (
    "If it began a new timeline, as after a promotion or a recovery to a point in time,"
    " PgoutputAdoptSourceOperator compares it with the lake and goes on (docs/how-to/another_system.md)."
    f" Otherwise: {BEGIN_ANEW[0].lower()}{BEGIN_ANEW[1:]}"
)


def check_system(server: Server, filled_from: str | None, end_lsn: Lsn | None, slot: str) -> None:
    """Refuse another source than the one that filled the lake.

    :param filled_from: the system of the lake; None: not known.
    :param end_lsn: the checkpoint, if there is one.
    :raises SourceChanged: it is another one.
    :raises SourceUnavailable: it is a standby that is still on the timeline before an adoption.
    """
    if filled_from in (None, server.system_identifier):
        return
    if server.is_standby and filled_from.partition("@")[0] == server.system_identifier:
        raise SourceUnavailable(
            f"The source is a standby on timeline {server.timeline}; the lake was filled from {filled_from}.",
            slot=slot,
            lsn=end_lsn,
            advice="wait until it follows the server that was promoted, or correct the connection.",
        )
    raise SourceChanged(
        f"The source is system {server.system_identifier}, the lake was filled from {filled_from}.",
        slot=slot,
        lsn=end_lsn,
        advice="correct the connection: all tasks need the same one. If this source is the right one now,"
        " for example after pg_upgrade, PgoutputAdoptSourceOperator lets the lake go on from it"
        f" (docs/how-to/another_system.md). Or: {BEGIN_ANEW}",
    )


def check_written(server: Server, end_lsn: Lsn, slot: str) -> None:
    """Refuse a source that has not written as far as the lake is.

    :param end_lsn: the checkpoint.
    :raises SourceChanged: the source went back, or is another one.
    :raises SourceUnavailable: it is a standby. It may be behind the one that was read before, or was
        restarted and first has to replay what it has.
    """
    if server.flush_lsn >= end_lsn:
        return
    if server.is_standby:
        raise SourceUnavailable(
            f"The source is a standby that has replayed the WAL up to {server.flush_lsn}; the lake is ahead.",
            slot=slot,
            lsn=end_lsn,
            advice="wait until it has caught up. One that never does was restored, or follows a server that"
            f" was promoted without the end of its WAL. {BEGIN_ANEW}",
        )
    raise SourceChanged(
        f"The lake is ahead of the source, which has written up to {server.flush_lsn} only.",
        slot=slot,
        lsn=end_lsn,
        advice=f"the source was restored or promoted without the end of its WAL. {ADOPT_OR_BEGIN_ANEW}",
    )


def check_timeline(
    conninfo: str | Mapping[str, object],
    server: Server,
    *,
    then: int | None,
    end_lsn: Lsn,
    slot: str,
) -> tuple[EarlierTimeline, ...]:
    """Refuse a source whose history left the lake's before the checkpoint, however far it has written since.

    :param then: the source's timeline when the lake's last batch was staged; None: not known.
    :param end_lsn: the checkpoint.
    :return: if the source is on another timeline than then: the ones before its own. Otherwise empty.
    :raises SourceChanged: it did.
    :raises SourceUnavailable: the source does not answer.
    """
    now = server.timeline
    if then is None or then == now:
        return ()
    if now < then and server.is_standby:
        return ()  # A standby learns of a new timeline later.
    offset = server.lsn_offset
    read = read_ends(conninfo, now, slot) if now > then else {}
    ends = {each: offset.added_to(end) for each, end in read.items()}
    ended = ends.get(then)
    if ended is not None and ended >= end_lsn:
        log.info(
            "The source went from timeline %d to %d at %s, past the checkpoint.", then, now, ended
        )
        return tuple(EarlierTimeline(each, str(end)) for each, end in ends.items())
    raise SourceChanged(
        f"The source is on timeline {now}, and the lake was filled from timeline {then}, which "
        + (f"ended at {ended}, before the checkpoint." if ended else "is not part of its history."),
        slot=slot,
        lsn=end_lsn,
        advice="the source was restored or promoted without the end of its WAL: the lake has what never"
        f" happened, and lacks what was written instead. {ADOPT_OR_BEGIN_ANEW if now > then else BEGIN_ANEW}",
    )


def read_ends(conninfo: str | Mapping[str, object], timeline: int, slot: str) -> dict[int, Lsn]:
    """The timelines before a timeline of the server, and where each ended, as the server counts.

    :raises SourceUnavailable: the source does not answer.
    """
    with sessions.connect(conninfo, replication=True, slot=slot) as session, translated(slot=slot):
        statement = sql.SQL("TIMELINE_HISTORY {}").format(sql.Literal(timeline))
        row = session.execute(statement).fetchone()
    assert row is not None, "TIMELINE_HISTORY answers with a row"
    content = row[1].decode("utf-8", "replace") if isinstance(row[1], bytes) else str(row[1])
    return parse_history(content)


def parse_history(content: str) -> dict[int, Lsn]:
    """The earlier timelines of one, and where each ended, from the text of its history file."""
    ends: dict[int, Lsn] = {}
    for line in content.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0].isdecimal():
            ends[int(words[0])] = Lsn.parse(words[1])
    return ends
