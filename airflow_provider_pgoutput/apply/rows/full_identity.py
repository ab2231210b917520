"""Sets removed rows off against added rows, for tables with REPLICA IDENTITY FULL.

The *image* of a row is all of its values in comparable form (``i0``, ``i1``, ...). An update removes the
image of the old row and adds the image of the new one. The *net* of an image is how often it was added minus
how often it was removed. Images are compared to the last bit, and NULL equals NULL.

A table without a key is netted over all changes, and equal rows are counted. With a key, the net is taken for
each key and transaction, because a deferrable key may stand twice inside one transaction.

``ALTER TABLE`` may change the images of rows without an event. If a transaction does that, images are first
netted within each version of the columns. What is left is compared across versions, in the columns that are
the same in all of them. ``branch_writer.py`` finds the rows in the target.

Source: https://www.postgresql.org/docs/current/sql-altertable.html (REPLICA IDENTITY FULL).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.sql import Sql
from airflow_provider_pgoutput.apply.rows.segments import VERSION
from airflow_provider_pgoutput.apply.schema.spark_types import comparable
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch.lake_types import FLOATS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_provider_pgoutput.apply.rows.segments import Segment

COPIES = Sql("copies")
#: Column: number of the change that leaves a row under its key at the end of its transaction.
LAST_PUT = Sql("last_put")
_SIGN = "sign"
#: Column: whether the first event of an image removed it, so the row was there before.
_WAS = "was"
_POSITION = Sql(f"struct({staged.COMMIT_LSN}, {staged.SEQ}, {_SIGN})")
_LEADING = (staged.COMMIT_LSN, staged.SEQ, staged.OP, staged.XID, staged.COMMIT_TS)


def image(i: int) -> Sql:
    """Name of the column with the comparable form of the value at position ``i``."""
    return Sql(f"i{i}")


def fold_full(changes: DataFrame, segment: Segment) -> DataFrame:
    """Fold the changes of a table with a key and whole old rows; see ``fold.py`` for the columns.

    Example, for the row (1,a) with the key 1: ``UPDATE t SET v = 'b'`` removes the image (1,a) and adds
    (1,b). The net of (1,a) is -1, that of (1,b) is +1. So the key lives, with the values of (1,b). If a
    ``DELETE`` in the same transaction removes (1,b), its net is 0, and it was not there before. Only the -1
    of (1,a) is left, so the key is gone.
    """
    keys = segment.key_names
    values = _values(segment)
    # Grouping turns -0.0 into 0.0, because the two are equal. So such a key is taken from the newest row.
    plain = [name for name in keys if name not in values]
    last = F.expr(f"max_by(struct(live, newest), {staged.COMMIT_LSN})").alias("last")
    ended = _ended(changes, segment).groupBy(*keys).agg(last)
    return ended.selectExpr(*plain, "last.live", "last.newest.*")


def last_puts(changes: DataFrame, segment: Segment) -> DataFrame:
    """The keys that each transaction changes, and the number of the change that leaves a row under each.

    A deferrable key may stand twice inside a transaction. So the newest change of a key does not tell.
    Example: the rows 1 and 2 have equal values and swap their keys. Row 1 comes to the key 2, and row 2
    leaves it. The net of the image is 0: under the key 2 stands what stood there before, and it is not among
    these.

    :return: the key columns, the commit LSN, and ``LAST_PUT``; that is NULL if the key is gone.
    """
    signed = [name for name in segment.key_names if name in _values(segment)]
    plain = [name for name in segment.key_names if name not in signed]
    last_put = F.expr(f"CASE WHEN live THEN newest.{staged.SEQ} END").alias(LAST_PUT)
    columns = [*plain, staged.COMMIT_LSN, *(f"newest.{name}" for name in signed)]
    return _ended(changes, segment).select(*columns, last_put)


def with_whole_rows(changes: DataFrame, segment: Segment) -> DataFrame:
    """The changes with all of their new values: the old row has those that the new one leaves out."""
    columns = {}
    for i in segment.unchanged:
        flag = staged.unchanged(i)
        columns[staged.new(i)] = F.expr(
            f"CASE WHEN {flag} THEN {staged.old(i)} ELSE {staged.new(i)} END"
        )
        columns[flag] = F.lit(False)
    return changes.withColumns(columns) if columns else changes


def _values(segment: Segment) -> list[Sql]:
    """The columns outside of the key, and those of the key that grouping changes, see ``fold_full``."""
    signed = [Sql(staged.new(i)) for i in segment.key if segment.columns[i].lake_type in FLOATS]
    values = [Sql(staged.new(i)) for i in range(len(segment.columns)) if i not in segment.key]
    return [*signed, *values]


def _ended(changes: DataFrame, segment: Segment) -> DataFrame:
    """How each transaction leaves each of its keys: whether it is ``live``, and its ``newest`` row."""
    keys, values = segment.key_names, _values(segment)
    groups = [*keys, staged.COMMIT_LSN, *_images(segment)]
    plain = [name for name in keys if name not in values]
    row = Sql(
        f"struct({', '.join((staged.SEQ, staged.OP, staged.XID, staged.COMMIT_TS, *values))})"
    )
    images, position = _signed(changes, segment), _POSITION
    if segment.is_mixed:
        images = _of_several_versions(images, changes, segment)
        position = Sql(f"struct({VERSION}, {_SIGN})")
    netted = images.groupBy(*groups).agg(*_netted(row, position))
    # An image with the net 0 that was there before is the current row: it was removed and added again. It is
    # written all the same, because the target may not have it. Example: a rewrite of the table changed the
    # values, and an update that changes nothing is the first event that shows them.
    live = Sql(f"({COPIES} > 0 OR {COPIES} = 0 AND {_WAS})")
    rows = netted.where(f"{COPIES} < 0 OR {live}").selectExpr(
        *plain, staged.COMMIT_LSN, COPIES, f"{live} AS live", _leading_columns(live)
    )
    rows = rows.select(*plain, staged.COMMIT_LSN, COPIES, "live", "row.*")
    newest = ", ".join((*_LEADING, *values))
    return rows.groupBy(*keys, staged.COMMIT_LSN).agg(
        # A rewrite that keeps the columns (USING) is not seen. Example, in one transaction: an update makes b
        # of a, the rewrite makes B of b, and a delete removes B. The nets of a, b and B are -1, +1 and -1.
        # Nothing removes b, but the sum is below zero: the row is gone.
        F.expr(f"max(live) AND sum({COPIES}) >= 0").alias("live"),
        F.expr(f"max_by(struct({newest}), struct(live, {staged.SEQ}))").alias("newest"),
    )


def _of_several_versions(images: DataFrame, changes: DataFrame, segment: Segment) -> DataFrame:
    """Net in each version, and make the images of one transaction comparable across versions.

    Example: a table has the columns id, v and x, and the row (1,a,5). One transaction runs ``UPDATE t SET v =
    'b'``, then ``ALTER TABLE t DROP COLUMN x``, then ``DELETE FROM t``. The first version removes (1,a,5) and
    adds (1,b,5). The second version removes (1,b), which is the same row. So ``x`` is left out of all three
    images. Then (1,b) is added and removed, and only the removed (1,a) is left.

    After that, positions inside a version do not matter. A removed image was there when its version began,
    and an added image is there when its version ends. Only images of transactions that change columns lose
    columns. There are fewer such transactions than versions, because ``ALTER TABLE`` locks out all others
    until its commit.
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
    ends = ends.selectExpr(_SIGN, _leading_columns(Sql(f"{_SIGN} > 0"))).select(_SIGN, "row.*")
    versions = changes.groupBy(staged.COMMIT_LSN).agg(
        F.expr(f"min({VERSION}) < max({VERSION})").alias("several")
    )
    spanning = [each[0] for each in versions.where("several").select(staged.COMMIT_LSN).collect()]
    if not spanning:
        return ends
    has_one_version = ~F.col(staged.COMMIT_LSN).isin(spanning)
    not_lasting = [image(i) for i in segment.image_columns if i not in segment.lasting]
    return ends.withColumns({name: F.when(has_one_version, F.col(name)) for name in not_lasting})


def net_images(changes: DataFrame, segment: Segment) -> DataFrame:
    """Net the changes of a table without a key.

    :return: the columns ``n<i>``, their comparable forms ``i<i>``, the leading columns of the newest change,
        and ``copies``: how many rows to append, or, below zero, how many to delete.
    """
    values = [staged.new(i) for i in range(len(segment.columns))]
    images = _images(segment)
    row = Sql(f"struct({', '.join((*_LEADING, *values))})")
    netted = _signed(changes, segment).groupBy(*images).agg(*_netted(row, _POSITION))
    rows = netted.where(f"{COPIES} != 0").selectExpr(
        *images, COPIES, _leading_columns(Sql(f"{COPIES} > 0"))
    )
    return rows.select(*images, COPIES, "row.*")


def _netted(row: Sql, position: Sql) -> tuple[Column, ...]:
    """Aggregates of an image.

    They are its net, whether it was there before, the newest change that added it, and the newest change of
    any kind.
    """
    return (
        F.expr(f"sum({_SIGN})").alias(COPIES),
        F.expr(f"min_by({_SIGN}, {position}) < 0").alias(_WAS),
        F.expr(f"max_by({row}, {position}) FILTER (WHERE {_SIGN} > 0)").alias("added"),
        F.expr(f"max_by({row}, {position})").alias("newest"),
    )


def _leading_columns(is_there: Sql) -> Sql:
    """The change that gives a row its leading columns: the one that added it, or else the newest."""
    return Sql(f"CASE WHEN {is_there} THEN added ELSE newest END AS row")


def _images(segment: Segment) -> list[Sql]:
    return [image(i) for i in segment.image_columns]


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
            # The old tuple is the whole row, so it has the value that the new one leaves out.
            new = f"CASE WHEN {staged.unchanged(i)} THEN {staged.old(i)} ELSE {new} END"
        columns[staged.new(i)] = F.expr(
            f"CASE WHEN {_SIGN} > 0 THEN {new} ELSE {staged.old(i)} END"
        )
    rows = rows.withColumns(columns)
    return rows.withColumns(
        {
            image(i): F.expr(comparable(Sql(staged.new(i)), segment.columns[i].lake_type))
            for i in segment.image_columns
        }
    )
