"""Turns the changes of a table with a key into events on keys: a row is put, or it is removed.

A change becomes one event. It becomes two if it moved its row to another key: ``UPDATE t SET id = 7 WHERE id
= 1`` removes 1 and puts 7. ``fold.py`` and ``key_moves.py`` fold the events of a key.
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
#: Columns of its newest change that a folded row keeps.
LEADING = (staged.COMMIT_LSN, staged.SEQ, staged.OP, staged.XID, staged.COMMIT_TS)

#: Column of a folded row: the key under which the target has the values that no change of the batch has;
#: NULL: there are none. If the target does not have them either, it is ``nowhere``.
HELD_UNDER = "held_under"

_ARRIVES = "arrives"


def lacks(position: int) -> Sql:
    """Name of the folded column that is true if no change of the batch has the value."""
    return Sql(f"lacks{position}")


def known(position: int) -> Sql:
    """Name of the column with the newest value that a change has, as a struct; NULL: no change has any."""
    return Sql(f"known{position}")


def nowhere(segment: Segment) -> Sql:
    """SQL of a key that no row has: all of its columns are NULL."""
    nulls = ", ".join(f"CASE WHEN false THEN {name} END AS {name}" for name in segment.key_names)
    return Sql(f"struct({nulls})")


def left_out(segment: Segment, position: int) -> Sql:
    """SQL: whether the change's new tuple leaves the value out as unchanged TOAST."""
    return Sql(staged.unchanged(position) if position in segment.unchanged else "false")


def new_key(segment: Segment, position: int) -> Sql:
    """SQL of a new value in the key. If it was left out as unchanged TOAST, the old tuple has it."""
    new, old = Sql(staged.new(position)), Sql(staged.old(position))
    if position not in segment.unchanged or position not in segment.old:
        return new
    return Sql(f"CASE WHEN {staged.unchanged(position)} THEN {old} ELSE {new} END")


def moves(segment: Segment) -> Sql:
    """SQL: whether a change moves its row to another key. Old tuples have the whole key."""
    same = [Sql(f"{new_key(segment, i)} <=> {staged.old(i)}") for i in segment.key]
    return Sql(
        f"({staged.OP} = '{staged.UPDATE}' AND {staged.OLD_KIND} IS NOT NULL AND NOT ({' AND '.join(same)}))"
    )


def leaves_some_out(segment: Segment) -> Sql:
    """SQL: whether the change's new tuple leaves out any value of a column outside of the key."""
    values = (i for i in segment.unchanged if i not in segment.key)
    return Sql(" OR ".join(left_out(segment, i) for i in values) or "false")


def beside(sign: Sql, lsn: int, seq: int) -> Sql:
    """SQL: whether a change lies on one side of a position. It compares LSN and sequence one by one.

    Spark 3.5 compares no structs whose fields differ in name.

    :param sign: ``<`` or ``>``.
    """
    is_beyond = Sql(f"{staged.COMMIT_LSN} {sign} {lsn}L")
    is_there = Sql(f"{staged.COMMIT_LSN} = {lsn}L AND {staged.SEQ} {sign} {seq}L")
    return Sql(f"({is_beyond} OR ({is_there}))")


def events(changes: DataFrame, segment: Segment, updates_with_old: bool) -> DataFrame:
    """One row for each event; the columns ``n<i>`` of the key are its key.

    :param changes: as ``segments.read_changes`` returns them, without truncates.
    :param updates_with_old: whether any update has an old tuple, and so may have moved its row.
    """
    gone, moved = f"{staged.OP} = '{staged.DELETE}'", Sql("false")
    may_move = updates_with_old and all(i in segment.old for i in segment.key)
    if may_move:
        moved = moves(segment)
    new_keys = {
        staged.new(i): F.expr(new_key(segment, i)) for i in segment.key if i in segment.unchanged
    }
    changes = changes.withColumn(MOVED, F.expr(moved)).withColumns(new_keys)
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

    Before that, another row stood under such a key, or none.
    """
    rows = events(changes, segment, updates_with_old)
    came = rows.where(f"{LIVE} AND ({MOVED} OR {staged.OP} = '{staged.INSERT}')")
    return came.select(*segment.key_names).distinct()
