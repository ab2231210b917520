"""Which blocks of a table changed between two LSNs, by the summaries that the server keeps of its WAL.

A summary names each block that a stretch of WAL touches. It is written when the next checkpoint begins, so
the newest WAL has none yet.

Sources: https://www.postgresql.org/docs/current/functions-info.html (WAL summarization),
https://www.postgresql.org/docs/current/runtime-config-wal.html#GUC-SUMMARIZE-WAL
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from airflow_provider_pgoutput.batch.lsn import NO_OFFSET, Lsn, LsnOffset
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.capture.source.session import Session

log = logging.getLogger(__name__)

_AVAILABLE: Final = """
SELECT start_lsn::pg_catalog.text, end_lsn::pg_catalog.text
  FROM pg_catalog.pg_available_wal_summaries()
 WHERE tli = %s AND end_lsn > %s::pg_catalog.pg_lsn AND start_lsn < %s::pg_catalog.pg_lsn
 ORDER BY start_lsn, end_lsn
"""
# A file node is looked for in all tablespaces of the database. Two tables with one number only mean that
# more is read. From the block of a limit on, all blocks count as changed: the file was cut off there, or new.
_CHANGED: Final = """
SELECT DISTINCT c.is_limit_block, c.relblocknumber / %s
  FROM ROWS FROM (pg_catalog.unnest(%s::pg_catalog.pg_lsn[]), pg_catalog.unnest(%s::pg_catalog.pg_lsn[]))
       AS s(first, last)
 CROSS JOIN LATERAL pg_catalog.pg_wal_summary_contents(%s, s.first, s.last) AS c
  JOIN pg_catalog.pg_database d ON d.oid = c.reldatabase
 WHERE d.datname = pg_catalog.current_database() AND c.relforknumber = 0
   AND c.relfilenode::pg_catalog.int8 = ANY (%s::pg_catalog.int8[])
"""
_ENABLED: Final = """
SELECT pg_catalog.current_setting('summarize_wal', true) = 'on',
       EXTRACT(epoch FROM pg_catalog.current_setting('checkpoint_timeout')::pg_catalog.interval)
"""
#: How much longer than ``checkpoint_timeout`` a summary may take.
_MORE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class ChangedRanges:
    """Ranges of a table's blocks that may have changed."""

    numbers: frozenset[int]
    #: All ranges from this one on changed, too; None: there is no such range.
    all_from: int | None = None

    def among(self, count: int) -> list[int]:
        """Which of the first ``count`` ranges changed."""
        end = count if self.all_from is None else min(self.all_from, count)
        return sorted({each for each in self.numbers if each < end} | {*range(end, count)})


@dataclass
class WalSummaries:
    """The summaries of one timeline, up to the LSN of a verification.

    :param session: it is in no transaction.
    :param wait_seconds: the longest wait until there are summaries up to the LSN.
    """

    session: Session
    timeline: int
    upto: Lsn
    wait_seconds: float
    #: What the lake adds to LSNs of the server.
    lsn_offset: LsnOffset = NO_OFFSET
    #: Why there are none up to the LSN; None: that is not known yet, or there are. A gap is no reason: the
    #: summaries that another table needs may begin behind it.
    _missing: str | None = field(default=None, init=False)

    @property
    def why_none(self) -> str | None:
        """Why the server writes no summaries; None: it does."""
        if self.session.info.server_version < 170_000:
            return "PostgreSQL 17 is the first with WAL summaries"
        return None if self._settings()[0] else "summarize_wal is off"

    def changed(self, since: Lsn, file_nodes: Sequence[int], blocks: int) -> ChangedRanges | str:
        """The ranges of a table that changed from an LSN on; a text: why that is not known.

        :param file_nodes: of the table, or of each of its leaves.
        :param blocks: how many blocks a range has.
        """
        if self._missing is not None:
            return self._missing
        try:
            found = self._wait(since)
            if isinstance(found, str):
                return found
            of_server = self.lsn_offset.of_server
            starts, ends = ([str(of_server(each[side])) for each in found] for side in (0, 1))
            with translated():
                rows = self.session.execute(
                    _CHANGED, (blocks, starts, ends, self.timeline, list(file_nodes))
                ).fetchall()
        except SourceError as error:
            # A summary was removed meanwhile, or the role may not call the functions.
            return f"the WAL summaries cannot be read: {error.message}"
        limits = [number for is_limit, number in rows if is_limit]
        return ChangedRanges(
            frozenset(number for is_limit, number in rows if not is_limit),
            min(limits, default=None),
        )

    def _wait(self, since: Lsn) -> list[tuple[Lsn, Lsn]] | str:
        """The summaries from an LSN up to ``upto`` without a gap; a text: why there are none."""
        seconds = min(self.wait_seconds, self._settings()[1] + _MORE_SECONDS)
        end, was_told = time.monotonic() + seconds, False
        while True:
            found = self._available(since)
            reached = since
            for first, last in found:
                if first > reached:
                    return f"the server has no WAL summary from {reached} on"
                reached = max(reached, last)
            if reached >= self.upto:
                return found
            if time.monotonic() >= end:
                self._missing = f"the WAL summaries did not reach the LSN in {seconds:.0f} seconds"
                return self._missing
            if not was_told:
                log.info(
                    "The WAL summaries reach up to %s. The next checkpoint brings them further.",
                    reached,
                )
                was_told = True
            time.sleep(_PAUSE_SECONDS)

    def _available(self, since: Lsn) -> list[tuple[Lsn, Lsn]]:
        offset = self.lsn_offset
        since, upto = offset.of_server(since), offset.of_server(self.upto)
        with translated():
            rows = self.session.execute(
                _AVAILABLE, (self.timeline, str(since), str(upto))
            ).fetchall()
        return [(offset.of_lake(first), offset.of_lake(last)) for first, last in rows]

    def _settings(self) -> tuple[bool, float]:
        with translated():
            row = self.session.execute(_ENABLED).fetchone()
        assert row is not None, "a SELECT of scalars gives a row"
        return bool(row[0]), float(row[1])
