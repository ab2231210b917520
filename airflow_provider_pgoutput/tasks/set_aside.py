"""What tasks say about tables that are set aside, and about incomplete ones: in their logs, and in XCom."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.answers import FAIL
from airflow_provider_pgoutput.batch.xcom import MOST_TABLES
from airflow_provider_pgoutput.errors import LakeDenied

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_provider_pgoutput.capture.staging.retention import Pruned
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from airflow_provider_pgoutput.tasks.lake import Lake

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


def log_returned(before: Checkpoint | None, after: Checkpoint) -> None:
    """Log the names of the tables that are not set aside any more: they are applied again, or gone."""
    left = [] if before is None else before.set_aside.keys() - after.set_aside.keys()
    if before is not None and left:
        names = sorted(before.set_aside[each].table_name for each in left)
        log.info("Not set aside any more: %s.", ", ".join(names[:_MOST_LINES]))


def log_refused_copies(refused: Mapping[str, str]) -> None:
    """Warn of copies that a run was asked for and that were refused, in one line each.

    :param refused: why, by the source's ``schema.table``.
    """
    for name, reason in sorted(refused.items())[:_MOST_LINES]:
        log.warning("%s was not copied, as copy_tables asks. %s", name, reason)


def log_kept(pruned: Pruned, retention: timedelta, now: datetime) -> None:
    """Log how many batches stay only for tables that are set aside: a warning after half of the retention.

    :param retention: how long such batches stay, counted from the time when they were sealed.
    """
    if pruned.kept_since is None:
        return
    left = pruned.kept_since + retention - now
    log.log(
        logging.WARNING if left < retention / 2 else logging.INFO,
        "%d batches with %d bytes stay for tables that are set aside. The first of them goes in %s. Then"
        " only a copy (copy_tables) brings its tables back.",
        pruned.kept_batches,
        pruned.kept_bytes,
        timedelta(seconds=int(max(left.total_seconds(), 0))),
    )


def log_incomplete(lake: Lake, slot_name: str, answer: str) -> dict[str, dict[str, Any]]:
    """Warn of the tables with rows in the quarantine, in one line each, and return what XCom says about them.

    :param answer: the answer of ``on_row_refused`` in this run. Entries that an earlier answer made stay.
    :returns: by the source's ``schema.table``: ``keys`` (how many) and ``since_lsn``; 200 tables at most.
    :raises LakeDenied: the catalog does not let this login read the quarantine, and the pipeline uses it.
    :raises LakeUnavailable: the catalog or the table cannot be read.
    """
    try:
        tables = lake.incomplete(slot_name)
    except LakeDenied as denied:
        if answer != FAIL:
            raise
        # The login may have rights to single tables only. This one need not exist.
        log.warning("%s So it is not known whether tables lack rows.", denied)
        return {}
    found = sorted(tables.values(), key=lambda each: each.table_name)
    if found and answer == FAIL:
        log.warning(
            "Rows came into the quarantine before on_row_refused was 'fail'. Each still comes back with the"
            " first change that has all of its values, or with a copy (copy_tables). A change without them"
            " refuses the table now."
        )
    for each in found[:_MOST_LINES]:
        log.warning("%s is incomplete: %s.", each.table_name, each)
    if len(found) > _MOST_LINES:
        log.warning("%d more tables are incomplete.", len(found) - _MOST_LINES)
    return {
        each.table_name: {"keys": len(each.keys), "since_lsn": str(each.since_lsn)}
        for each in found[:MOST_TABLES]
    }
