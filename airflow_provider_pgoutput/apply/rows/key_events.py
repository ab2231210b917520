"""Turns the changes of a table with a key into events on keys: a row is put, or it is removed.

A change becomes one event, or two when it moved its row to another key: the old key is removed, the
new one put. What is not here: what the events of a key amount to (``fold.py``, ``chains.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.sql import Sql
from airflow_provider_pgoutput.batch import changes as staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_pgoutput.apply.rows.segments import Segment

#: Column: whether the event leaves a row under its key.
LIVE = "live"
#: Column: whether the event is half of a move to another key.
MOVED = "moved"
#: Order of the events: a change that moves a row first removes, then puts.
POSITION = f"struct({staged.COMMIT_LSN}, {staged.SEQ}, {LIVE})"
#: Leading columns that a folded row keeps of its newest change.
LEADING = (staged.COMMIT_LSN, staged.SEQ, staged.OP, staged.XID, staged.COMMIT_TS)

#: Column of a folded row: the key under which the target holds the values that no change of the batch
#: holds; null: there are none.
HELD_UNDER = "held_under"

_ARRIVES = "arrives"


def lacks(position: int) -> Sql:
    """Name of the folded column that says whether the value is one that no change of the batch holds."""
    return Sql(f"lacks{position}")


def known(position: int) -> Sql:
    """Name of the column with the newest value that a change holds, as a struct; null: none holds any."""
    return Sql(f"known{position}")


def left_out(segment: Segment, position: int) -> Sql:
    """SQL: whether the new tuple of a change leaves the value out as unchanged TOAST."""
    return Sql(staged.unchanged(position) if position in segment.unchanged else "false")


def leaves_some_out(segment: Segment) -> Sql:
    """SQL: whether the new tuple of a change leaves out some value, of a column that is not of the key."""
    values = (i for i in segment.unchanged if i not in segment.key)
    return Sql(" OR ".join(left_out(segment, i) for i in values) or "false")


def events(changes: DataFrame, segment: Segment, updates_with_old: bool) -> DataFrame:
    """One row for each event; ``n`` of the key columns is its key.

    :param changes: as ``versions.read_changes`` gives them, without truncates.
    :param updates_with_old: whether any update carries an old tuple, so may have moved its row.
    """
    new_keys = {}
    for i in segment.key:
        # A key stored as TOAST and unchanged is left out of the new tuple; the old one has it.
        if i in segment.unchanged and i in segment.old:
            new = f"CASE WHEN {staged.unchanged(i)} THEN {staged.old(i)} ELSE {staged.new(i)} END"
            new_keys[staged.new(i)] = F.expr(new)
    changes = changes.withColumns(new_keys)
    gone, moved = f"{staged.OP} = '{staged.DELETE}'", "false"
    may_move = updates_with_old and all(i in segment.old for i in segment.key)
    if may_move:
        same = " AND ".join(f"{staged.new(i)} <=> {staged.old(i)}" for i in segment.key)
        moved = (
            f"{staged.OP} = '{staged.UPDATE}' AND {staged.OLD_KIND} IS NOT NULL AND NOT ({same})"
        )
    changes = changes.withColumn(MOVED, F.expr(moved))
    if may_move:
        sides = f"explode(CASE WHEN {MOVED} THEN array(true, false) ELSE array(true) END)"
        changes = changes.withColumn(_ARRIVES, F.expr(sides))
        gone = f"({gone} OR NOT {_ARRIVES})"
    changes = changes.withColumn(LIVE, F.expr(f"NOT {gone}"))
    keys = {
        staged.new(i): F.expr(f"CASE WHEN {LIVE} THEN {staged.new(i)} ELSE {staged.old(i)} END")
        for i in segment.key
        if i in segment.old
    }
    return changes.withColumns(keys).drop(*(staged.old(i) for i in segment.old))


def arrivals(changes: DataFrame, segment: Segment, updates_with_old: bool) -> DataFrame:
    """The keys under which a row came to be, by an insert or by a move; see ``events``.

    Whatever stood under such a key before was another row.
    """
    rows = events(changes, segment, updates_with_old)
    came = rows.where(f"{LIVE} AND ({MOVED} OR {staged.OP} = '{staged.INSERT}')")
    return came.select(*segment.key_names).distinct()
