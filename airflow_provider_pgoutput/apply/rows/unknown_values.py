"""Finds whole old rows in the lake where the lake has NULL for a value that was never sent.

``ALTER TABLE t ADD c int DEFAULT -1`` gives all older rows a value without a row event. Often the catalog
tells that value. If it does not (the column was dropped since, or the table was rewritten), the lake has
NULL. A later ``DELETE`` sends the old row with ``c = -1``. So NULL in such a column stands for any value.

A row has the values of all columns that existed when it was last written. So only the last columns can be
unknown in it. An old row is first looked for exactly, then with NULL in the last of these columns, then with
NULL in the last two, and so on. If several rows of the lake are equal, it does not matter which one is taken.

``capture/schema/older_rows.py`` decides which columns these are.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.sql import Sql
from airflow_provider_pgoutput.apply.rows.full_identity import COPIES, image

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import DataFrame

    from airflow_provider_pgoutput.apply.rows.segments import Segment

#: Columns beside a row image. They are: how many equal rows are looked for, how many there are, how many of
#: the found ones are the target's, and the row of the batch.
_WANTED, _PRESENT, _OF_TARGET, _ROW = "wanted", "present", "of_target", "row"
#: The order in which rows are taken: first those that the batch itself added.
_ORIGIN = "origin"
_ADDED, _HELD, _SEARCHED = range(3)


class Settled(NamedTuple):
    """What is left to do when every old row was looked for."""

    #: Like the result of ``net_images``: rows to append, and rows that were deleted from the target.
    netted: DataFrame
    #: The target's images of the deleted rows, in columns ``i<position>`` and ``copies``.
    gone: DataFrame
    #: How many old rows were not found.
    missing: int


def settle(netted: DataFrame, held: DataFrame, segment: Segment) -> Settled:
    """For each old row that was sent, find the row that it means, in the target or in the batch itself.

    :param netted: the result of ``net_images``.
    :param held: images of the target's rows, in columns ``i<position>``.
    """
    images = [image(i) for i in segment.image_columns]
    unknown = [image(i) for i in segment.unknown]
    row = F.struct(*(each for each in netted.columns if each not in images))
    searched = netted.where(f"{COPIES} < 0")
    # With NULL in none of them, in the last one, in the last two, and so on.
    rounds = [unknown[first:] for first in reversed(range(len(unknown) + 1))]
    possible = reduce(
        lambda left, right: left.union(right),
        (searched.selectExpr(*_shown(images, each)) for each in rounds),
    )
    same = F.expr(" AND ".join(f"l.{each} <=> r.{each}" for each in images))
    present = (
        held.alias("l")
        .join(possible.distinct().alias("r"), same, "left_semi")
        .groupBy(*images)
        .count()
        .selectExpr(*images, f"{_HELD} AS {_ORIGIN}", f"0L AS {_WANTED}", f"count AS {_PRESENT}")
    )
    rows = netted.select(
        *images,
        F.expr(f"CASE WHEN {COPIES} < 0 THEN {_SEARCHED} ELSE {_ADDED} END").alias(_ORIGIN),
        F.expr(f"greatest(-{COPIES}, 0L)").alias(_WANTED),
        F.expr(f"greatest({COPIES}, 0L)").alias(_PRESENT),
        row.alias(_ROW),
    )
    rows = rows.unionByName(present.withColumn(_ROW, F.lit(None).cast(rows.schema[_ROW].dataType)))
    rows = rows.withColumns({"had": F.col(_PRESENT), _OF_TARGET: F.expr("0L")}).localCheckpoint()
    for each in rounds:
        rows = _round(rows, each, images).localCheckpoint()
    missing = rows.agg(F.sum(_WANTED)).collect()[0][0]
    is_done = (
        f"{_ORIGIN} = {_ADDED} AND {_PRESENT} > 0 OR {_ORIGIN} = {_SEARCHED} AND {_OF_TARGET} > 0"
    )
    copies = F.expr(f"CASE WHEN {_ORIGIN} = {_ADDED} THEN {_PRESENT} ELSE -{_OF_TARGET} END")
    fields = [f"{_ROW}.{each}" for each in netted.columns if each not in (*images, COPIES)]
    return Settled(
        rows.where(is_done).select(*images, copies.alias(COPIES), *fields),
        rows.where(f"{_ORIGIN} = {_HELD} AND {_PRESENT} < had").selectExpr(
            *images, f"had - {_PRESENT} AS {COPIES}"
        ),
        int(missing or 0),
    )


def _shown(images: Sequence[Sql], unknown: Collection[Sql]) -> list[Sql]:
    """The images, with NULL in the unknown ones."""
    return [Sql(f"CASE WHEN false THEN {e} END AS {e}") if e in unknown else e for e in images]


def _round(rows: DataFrame, unknown: Collection[Sql], images: Sequence[Sql]) -> DataFrame:
    """Find rows for the old rows that are still looked for, with NULL in the ``unknown`` columns."""
    keys = [
        F.expr(f"CASE WHEN {_ORIGIN} != {_SEARCHED} THEN {each} END")
        if each in unknown
        else F.col(each)
        for each in images
    ]
    alike = Window.partitionBy(*keys)
    so_far = alike.orderBy(_ORIGIN).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = rows.withColumns(
        {
            "settled": F.least(F.sum(_WANTED).over(alike), F.sum(_PRESENT).over(alike)),
            "added": F.sum(
                F.expr(f"CASE WHEN {_ORIGIN} = {_ADDED} THEN {_PRESENT} ELSE 0 END")
            ).over(alike),
            "wanted_before": F.sum(_WANTED).over(so_far) - F.col(_WANTED),
            "present_before": F.sum(_PRESENT).over(so_far) - F.col(_PRESENT),
        }
    )
    rows = rows.withColumns(
        {
            "found": F.expr(f"greatest(0, least({_WANTED}, settled - wanted_before))"),
            "taken": F.expr(f"greatest(0, least({_PRESENT}, settled - present_before))"),
        }
    )
    # Rows that the batch added are taken first. Rows beyond their number are the target's.
    beyond = "greatest(0, wanted_before + found - greatest(wanted_before, added))"
    rows = rows.withColumns(
        {
            _OF_TARGET: F.expr(f"{_OF_TARGET} + {beyond}"),
            _WANTED: F.expr(f"{_WANTED} - found"),
            _PRESENT: F.expr(f"{_PRESENT} - taken"),
        }
    )
    return rows.drop("settled", "added", "wanted_before", "present_before", "found", "taken")
