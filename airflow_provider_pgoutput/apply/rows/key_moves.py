"""Finds the values of rows that moved to another key while a value was left out as unchanged TOAST.

Example: ``UPDATE t SET id = 2 WHERE id = 1``, then ``UPDATE t SET id = 3 WHERE id = 2``. Both updates leave
out a large text, which did not change. So row 3 has the text that row 1 had.

The events of one key are cut into *spans*. In a span one row has this key: the span begins when the row gets
the key, and ends when the row gets another one. A span that begins without all values continues the span that
the row left. So the spans of one row form a chain, which is named by its first span. The newest value in a
chain so far is the row's value.

If a row came to its key without an event, its span begins with its first event, and nobody knows the values
that it had before.

Pointers from span to span are followed by doubling: for a row that moved a thousand times, ten joins are
enough. Only moves without all values take part, and all columns share the joins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.rows.key_events import (
    HELD_UNDER,
    LEADING,
    LIVE,
    MOVED,
    known,
    leaves_some_out,
    left_out,
    nowhere,
)
from airflow_provider_pgoutput.batch import changes as staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, WindowSpec

    from airflow_provider_pgoutput.apply.rows.segments import Segment

#: Each join doubles the length of the chains that are followed: 2**40 moves of one row.
_MAX_JOINS = 40
#: Column: whether the event's row had its key before the batch, and no other row had it since.
STOOD = "stood"
_AT = (staged.COMMIT_LSN, staged.SEQ)
#: Key, and position of the change with which the span began; no position: the row was there before the batch.
_SPAN = "span"
_BEGINS, _PASSES, _IS_NEWEST, _FIRST_SPAN = "begins", "passes", "is_newest", "first_span"


def newest(rows: DataFrame, segment: Segment, missing: tuple[int, ...]) -> DataFrame:
    """For each key its newest event, and the newest known value of each column of that row.

    The frame is that of ``fold._newest``.
    """
    others = [staged.new(i) for i in range(len(segment.columns)) if i not in missing]
    newest_known = [known(i) for i in missing]
    rows = followed(rows, segment, missing, over_moves=True)
    rows = rows.select(*others, LIVE, *LEADING, _IS_NEWEST, HELD_UNDER, *newest_known)
    return rows.where(_IS_NEWEST).drop(_IS_NEWEST)


def followed(
    rows: DataFrame, segment: Segment, missing: tuple[int, ...], *, over_moves: bool
) -> DataFrame:
    """The events, each with the newest value of its row that is known by then, in the columns ``known<i>``.

    Further columns are ``held_under``, see ``fold.py``, and ``STOOD``.

    :param over_moves: whether any row moved to another key with a value left out. If not, it costs less.
    """
    rows = _with_spans(rows, segment)
    first_span = F.col(_SPAN)
    if over_moves:
        links = _follow(_links(rows, segment))
        goes_on = F.expr(f"{_SPAN}.lsn = link_lsn AND {_SPAN}.seq = link_seq")
        rows = rows.join(links, goes_on, "left")
        first_span = F.expr(f"coalesce(before, {_SPAN})")
    rows = rows.withColumn(_FIRST_SPAN, first_span)
    so_far = _so_far(_in_order(_FIRST_SPAN))
    was_there = f"{_FIRST_SPAN}.lsn IS NULL"
    columns = {
        HELD_UNDER: F.expr(
            f"CASE WHEN {was_there} THEN {_FIRST_SPAN}.key ELSE {nowhere(segment)} END"
        ),
        STOOD: F.expr(f"{_SPAN}.lsn IS NULL"),
    }
    for i in missing:
        here = f"CASE WHEN {LIVE} AND NOT {left_out(segment, i)} THEN struct({staged.new(i)}) END"
        columns[known(i)] = F.last(F.expr(here), ignorenulls=True).over(so_far)
    return rows.withColumns(columns)


def _with_spans(rows: DataFrame, segment: Segment) -> DataFrame:
    """The events, each with its span. The event that removes a row belongs to the span that it ends."""
    in_order = _in_order(*segment.key_names)
    # An update after a removal is about another row. That happens when a partition is attached, for example.
    was_gone = ~F.coalesce(F.lag(LIVE).over(in_order), F.lit(True))
    comes = F.expr(f"{MOVED} OR {staged.OP} = '{staged.INSERT}'")
    rows = rows.withColumns(
        {
            _BEGINS: F.col(LIVE) & (comes | was_gone),
            # The row came without an event and leaves its key at once. The same change begins the span under
            # the new key. So this span gets a number that no change has.
            _PASSES: F.expr(f"{MOVED} AND NOT {LIVE}") & was_gone,
        }
    )
    begins = F.expr(
        f"CASE WHEN {_BEGINS} THEN struct({', '.join(_AT)})"
        f" WHEN {_PASSES} THEN struct({staged.COMMIT_LSN}, -1L - {staged.SEQ} AS {staged.SEQ}) END"
    )
    start = F.last(begins, ignorenulls=True).over(_so_far(in_order))
    key = F.struct(*segment.key_names).alias("key")
    span = F.struct(key, start[staged.COMMIT_LSN].alias("lsn"), start[staged.SEQ].alias("seq"))
    is_newest = F.lead(LIVE).over(in_order).isNull()
    return rows.withColumns({_SPAN: span, _IS_NEWEST: is_newest}).drop(_BEGINS, _PASSES)


def _in_order(*partition: str) -> WindowSpec:
    return Window.partitionBy(*partition).orderBy(*_AT, LIVE)


def _so_far(in_order: WindowSpec) -> WindowSpec:
    return in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)


def _links(rows: DataFrame, segment: Segment) -> DataFrame:
    """One row for each move that leaves values out: where the new span begins, and the span that ends."""
    departures = rows.where(f"{MOVED} AND NOT {LIVE} AND ({leaves_some_out(segment)})")
    return departures.selectExpr(
        f"{staged.COMMIT_LSN} AS link_lsn", f"{staged.SEQ} AS link_seq", f"{_SPAN} AS before"
    )


def _follow(links: DataFrame) -> DataFrame:
    """Replace pointers to pointers, until each one points to the first span of its chain."""
    links = links.localCheckpoint()
    for _ in range(_MAX_JOINS):
        joined = links.alias("a").join(
            links.alias("b"),
            F.expr("a.before.lsn = b.link_lsn AND a.before.seq = b.link_seq"),
            "left",
        )
        links = joined.selectExpr(
            "a.link_lsn",
            "a.link_seq",
            "CASE WHEN b.before IS NULL THEN a.before ELSE b.before END AS before",
            "b.before IS NOT NULL AS went_on",
        ).localCheckpoint()
        went_on, links = links.where("went_on"), links.drop("went_on")
        if went_on.isEmpty():
            return links
    raise AssertionError("the links between spans form a cycle")
