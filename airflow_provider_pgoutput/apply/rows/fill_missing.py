"""Fills values that a folded row lacks from the target, before anything is deleted there.

A value is lacking when it was left out as unchanged TOAST and no earlier change of the batch holds
it. One read of the target, of the key columns and the lacking columns, serves all of them.
What is not here: deciding which values are lacking (``fold.py``, ``chains.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.sql import Sql, quote
from airflow_provider_pgoutput.apply.rows import key_ranges
from airflow_provider_pgoutput.apply.rows.key_events import HELD_UNDER, LIVE, lacks
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.errors import RowMissing, TableRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_pgoutput.apply.rows.segments import Segment

_HELD = "held_key"


def _held(position: int) -> Sql:
    """Name of the column with the value that the target holds."""
    return Sql(f"held{position}")


def resolve(
    folded: DataFrame,
    target: DataFrame,
    segment: Segment,
    missing: tuple[int, ...],
    converted: frozenset[int] = frozenset(),
    *,
    is_large: bool = False,
) -> DataFrame:
    """Fill the columns in ``missing`` from the target rows under the keys that the rows name.

    A row that is gone, and that the target does not hold either, is left out.

    :param folded: persisted by the caller.
    :param target: the target's rows in the columns ``n<i>``.
    :param converted: see ``Layout``.
    :param is_large: whether a closer look at the keys is worth what is not read of the target then.
    :raises RowMissing: the target holds no row under such a key.
    :raises TableRefused: it holds several, or the value only as it was before its type changed.
    """
    held = _held_rows(folded, target, segment, missing, is_large)
    # One join, whatever the number of columns: a plan that grows with them ends Spark's JVM by its depth.
    rows = folded.join(held, F.col(HELD_UNDER) == F.col(_HELD), "left")
    lost = f"({HELD_UNDER} IS NOT NULL AND {_HELD} IS NULL)"
    if not rows.where(f"{LIVE} AND {lost}").isEmpty():
        raise RowMissing(
            "An update leaves out an unchanged value of a row that the target does not hold.",
            table=segment.table,
            advice="copy the table again, or give it REPLICA IDENTITY FULL.",
        )
    for i in missing:
        if i in segment.unchanged and segment.columns[i].attribute_number in converted:
            _refuse_unconverted(rows, segment, i)
    filled = {
        staged.new(i): F.expr(f"CASE WHEN {lacks(i)} THEN {_held(i)} ELSE {staged.new(i)} END")
        for i in missing
    }
    return rows.where(f"{LIVE} OR NOT {lost}").withColumns(filled).select(*folded.columns)


def _refuse_unconverted(rows: DataFrame, segment: Segment, i: int) -> None:
    """Refuse a value that the source did not send again when it changed the type: it is never NULL there.

    :raises TableRefused: an update leaves it out.
    """
    if not rows.where(f"{LIVE} AND {lacks(i)} AND {_held(i)} IS NULL").isEmpty():
        raise TableRefused(
            "An update leaves out an unchanged value that the target holds only in a column of the type of"
            " before.",
            table=segment.table,
            column=segment.columns[i].name,
            advice=f"copy the table again (copy_tables=[{segment.table!r}]).",
        )


def keep_foreign(
    rows: DataFrame,
    target: DataFrame,
    segment: Segment,
    foreign: frozenset[str],
    arrived: DataFrame | None,
) -> tuple[DataFrame, dict[str, Sql]]:
    """Give rows what the target holds under their key in columns that are not the source's.

    Read now: the rows are deleted from the branch before they are written again. Of several under one key,
    which become one row, one gives its values.

    :param target: the target's rows in its own columns.
    :param arrived: the keys ``n<i>`` whose rows are others than those that the target may hold under them.
    :return: the rows with further columns, and the names of these by column of the target.
    """
    names = {name: Sql(f"x{i}") for i, name in enumerate(sorted(foreign))}
    keys = {segment.columns[i].name: staged.new(i) for i in segment.key}
    held = target.select(
        *(F.col(quote(column)).alias(f"k{name}") for column, name in keys.items()),
        *(F.col(quote(column)).alias(name) for column, name in names.items()),
    )
    return _with_held(rows, held, segment, arrived), names


def keep_unsent(
    rows: DataFrame, target: DataFrame, segment: Segment, arrived: DataFrame | None
) -> DataFrame:
    """Give rows what the target holds under their key in columns that the source no longer sends.

    Read now, as in ``keep_foreign``.

    :param target: the target's rows in the columns ``n<i>``.
    :param arrived: see ``keep_foreign``.
    """
    names = [staged.new(i) for i in segment.unsent]
    held = target.select(
        *(F.col(name).alias(f"k{name}") for name in segment.key_names), *(F.col(n) for n in names)
    )
    return _with_held(rows.drop(*names), held, segment, arrived)


def _with_held(
    rows: DataFrame, held: DataFrame, segment: Segment, arrived: DataFrame | None
) -> DataFrame:
    """Join rows with those held, whose key has the names ``kn<i>``; see ``keep_foreign``."""
    keys: list[str] = [*segment.key_names]
    same = [F.col(f"k{name}") == F.col(name) for name in keys]
    wanted = rows.select(*keys).distinct()
    if arrived is not None:
        wanted = wanted.join(arrived, keys, "left_anti")
    held_keys = [f"k{name}" for name in keys]
    held = held.join(wanted, same, "left_semi").dropDuplicates(held_keys).localCheckpoint()
    return rows.join(held, same, "left").drop(*held_keys)


def _ranges(
    wanted: DataFrame, segment: Segment, is_large: bool
) -> tuple[key_ranges.KeyRanges, ...]:
    ends = key_ranges.extremes(segment)
    if not ends:
        return ()
    row = wanted.agg(F.count(F.lit(1)).alias("keys"), *ends).collect()[0]
    if not row["keys"]:
        return ()
    extremes = key_ranges.extremes_of(row.asDict(), segment)
    if not is_large:
        return key_ranges.whole(segment, extremes)
    return key_ranges.narrow(wanted, segment, extremes)


def _held_rows(
    folded: DataFrame,
    target: DataFrame,
    segment: Segment,
    missing: tuple[int, ...],
    is_large: bool,
) -> DataFrame:
    """The target's rows under the keys wanted, read now: they are deleted from the branch later."""
    wanted = folded.where(F.col(HELD_UNDER).isNotNull())
    wanted = wanted.select(F.col(HELD_UNDER).alias("wanted")).distinct()
    own_key = F.struct(*(F.col(name) for name in segment.key_names))
    same = [F.col(name) == F.col("wanted")[name] for name in segment.key_names]
    # All values of the rows are read in the files that hold one: few files are worth more here.
    target = key_ranges.within(target, _ranges(wanted.select("wanted.*"), segment, is_large))
    values = [F.col(staged.new(i)).alias(_held(i)) for i in missing]
    held = target.join(wanted, same, "inner").select(own_key.alias(_HELD), *values)
    held = held.localCheckpoint()
    if not held.groupBy(_HELD).count().where("count > 1").isEmpty():
        raise TableRefused(
            "The target holds several rows under one key.",
            table=segment.table,
            advice="copy the table again.",
        )
    return held
