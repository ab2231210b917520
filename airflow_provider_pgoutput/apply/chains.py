"""Folds rows that moved to another key while a value was left out as unchanged TOAST.

The value is the one the row had under its old key, where it may have come from yet another key.
For each column, an *anchor* of a key is an event that settles the value: a put that holds it, or an
arrival that does not and so points to the anchor of the old key before the move, or past it, to the
row in the target under the old key. Pointers to pointers are followed by doubling: a row that moved a
thousand times takes ten joins. Only rows that moved without the value take part in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.events import LEADING, LIVE, MOVED, left_out, source_key
from airflow_provider_pgoutput.apply.names import Sql, quote
from airflow_provider_pgoutput.batch import changes as staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_pgoutput.apply.versions import Segment

#: Each join doubles the length of the chains that are settled: 2**40 moves of one row.
_MAX_JOINS = 40
_AT = (staged.COMMIT_LSN, staged.SEQ)


def _anchor(i: int) -> Sql:
    return Sql(f"anchor{i}")


def fold_chains(
    rows: DataFrame, segment: Segment, missing: tuple[int, ...], keep_gone: bool
) -> DataFrame:
    """Fold events; see ``fold.py`` for the columns of both frames."""
    in_order = Window.partitionBy(*segment.key_names).orderBy(*_AT, LIVE)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    newest_first = Window.partitionBy(*segment.key_names).orderBy(
        *(F.col(name).desc() for name in (*_AT, LIVE))
    )
    for i in missing:
        known = f"NOT {left_out(segment, i)}"
        here = f"struct({known} AS known, {staged.COMMIT_LSN} AS lsn, {staged.SEQ} AS seq)"
        settles = f"CASE WHEN {LIVE} AND ({known} OR {MOVED}) THEN {here} END"
        rows = rows.withColumn(_anchor(i), F.last(F.expr(settles), ignorenulls=True).over(so_far))
    rows = rows.withColumn("age", F.row_number().over(newest_first)).localCheckpoint()
    folded = rows.where("age = 1")
    for i in missing:
        folded = _settle(folded, rows, segment, i, keep_gone)
    values = [staged.new(i) for i in range(len(segment.columns)) if i not in segment.key]
    sources = [source_key(i) for i in missing]
    return folded.select(*segment.key_names, LIVE, *LEADING, *values, *sources)


def _settle(
    folded: DataFrame, rows: DataFrame, segment: Segment, i: int, keep_gone: bool
) -> DataFrame:
    """Give column ``i`` of the folded rows its value, or the key of the target row that has it."""
    links = _follow(_links(rows, segment, i))
    found = folded.alias("f").join(
        links.alias("l"),
        F.expr(
            f"NOT f.{_anchor(i)}.known AND f.{_anchor(i)}.lsn = l.lsn AND f.{_anchor(i)}.seq = l.seq"
        ),
        "left",
    )
    own_key = f"struct({', '.join(f'f.{name}' for name in segment.key_names)})"
    unwanted = "false" if keep_gone else f"NOT f.{LIVE}"
    source = (
        f"CASE WHEN {unwanted} OR f.{_anchor(i)}.known THEN NULL"
        f" WHEN f.{_anchor(i)} IS NULL THEN {own_key}"
        f" WHEN l.next IS NULL THEN l.old_key END AS {source_key(i)}"
    )
    place = f"CASE WHEN f.{_anchor(i)}.known THEN f.{_anchor(i)} ELSE l.next END AS place"
    others = [f"f.{quote(name)}" for name in folded.columns if name != staged.new(i)]
    settled = found.selectExpr(*others, source, place)
    held = rows.where(f"{LIVE} AND NOT {left_out(segment, i)}").selectExpr(
        f"{staged.COMMIT_LSN} AS held_lsn", f"{staged.SEQ} AS held_seq", staged.new(i)
    )
    same_place = F.expr("place.lsn = held_lsn AND place.seq = held_seq")
    return settled.join(held, same_place, "left").drop("held_lsn", "held_seq", "place")


def _links(rows: DataFrame, segment: Segment, i: int) -> DataFrame:
    """One row for each arrival without the value: where it is, and where its value comes from."""
    departures = rows.where(f"{MOVED} AND NOT {LIVE} AND {left_out(segment, i)}")
    return departures.selectExpr(
        f"{staged.COMMIT_LSN} AS lsn",
        f"{staged.SEQ} AS seq",
        f"struct({', '.join(segment.key_names)}) AS old_key",
        f"{_anchor(i)} AS next",
    )


def _follow(links: DataFrame) -> DataFrame:
    """Replace pointers to pointers until each ends at a known value or at a row of the target."""
    links = links.localCheckpoint()
    for _ in range(_MAX_JOINS):
        if links.where("NOT next.known").isEmpty():
            return links
        joined = links.alias("a").join(
            links.alias("b"),
            F.expr("NOT a.next.known AND a.next.lsn = b.lsn AND a.next.seq = b.seq"),
            "left",
        )
        links = joined.selectExpr(
            "a.lsn",
            "a.seq",
            "CASE WHEN b.lsn IS NULL THEN a.old_key ELSE b.old_key END AS old_key",
            "CASE WHEN b.lsn IS NULL THEN a.next ELSE b.next END AS next",
        ).localCheckpoint()
    raise AssertionError("a chain of moves is a chain: each points to an earlier position")
