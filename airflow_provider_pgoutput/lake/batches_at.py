"""Which position of the lake belongs to a time: the batches before and after it, by their commit times.

What is not here: reading the checkpoint table (``lake_state.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from airflow_provider_pgoutput.lake.state import Recorded


class Around(NamedTuple):
    """The two batches between which a time lies."""

    #: The newest batch of which no transaction committed later; None: all that are recorded have later ones.
    before: Recorded | None
    #: The batch that reaches past the time, or may; None: the lake is not that far.
    after: Recorded | None


def batches_around(recorded: Iterable[Recorded], time: datetime) -> Around:
    """Find the batches around a time of the source's clock.

    Commit times follow the order of the positions but for the small steps back that clocks and
    concurrent commits make; so what lies before the first batch that reaches past the time is before it.
    Of copies, and of batches of earlier versions, no time is known: they are before a time when a later
    batch is.

    :param recorded: rows of the checkpoint table; those of single tables are passed over.
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
            # The time is that of the changes; the copy may hold rows that were committed later.
            unsure = unsure or each
        else:
            before, unsure = each, None
    return Around(before, unsure)
