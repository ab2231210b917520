"""History mode: a table has one row for each *version* of a row (a slowly changing dimension of type 2).

Every insert and every update makes a version, also inside a transaction. It is current until a later change
of its key ends it: an update, a delete, a move to another key, a ``TRUNCATE``. A copy may end it, too. Under
REPLICA IDENTITY FULL it counts what a transaction leaves under a key, see ``_ended_by_transactions``. A
version has all values: what an update left out as unchanged TOAST comes from the version before it. The
columns:

* ``_pgoutput_valid_from_lsn`` and ``_pgoutput_valid_to_lsn``: the commit LSN of the change that made the
  version, and of the one that ended it. ``_pgoutput_valid_from`` and ``_pgoutput_valid_to`` are their commit
  times. If a version ended in its own transaction, both LSNs are the same: no query as of an LSN finds it.
* ``_pgoutput_seq``: the number of the change in its transaction. With ``_pgoutput_valid_from_lsn`` it puts
  the versions of a key in order. Copied rows have -1: a change with the copy's own LSN comes after them.
* ``_pgoutput_is_current``: whether the source has this row now. These are the rows that a table in mode
  ``upsert`` has, with one row for each key.

Only current rows are changed. A ``MERGE`` ends those under the keys of the batch, and the new versions are
appended. A ``TRUNCATE`` ends all of them by an ``UPDATE``. Iceberg does not read files in which no row is
current.

A copy compares its rows with the current ones. An equal row stays the version that it is. Every other current
version ends at the copy's LSN, and every other copied row becomes a new version. What happened between the
last batch and the copy is in no version. If the target lacks a column of the key, or a column of the key got
another mask, all current versions end.

A table without a key is refused: nothing tells which version follows which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.sql import Sql, literal, quote
from airflow_provider_pgoutput.apply.rows import (
    change_log,
    full_identity,
    key_moves,
    key_ranges,
    user_columns,
)
from airflow_provider_pgoutput.apply.rows.apply_keyed import is_large, null_key
from airflow_provider_pgoutput.apply.rows.branch_writer import END_LSN, END_TS, IS_CURRENT
from airflow_provider_pgoutput.apply.rows.fill_missing import (
    IS_DELETED,
    fill,
    keep_not_in_batch,
    keep_unsent,
)
from airflow_provider_pgoutput.apply.rows.fold import has_moved_without_values, with_newest_values
from airflow_provider_pgoutput.apply.rows.key_events import (
    HELD_UNDER,
    LIVE,
    POSITION,
    beside,
    events,
)
from airflow_provider_pgoutput.apply.rows.key_moves import STOOD
from airflow_provider_pgoutput.apply.schema.spark_types import comparable
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch.changes import (
    IS_CURRENT_COLUMN,
    SEQ_COLUMN,
    VALID_FROM_COLUMN,
    VALID_FROM_LSN_COLUMN,
    VALID_TO_COLUMN,
    VALID_TO_LSN_COLUMN,
)
from airflow_provider_pgoutput.crash_points import reach

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import DataFrame

    from airflow_provider_pgoutput.apply.rows.segments import Segment
    from airflow_provider_pgoutput.apply.rows.table_state import TableState

_MICROS = "micros"
#: Column: true if the event's transaction changes what stands under the event's key. NULL: it leaves that as
#: it was, which happens under REPLICA IDENTITY FULL only.
_TOUCHES = Sql("touches")


def copy(
    state: TableState, rows: DataFrame | None, held_key: Sequence[str], remasked: Collection[str]
) -> None:
    """Compare copied rows with the current ones: end those that differ or are gone, and add new versions.

    :param rows: in the columns ``n<i>`` of the batch; None: the copy has none.
    :param held_key: names of the key columns, if the current rows can be found by them; otherwise none, and
        all of them end.
    :param remasked: see ``user_columns.over_copy``.
    """
    writer, at = state.writer(), Sql(f"{int(state.start.floor)}L")
    text = state.target.source.copy_time
    time = Sql(f"CAST({'NULL' if text is None else literal(text)} AS TIMESTAMP)")
    kept: dict[str, Sql] = {}
    if not state.empty:
        keys = [staged.new(i) for i, each in enumerate(state.columns) if each.name in held_key]
        if rows is not None and keys:
            same = _same(state, rows, held_key).localCheckpoint()
            rows, kept = user_columns.over_copy(state, rows, held_key, remasked)
            rows = rows.join(same, keys, "left_anti")
            positions = [i for i, each in enumerate(state.columns) if each.name in held_key]
            gone = writer.rows(where=IS_CURRENT).join(same, keys, "left_anti")
            ends = gone.selectExpr(*keys, f"{at} AS {END_LSN}", f"{time} AS {END_TS}")
            ends = ends.localCheckpoint()
            # A key column was an ordinary one in earlier rows, and may be NULL there. No join finds these.
            no_key = Sql(" OR ".join(f"{quote(each)} IS NULL" for each in held_key))
            writer.end_all(at, time, no_key)
            writer.end_keys(ends, positions)
        else:
            writer.end_all(at, time)
        reach("apply.after_delete")
    if rows is None:
        return
    extra = {
        **change_log.of_copy(state.start.floor, numbered=False),
        VALID_FROM_LSN_COLUMN: at,
        VALID_FROM_COLUMN: time,
        SEQ_COLUMN: Sql("-1L"),
        IS_CURRENT_COLUMN: Sql("true"),
    }
    writer.append(rows, extra | kept)
    state.note_rows(state.counts.copied)


def _same(state: TableState, rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """The keys under which the copied row equals the current version, in the columns ``n<i>``.

    Columns that users added do not count. In other columns that are not in the copy, a copied row has NULL.
    So a current row with a value there is not equal. Examples: a column that is not published any more, old
    values of a column of another type.
    """
    at = {each.name: i for i, each in enumerate(state.columns)}
    held = state.writer().rows_as_they_are().where(IS_CURRENT)
    said = {*at, *state.target.metadata, *state.layout.user_columns}
    unsaid = [quote(name) for name in held.columns if name not in said]
    empty = Sql(" AND ".join(f"{name} IS NULL" for name in unsaid) or "true")
    names = {i: Sql(f"h{i}") for i in at.values()}
    held = held.where(empty).selectExpr(*(f"{quote(name)} AS {names[i]}" for name, i in at.items()))
    # One text: Spark's parser makes a balanced tree of it. A list of conditions would be as deep as there are
    # columns.
    found = Sql(" AND ".join(f"{staged.new(at[name])} = {names[at[name]]}" for name in key))
    equal = " AND ".join(
        f"{comparable(Sql(staged.new(i)), each.lake_type)} <=> {comparable(names[i], each.lake_type)}"
        for i, each in enumerate(state.columns)
    )
    keys = [staged.new(at[name]) for name in key]
    return rows.join(held, F.expr(f"{found} AND {equal}"), "inner").select(*keys)


def apply_all(state: TableState, segments: Sequence[Segment]) -> None:
    """Apply the segments in order. A truncate ends all current versions, so it divides the changes.

    :raises RowMissing: an update leaves out values of a row that the target does not have.
    :raises ValueRefused: a key column is NULL: the lake's type does not hold the value, or there is none.
    """
    for number, segment in enumerate(segments):
        changes, is_last = state.read(segment), number == len(segments) - 1
        rows = changes.where(F.col(staged.OP) != staged.TRUNCATE)
        truncates = _truncates(changes) if state.counts.truncates else []
        for lsn, seq, micros in truncates:
            _apply(state, segment, rows.where(beside(Sql("<"), lsn, seq)), is_last=False)
            if not state.empty:
                state.writer().end_all(Sql(f"{lsn}L"), Sql(f"timestamp_micros({micros}L)"))
            rows = rows.where(beside(Sql(">"), lsn, seq))
        _apply(state, segment, rows, is_last=is_last)


def _truncates(changes: DataFrame) -> list[tuple[int, int, int]]:
    """Commit LSN, number and commit time (microseconds since 1970) of each truncate, in order."""
    found = changes.where(F.col(staged.OP) == staged.TRUNCATE).select(
        staged.COMMIT_LSN, staged.SEQ, F.unix_micros(staged.COMMIT_TS).alias(_MICROS)
    )
    return sorted(
        (row[staged.COMMIT_LSN], row[staged.SEQ], row[_MICROS]) for row in found.collect()
    )


def _apply(state: TableState, segment: Segment, changes: DataFrame, *, is_last: bool) -> None:
    """Apply the changes before, between or after truncates: end current versions, and append new ones."""
    rows, missing = _versions(state, segment, changes)
    # Read several times: for facts, for the keys whose versions end, and for the new versions.
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        lacking = f"{HELD_UNDER} IS NOT NULL" if missing else "false"
        facts = rows.agg(
            F.count(F.lit(1)).alias("events"),
            F.expr(f"count_if({LIVE})").alias("live"),
            F.expr(f"count_if({lacking})").alias("incomplete"),
            *(F.expr(f"count_if({staged.new(i)} IS NULL)").alias(f"null{i}") for i in segment.key),
            *key_ranges.extremes(segment),
        ).collect()[0]
        if not facts["events"]:
            return
        for i in segment.key:
            if facts[f"null{i}"]:
                raise null_key(segment.table, segment.columns[i].name)
        new, extra = rows.where(LIVE), _of_versions()
        if facts["incomplete"]:
            new = _filled(state, segment, new, missing)
        if facts["live"] and not state.empty:
            new, kept = _with_kept(state, segment, new)
            extra |= kept
        if not state.empty:
            extremes = key_ranges.extremes_of(facts.asDict(), segment)
            end = F.expr(f"min_by(struct({staged.COMMIT_LSN}, {staged.COMMIT_TS}), {POSITION})")
            ends = rows.where(_TOUCHES).groupBy(*segment.key_names).agg(end.alias("first"))
            ends = ends.select(
                *segment.key_names,
                F.col(f"first.{staged.COMMIT_LSN}").alias(END_LSN),
                F.col(f"first.{staged.COMMIT_TS}").alias(END_TS),
            )
            ranges = key_ranges.whole(segment, extremes)
            if is_large(state):
                ranges = key_ranges.narrow(rows, segment, extremes)
            state.writer().end_keys(ends, segment.key, ranges)
        reach("apply.after_delete")
        if facts["live"]:
            state.writer().append(new, extra, state.marker if is_last else None)
            state.note_rows(facts["live"])
        reach("apply.after_append")
    finally:
        rows.unpersist()


def _versions(
    state: TableState, segment: Segment, changes: DataFrame
) -> tuple[DataFrame, tuple[int, ...]]:
    """The events on keys. Those that leave a row are versions.

    Each has the LSN and the time that end it; NULL: it stays current.

    :return: the events, and the numbers of the columns that have a ``lacks<i>``, see ``fold.py``.
    """
    moves = state.counts.old_tuples > 0
    if segment.full:
        touched = full_identity.last_puts(changes, segment).withColumn(_TOUCHES, F.lit(True))
        rows = events(full_identity.with_whole_rows(changes, segment), segment, moves)
        rows = key_moves.followed(rows, segment, (), over_moves=False)
        rows = rows.join(touched, [*segment.key_names, staged.COMMIT_LSN], "left")
        return _ended_by_transactions(rows, segment), ()
    rows = events(changes, segment, moves)
    missing = tuple(i for i in segment.unchanged if i not in segment.key)
    over_moves = moves and bool(missing) and has_moved_without_values(rows, segment)
    rows = key_moves.followed(rows, segment, missing, over_moves=over_moves)
    rows = with_newest_values(rows, missing, keep_gone=False)
    by_key = Window.partitionBy(*segment.key_names).orderBy(staged.COMMIT_LSN, staged.SEQ, LIVE)
    ends = {
        END_LSN: F.lead(staged.COMMIT_LSN).over(by_key),
        END_TS: F.lead(staged.COMMIT_TS).over(by_key),
    }
    return rows.withColumns({**ends, _TOUCHES: F.lit(True)}), missing


def _ended_by_transactions(rows: DataFrame, segment: Segment) -> DataFrame:
    """The events, each with the transaction that ends its version (REPLICA IDENTITY FULL).

    A deferrable key may stand twice inside a transaction, and once at its end. So of the versions that a
    transaction makes under one key, at most one outlives it. It ends with the next transaction that changes
    what stands under the key. The others end in their own transaction. If the transaction leaves under the
    key what stood there before, the version from before stays current.
    """
    by_key = Window.partitionBy(*segment.key_names).orderBy(staged.COMMIT_LSN)
    later = by_key.rangeBetween(1, Window.unboundedFollowing)
    at = F.struct(staged.COMMIT_LSN, staged.COMMIT_TS)
    following = F.min(F.when(F.col(_TOUCHES), at)).over(later)
    end = F.when(F.expr(f"{staged.SEQ} = {full_identity.LAST_PUT}"), following).otherwise(at)
    return rows.withColumns({END_LSN: end[staged.COMMIT_LSN], END_TS: end[staged.COMMIT_TS]})


def _filled(
    state: TableState, segment: Segment, new: DataFrame, missing: tuple[int, ...]
) -> DataFrame:
    """The new versions with the values that only the current version of their row has."""
    current = state.writer().rows(Sql(f"false AS {IS_DELETED}"), where=IS_CURRENT)
    converted = state.layout.converted
    filled, _ = fill(new, current, segment, missing, converted, is_large=is_large(state))
    return filled


def _with_kept(
    state: TableState, segment: Segment, new: DataFrame
) -> tuple[DataFrame, dict[str, Sql]]:
    """The new versions with what the batch does not say: columns that are not sent any more, and users' own.

    A row that came to its key in this batch gets none: what stood under the key was another row.
    """
    writer, kept, names = state.writer(), dict[str, Sql](), [staged.new(i) for i in segment.unsent]
    if segment.unsent:
        new = keep_unsent(new, writer.rows(where=IS_CURRENT), segment, None)
    if not_in_batch := state.layout.not_in_batch:
        held = writer.rows_as_they_are().where(IS_CURRENT)
        new, kept = keep_not_in_batch(new, held, segment, not_in_batch, None)
    stood = {name: F.when(F.col(STOOD), F.col(name)) for name in (*names, *kept.values())}
    return (new.withColumns(stood) if stood else new), kept


def _of_versions() -> dict[str, Sql]:
    """SQL of the pipeline's columns of new versions."""
    return {
        **change_log.of_folded(),
        VALID_FROM_LSN_COLUMN: Sql(staged.COMMIT_LSN),
        VALID_FROM_COLUMN: Sql(staged.COMMIT_TS),
        VALID_TO_LSN_COLUMN: Sql(END_LSN),
        VALID_TO_COLUMN: Sql(END_TS),
        IS_CURRENT_COLUMN: Sql(f"{END_LSN} IS NULL"),
    }
