"""Folds the events of a table with a key to at most one row for each key.

The row says whether the key exists or was deleted. The newest event of a key decides. A *folded* frame has
these columns:

* ``n<i>``: the new value of the column at position i, see ``batch/changes.py``. With ``keep_gone``, rows that
  are gone have values, too.
* ``live``: the row exists.
* the leading columns of the newest change: LSN, sequence, operation, transaction ID and commit time.

A column may lack its value. Then the frame has ``lacks<i>`` for it, and ``held_under``: the key that the row
had before the batch. Under it the target has all values that the row lacks. It is NULL if the row lacks none,
and ``nowhere`` if the target does not have them either.

A row may come to a key without an event. Examples: its partition is attached, or it was replicated to the
source, and ``origin`` leaves it out. What an earlier row had under the key is of no use then: neither the
batch nor the target has the values.

``full_identity.py`` folds tables with REPLICA IDENTITY FULL. ``key_moves.py`` follows rows that moved to
another key without all of their values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.rows import full_identity, key_moves
from airflow_provider_pgoutput.apply.rows.key_events import (
    HELD_UNDER,
    LEADING,
    LIVE,
    MOVED,
    POSITION,
    events,
    known,
    lacks,
    leaves_some_out,
    left_out,
    nowhere,
)
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch.lake_types import FLOATS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_pgoutput.apply.rows.segments import Segment
    from airflow_provider_pgoutput.batch.table_version import Counts

#: When a key was removed last, and where the newest known value of each column stands.
_GONE_AT, _KNOWN_AT = "gone_at", "known_at"
_AT = f"struct({staged.COMMIT_LSN}, {staged.SEQ})"


def fold(
    changes: DataFrame, segment: Segment, counts: Counts, keep_gone: bool
) -> tuple[DataFrame, tuple[int, ...]]:
    """Fold the changes of a segment that has a key.

    :param changes: as ``segments.read_changes`` returns them, without truncates and the changes before these.
    :param counts: of the whole table in the batch. Without old tuples no row moved to another key, so there
        is less to do.
    :param keep_gone: give rows that are gone their last values, too.
    :return: the folded frame, and the positions of the columns that have a ``lacks<i>``.
    """
    if segment.full:
        return full_identity.fold_full(changes, segment), ()
    rows = events(changes, segment, updates_with_old=counts.old_tuples > 0)
    values = tuple(i for i in range(len(segment.columns)) if i not in segment.key)
    missing = values if keep_gone else tuple(i for i in values if i in segment.unchanged)
    if counts.old_tuples and segment.unchanged and has_moved_without_values(rows, segment):
        newest = key_moves.newest(rows, segment, missing)
    else:
        newest = _newest(rows, segment, missing)
    return with_newest_values(newest, missing, keep_gone), missing


def _newest(rows: DataFrame, segment: Segment, missing: tuple[int, ...]) -> DataFrame:
    """The newest event of each key, and the newest known value of each column in ``missing``.

    The newest known value is the right one, if it is newer than the last removal of the key. After a removal
    a row comes by an insert or by a move with all values. If it came without an event, its value is unknown.
    """
    values = [i for i in range(len(segment.columns)) if i not in segment.key and i not in missing]
    # Grouping turns -0.0 into 0.0, because the two are equal. So such a key is taken from the newest row.
    signed = [i for i in segment.key if segment.columns[i].lake_type in FLOATS]
    kept = ", ".join((LIVE, *LEADING, *(staged.new(i) for i in (*signed, *values))))
    aggregates = [f"max_by(struct({kept}), {POSITION}) AS newest"]
    if missing:
        aggregates.append(f"max({_AT}) FILTER (WHERE NOT {LIVE}) AS {_GONE_AT}")
    for i in missing:
        has_value = f"FILTER (WHERE {LIVE} AND NOT {left_out(segment, i)})"
        aggregates.append(f"max_by(struct({staged.new(i)}), {POSITION}) {has_value} AS {known(i)}")
        if i in segment.unchanged:
            aggregates.append(f"max({_AT}) {has_value} AS {_KNOWN_AT}{i}")
    grouped = rows.groupBy(*segment.key_names).agg(*(F.expr(each) for each in aggregates))
    plain = [staged.new(i) for i in segment.key if i not in signed]
    own_key = f"struct({', '.join(segment.key_names)})"
    if not missing:
        return grouped.selectExpr(*plain, "newest.*", f"{own_key} AS {HELD_UNDER}")
    came_back = f"newest.{LIVE} AND {_GONE_AT} IS NOT NULL"
    held = f"CASE WHEN {came_back} THEN {nowhere(segment)} ELSE {own_key} END AS {HELD_UNDER}"
    of_this_row = (
        f"CASE WHEN NOT ({came_back} AND {_GONE_AT} > {_KNOWN_AT}{i}) THEN {known(i)} END"
        f" AS {known(i)}"
        if i in segment.unchanged
        else known(i)
        for i in missing
    )
    return grouped.selectExpr(*plain, "newest.*", held, *of_this_row)


def with_newest_values(newest: DataFrame, missing: tuple[int, ...], keep_gone: bool) -> DataFrame:
    """The folded frame.

    :param newest: the newest event of each key, or each event. In place of each column in ``missing`` it has
        a struct ``known<i>``. Its column ``held_under`` is the key under which the target has the other
        values.
    """
    if not missing:
        return newest.drop(HELD_UNDER)
    columns = {}
    for i in missing:
        columns[staged.new(i)] = F.expr(f"{known(i)}.{staged.new(i)}")
        columns[lacks(i)] = F.expr(f"{known(i)} IS NULL")
    wanted = "true" if keep_gone else LIVE
    lacking = f"array_contains(array({', '.join(f'{known(i)} IS NULL' for i in missing)}), true)"
    columns[HELD_UNDER] = F.expr(f"CASE WHEN {wanted} AND {lacking} THEN {HELD_UNDER} END")
    return newest.withColumns(columns).drop(*(known(i) for i in missing))


def has_moved_without_values(rows: DataFrame, segment: Segment) -> bool:
    """Whether a row moved to another key with a value left out of its new tuple."""
    return not rows.where(f"{MOVED} AND {LIVE} AND ({leaves_some_out(segment)})").isEmpty()
