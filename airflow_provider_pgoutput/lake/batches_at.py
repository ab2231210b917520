"""Finds the batches before and after a time, by the commit times that the checkpoint table records.

``state.py`` reads the checkpoint table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from airflow_provider_pgoutput.lake.state import Recorded


class Around(NamedTuple):
    """The two batches between which a time lies."""

    #: The newest batch whose transactions are all known to have committed by then; None: there is none.
    before: Recorded | None
    #: The first batch that has, or may have, transactions that committed after the time; None: the lake is
    #: not that far.
    after: Recorded | None


def batches_around(recorded: Iterable[Recorded], time: datetime) -> Around:
    """Find the batches around a time of the source's clock.

    A later LSN has a later commit time, except for small steps back (clocks are set, commits overlap). So
    the batches before the first one with a commit after the time count as before the time. For copies, and
    for batches of early versions, no commit time is recorded. Such a batch counts as before if a later one
    does. If none does, it may have commits after the time.

    :param recorded: rows of the checkpoint table; those of single tables are ignored.
    :param time: with a time zone.
    """
    before = unsure = None
    whole = (each for each in recorded if each.table_name is None)
    for each in sorted(whole, key=lambda each: each.end_lsn):
        if each.last_commit_time is None:
            if not each.is_empty:
                unsure = unsure or each
            elif unsure is None:
                before = each
        elif each.last_commit_time > time:
            return Around(before, unsure or each)
        elif each.copied:
            # The recorded time is that of the changes. The copy may have rows that committed later.
            unsure = unsure or each
        else:
            before, unsure = each, None
    return Around(before, unsure)
