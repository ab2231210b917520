"""What tasks say about the tables that are set aside: in their logs, and in XCom."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.xcom import MOST_TABLES

if TYPE_CHECKING:
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

log = logging.getLogger(__name__)

_MOST_LINES = 50


def log_set_aside(checkpoint: Checkpoint) -> dict[str, dict[str, Any]]:
    """Warn of the tables that are set aside, in one line each, and return what XCom says about them.

    :returns: by the source's ``schema.table``: ``since_lsn``, ``batches`` and ``reason``; 200 tables at most.
    """
    waiting = sorted(checkpoint.set_aside.values(), key=lambda each: each.table_name)
    for each in waiting[:_MOST_LINES]:
        log.warning(
            "%s is set aside since LSN %s: it has no change after that. %s %s",
            each.table_name,
            each.since_lsn,
            each.in_words,
            each.refusal,
        )
    if len(waiting) > _MOST_LINES:
        log.warning("%d more tables are set aside.", len(waiting) - _MOST_LINES)
    return {
        each.table_name: {
            "since_lsn": str(each.since_lsn),
            "batches": each.batches,
            "reason": str(each.refusal),
        }
        for each in waiting[:MOST_TABLES]
    }
