"""A line of progress every few seconds. Counts and positions only, never a row."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.lsn import Lsn

log = logging.getLogger(__name__)

_SECONDS_BETWEEN = 5.0


class Progress:
    """Reports how far a read is.

    :param start: where the read starts.
    :param target: where it ends.
    """

    def __init__(self, start: Lsn, target: Lsn) -> None:
        self._start = start
        self._target = target
        self._began = self._reported = time.monotonic()
        self._bytes = 0

    def report(self, rows: int, more_bytes: int, reached: Lsn) -> None:
        """Take note, and log when it is time.

        :param rows: rows staged so far.
        :param more_bytes: bytes read since the last call.
        :param reached: LSN of the last transaction begun.
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
