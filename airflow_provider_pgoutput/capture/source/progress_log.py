"""Logs the progress of a read or a copy every few seconds, and tells it: counts and LSNs, never a row."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider_pgoutput.batch.lsn import Lsn

    #: Is called with what a line of the log says, as numbers.
    Tell = Callable[[dict[str, Any]], None]

log = logging.getLogger(__name__)

_SECONDS_BETWEEN = 5.0


class Progress:
    """Logs how far a read is.

    :param start: where the read starts.
    :param target: where it ends.
    :param tell: None: the progress is only logged.
    """

    def __init__(self, start: Lsn, target: Lsn, tell: Tell | None = None) -> None:
        self._tell = tell
        self._start = start
        self._target = target
        self._began = self._reported = time.monotonic()
        self._bytes = 0

    def report(self, rows: int, more_bytes: int, reached: Lsn) -> None:
        """Count, and log if it is time.

        :param rows: rows staged so far.
        :param more_bytes: bytes read since the last call.
        :param reached: LSN of the transaction that began last.
        """
        self._bytes += more_bytes
        now = time.monotonic()
        if now - self._reported < _SECONDS_BETWEEN:
            return
        self._reported = now
        seconds = now - self._began
        log.info(
            "%s rows, %.1f MiB, at %s of %s, %s rows/s",
            f"{rows:,}",
            self._bytes / (1 << 20),
            reached,
            self._target,
            f"{rows / seconds:,.0f}",
        )
        if self._tell is not None:
            done = max(reached - self._start, 0)
            total = self._target - self._start
            self._tell(
                {
                    "what": "changes",
                    "rows": rows,
                    "bytes_read": self._bytes,
                    "lsn": str(reached),
                    "end_lsn": str(self._target),
                    "rows_per_second": round(rows / seconds),
                    "seconds_left": round(seconds * (total - done) / done) if done else None,
                }
            )


class CopyProgress:
    """Logs how far a copy is.

    :param table_bytes: bytes of each table on the server's disk, by name. Progress is measured by them.
    :param tell: None: the progress is only logged.
    """

    def __init__(self, table_bytes: Mapping[str, int], tell: Tell | None = None) -> None:
        self._tell = tell
        self._table_bytes = table_bytes
        self._shares = dict.fromkeys(table_bytes, 0.0)
        #: Rows and bytes of tables that others copy.
        self._told: dict[str, tuple[int, int]] = {}
        self._began = self._reported = time.monotonic()
        self._rows = 0
        self._read_bytes = 0

    def rows(self, rows: int, read_bytes: int) -> None:
        """Count rows, and log if it is time."""
        self._rows += rows
        self._read_bytes += read_bytes
        self._report_if_due()

    def part(self, table: str, share: float) -> None:
        """Count that so much of a table is done; 1 is the whole table."""
        self._shares[table] += share
        self._report_if_due()

    def so_far(self, table: str, share: float, rows: int, read_bytes: int) -> None:
        """Take note of how far a table is that others copy, and log if it is time."""
        rows_before, bytes_before = self._told.get(table, (0, 0))
        self._told[table] = rows, read_bytes
        self._shares[table] = share
        self.rows(rows - rows_before, read_bytes - bytes_before)

    def done(self) -> None:
        """Log the result of the copy. Nobody is told: the task goes on at once."""
        self._report(tell=None)

    def _report_if_due(self) -> None:
        if time.monotonic() - self._reported >= _SECONDS_BETWEEN:
            self._report(self._tell)

    def _report(self, tell: Tell | None) -> None:
        now = time.monotonic()
        self._reported = now
        seconds = max(now - self._began, 0.001)
        total = sum(self._table_bytes.values())
        done = sum(size * self._shares[name] for name, size in self._table_bytes.items())
        left = seconds * (total - done) / done if done else None
        tables_done = sum(share > 1 - 1e-9 for share in self._shares.values())
        log.info(
            "%d of %d tables, %.1f of about %.1f MiB copied; %s rows, %s rows/s, %.1f MiB/s; %s",
            tables_done,
            len(self._shares),
            done / (1 << 20),
            total / (1 << 20),
            f"{self._rows:,}",
            f"{self._rows / seconds:,.0f}",
            self._read_bytes / (1 << 20) / seconds,
            "time left not known yet" if left is None else f"about {left:,.0f} s left",
        )
        if tell is not None:
            tell(
                {
                    "what": "copy",
                    "tables_done": tables_done,
                    "tables": len(self._shares),
                    "bytes_done": round(done),
                    "bytes": total,
                    "rows": self._rows,
                    "rows_per_second": round(self._rows / seconds),
                    "seconds_left": None if left is None else round(left),
                }
            )
