"""What tasks say about tables that are set aside, and about incomplete ones: in their logs, and in XCom."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.xcom import MOST_TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from airflow_provider_pgoutput.lake.quarantine import Incomplete

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


def log_incomplete(tables: Mapping[int, Incomplete]) -> dict[str, dict[str, Any]]:
    """Warn of the tables with rows in the quarantine, in one line each, and return what XCom says about them.

    :returns: by the source's ``schema.table``: ``keys`` (how many) and ``since_lsn``; 200 tables at most.
    """
    found = sorted(tables.values(), key=lambda each: each.table_name)
    for each in found[:_MOST_LINES]:
        log.warning("%s is incomplete: %s.", each.table_name, each)
    if len(found) > _MOST_LINES:
        log.warning("%d more tables are incomplete.", len(found) - _MOST_LINES)
    return {
        each.table_name: {"keys": len(each.keys), "since_lsn": str(each.since_lsn)}
        for each in found[:MOST_TABLES]
    }
