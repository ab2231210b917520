"""Nets changes with whole old rows (REPLICA IDENTITY FULL): images added minus images removed.

With a key the net is taken for each key and transaction, because inside one transaction a deferrable
key may stand twice; without a key, over all changes, and copies are counted. Images are compared to the last
bit and NULL matches NULL. A transaction that changes the columns may give rows another image unseen: it is
netted in each version of the columns, and what is left is compared in the columns that stay as they are.
What is not here: finding the copies in the target (``write.py``).
Source: https://www.postgresql.org/docs/current/sql-altertable.html (REPLICA IDENTITY FULL).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.sql import Sql
from airflow_provider_pgoutput.apply.rows.segments import VERSION
from airflow_provider_pgoutput.apply.schema.spark_types import SIGNED_ZEROS, comparable
from airflow_provider_pgoutput.batch import changes as staged

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_provider_pgoutput.apply.rows.segments import Segment

COPIES = Sql("copies")
_SIGN = "sign"
#: Whether the first that was done to an image was to take it away.
_WAS = "was"
_POSITION = Sql(f"struct({staged.COMMIT_LSN}, {staged.SEQ}, {_SIGN})")
_LEADING = (staged.COMMIT_LSN, staged.SEQ, staged.OP, staged.XID, staged.COMMIT_TS)


def image(i: int) -> Sql:
    """Name of the column that holds the comparable form of the value at position ``i``."""
    return Sql(f"i{i}")


def fold_full(changes: DataFrame, segment: Segment) -> DataFrame:
    """Fold the changes of a table with a key and whole old rows; see ``fold.py`` for the columns."""
    keys = segment.key_names
    values = [staged.new(i) for i in range(len(segment.columns)) if i not in segment.key]
    groups = [*keys, staged.COMMIT_LSN, *_images(segment)]
    # Grouping makes 0.0 of -0.0, which equal each other, so such a key is taken from the newest row.
    signed = [staged.new(i) for i in segment.key if segment.columns[i].lake_type in SIGNED_ZEROS]
    plain = [name for name in keys if name not in signed]
    values = [*signed, *values]
    row = Sql(
        f"struct({', '.join((staged.SEQ, staged.OP, staged.XID, staged.COMMIT_TS, *values))})"
    )
    images, position = _signed(changes, segment), _POSITION
    if segment.is_mixed:
        images = _of_several_versions(images, changes, segment)
        position = Sql(f"struct({VERSION}, {_SIGN})")
    netted = images.groupBy(*groups).agg(*_netted(row, position))
    # An image that was there, went and came again is the row, and the target may not have it yet: of a table
    # that was rewritten an update without a change is the first to tell what it holds.
    live = Sql(f"({COPIES} > 0 OR {COPIES} = 0 AND {_WAS})")
    rows = netted.where(f"{COPIES} < 0 OR {live}").selectExpr(
        *plain, staged.COMMIT_LSN, COPIES, f"{live} AS live", _told_of(live)
    )
    rows = rows.select(*plain, staged.COMMIT_LSN, COPIES, "live", "row.*")
    newest = ", ".join((*_LEADING, *values))
    ended = rows.groupBy(*keys, staged.COMMIT_LSN).agg(
        # A rewrite that leaves the columns as they are (USING) is not seen, and may leave an image that
        # nobody takes away: there are fewer rows then, all in all.
        F.expr(f"max(live) AND sum({COPIES}) >= 0").alias("live"),
        F.expr(f"max_by(struct({newest}), struct(live, {staged.SEQ}))").alias("newest"),
    )
    last = F.expr(f"max_by(struct(live, newest), {staged.COMMIT_LSN})").alias("last")
    return ended.groupBy(*keys).agg(last).selectExpr(*plain, "last.live", "last.newest.*")


def _of_several_versions(images: DataFrame, changes: DataFrame, segment: Segment) -> DataFrame:
    """Net in each version, and make images of one transaction comparable across versions.

    Of what is left, an image that is taken away was there when the version began, and one that is added is
    there when it ends, whatever their positions. Transactions that change columns lose the columns that do
    not last from their images; there are fewer of these than versions, as who alters a table locks all
    others out until its commit.
    """
    whole = F.struct(*(each for each in images.columns if each != _SIGN))
    groups = [*segment.key_names, staged.COMMIT_LSN, VERSION, *_images(segment)]
    signs = (
        f"CASE WHEN {COPIES} != 0 THEN array_repeat(CAST(sign({COPIES}) AS INT), CAST(abs({COPIES}) AS INT))"
        f" WHEN {_WAS} THEN array(-1, 1) END"
    )
    images = images.withColumn("whole", whole)
    netted = images.groupBy(*groups).agg(*_netted(Sql("whole"), _POSITION))
    ends = netted.selectExpr(f"explode({signs}) AS {_SIGN}", "added", "newest")
    ends = ends.selectExpr(_SIGN, _told_of(Sql(f"{_SIGN} > 0"))).select(_SIGN, "row.*")
    versions = changes.groupBy(staged.COMMIT_LSN).agg(
        F.expr(f"min({VERSION}) < max({VERSION})").alias("several")
    )
    spanning = [each[0] for each in versions.where("several").select(staged.COMMIT_LSN).collect()]
    if not spanning:
        return ends
    is_alone = ~F.col(staged.COMMIT_LSN).isin(spanning)
    passing = [image(i) for i in segment.imaged if i not in segment.lasting]
    return ends.withColumns({name: F.when(is_alone, F.col(name)) for name in passing})


def net_images(changes: DataFrame, segment: Segment) -> DataFrame:
    """Net the changes of a table without a key.

    :return: the columns ``n<i>``, their comparable forms ``i<i>``, the leading columns of the newest
        change, and ``copies``: how many to append, or below zero how many to delete.
    """
    values = [staged.new(i) for i in range(len(segment.columns))]
    images = _images(segment)
    row = Sql(f"struct({', '.join((*_LEADING, *values))})")
    netted = _signed(changes, segment).groupBy(*images).agg(*_netted(row, _POSITION))
    rows = netted.where(f"{COPIES} != 0").selectExpr(
        *images, COPIES, _told_of(Sql(f"{COPIES} > 0"))
    )
    return rows.select(*images, COPIES, "row.*")


def _netted(row: Sql, position: Sql) -> tuple[Column, ...]:
    """Of an image: how many more there are, whether one was there first, the newest that came and of all."""
    return (
        F.expr(f"sum({_SIGN})").alias(COPIES),
        F.expr(f"min_by({_SIGN}, {position}) < 0").alias(_WAS),
        F.expr(f"max_by({row}, {position}) FILTER (WHERE {_SIGN} > 0)").alias("added"),
        F.expr(f"max_by({row}, {position})").alias("newest"),
    )


def _told_of(is_there: Sql) -> Sql:
    """What tells of an image: of a row that is there the change that added it, whatever took others away."""
    return Sql(f"CASE WHEN {is_there} THEN added ELSE newest END AS row")


def _images(segment: Segment) -> list[Sql]:
    return [image(i) for i in segment.imaged]


def _signed(changes: DataFrame, segment: Segment) -> DataFrame:
    """One row for each image added (+1) or removed (-1)."""
    removes = f"{staged.OP} = '{staged.DELETE}'"
    both = f"{staged.OP} = '{staged.UPDATE}' AND {staged.OLD_KIND} IS NOT NULL"
    signs = f"CASE WHEN {removes} THEN array(-1) WHEN {both} THEN array(-1, 1) ELSE array(1) END"
    rows = changes.withColumn(_SIGN, F.expr(f"explode({signs})"))
    columns = {}
    for i in range(len(segment.columns)):
        new = staged.new(i)
        if i in segment.unchanged:
            # The old tuple is the whole row, so it holds what the new one leaves out.
            new = f"CASE WHEN {staged.unchanged(i)} THEN {staged.old(i)} ELSE {new} END"
        columns[staged.new(i)] = F.expr(
            f"CASE WHEN {_SIGN} > 0 THEN {new} ELSE {staged.old(i)} END"
        )
    rows = rows.withColumns(columns)
    return rows.withColumns(
        {
            image(i): F.expr(comparable(Sql(staged.new(i)), segment.columns[i].lake_type))
            for i in segment.imaged
        }
    )
