"""Fills values that a folded row lacks from the target, before the target's row is deleted.

A row lacks a value that was left out as unchanged TOAST, if no earlier change of the batch has it. One read
of the target serves all columns: it reads the key and the columns that lack values. ``fold.py`` and
``key_moves.py`` decide which values a row lacks.
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
#: Column of the target's rows: whether the row is marked as deleted.
IS_DELETED = Sql("is_deleted")


def _held(position: int) -> Sql:
    """Name of the column with the target's value."""
    return Sql(f"held{position}")


def fill(
    folded: DataFrame,
    target: DataFrame,
    segment: Segment,
    missing: tuple[int, ...],
    converted: frozenset[int] = frozenset(),
    *,
    is_large: bool = False,
    keeps_lost: bool = False,
) -> tuple[DataFrame, DataFrame | None]:
    """Fill the columns in ``missing`` from the target's rows, under the keys that ``held_under`` names.

    A deleted row that the target does not have is left out. A row that the target has only as a deleted one
    is not there: another row has its key now.

    :param folded: persisted by the caller.
    :param target: the target's rows in the columns ``n<i>``, and ``IS_DELETED``.
    :param converted: see ``Layout``.
    :param is_large: whether the target is so large that narrow ranges of keys pay off, see ``key_ranges.py``.
    :param keeps_lost: whether rows that cannot be filled are returned. If not, the table is refused.
    :return: the filled rows; and those that cannot be filled, if there are any.
    :raises RowMissing: the target has no row under such a key.
    :raises TableRefused: the target has several, or it has the value only from before a change of its type.
    """
    held = _held_rows(folded, target, segment, missing, is_large)
    # One join for all columns. A job that grows with the number of columns would overflow the stack of
    # Spark's JVM.
    rows = folded.join(held, F.col(HELD_UNDER) == F.col(_HELD), "left")
    lost = f"({HELD_UNDER} IS NOT NULL AND ({_HELD} IS NULL OR {LIVE} AND {IS_DELETED}))"
    missed = rows.where(f"{LIVE} AND {lost}").select(*folded.columns)
    has_missed = not missed.isEmpty()
    if has_missed and not keeps_lost:
        raise RowMissing(
            "An update leaves out an unchanged value of a row that the target does not hold.",
            table=segment.table,
            advice=f"copy the table again (copy_tables=[{segment.table!r}]). REPLICA IDENTITY FULL sends"
            " all values from then on.",
        )
    rows = rows.where(f"NOT {lost}")
    for i in missing:
        if i in segment.unchanged and segment.columns[i].attribute_number in converted:
            _refuse_unconverted(rows, segment, i)
    filled = {
        staged.new(i): F.expr(f"CASE WHEN {lacks(i)} THEN {_held(i)} ELSE {staged.new(i)} END")
        for i in missing
    }
    return rows.withColumns(filled).select(*folded.columns), missed if has_missed else None


def _refuse_unconverted(rows: DataFrame, segment: Segment, i: int) -> None:
    """Refuse if a value is missing because the column changed its type and the source did not send it again.

    :raises TableRefused: an update leaves such a value out.
    """
    if not rows.where(f"{LIVE} AND {lacks(i)} AND {_held(i)} IS NULL").isEmpty():
        raise TableRefused(
            "An update leaves out an unchanged value, and the target has it only in the column from before a"
            " change of its type.",
            table=segment.table,
            column=segment.columns[i].name,
            advice=f"copy the table again (copy_tables=[{segment.table!r}]).",
        )


def keep_not_in_batch(
    rows: DataFrame,
    target: DataFrame,
    segment: Segment,
    not_in_batch: frozenset[str],
    arrived: DataFrame | None,
) -> tuple[DataFrame, dict[str, Sql]]:
    """Give rows the values that the target has under their key in columns about which the batch says nothing.

    Example: a user's own column. The values are read now, because the rows are deleted from the branch before
    they are written again. If several rows of the target become one, it gets the values of one of them.

    :param target: the target's rows, with the target's own columns.
    :param not_in_batch: names of these columns, see ``Layout``.
    :param arrived: keys ``n<i>`` under which the target may have another row. Their rows get nothing.
        None: there are no such keys.
    :return: the rows with further columns, and the names of these, by column of the target.
    """
    names = {name: Sql(f"x{i}") for i, name in enumerate(sorted(not_in_batch))}
    keys = {segment.columns[i].name: staged.new(i) for i in segment.key}
    held = target.select(
        *(F.col(quote(column)).alias(f"k{name}") for column, name in keys.items()),
        *(F.col(quote(column)).alias(name) for column, name in names.items()),
    )
    return _with_held(rows, held, segment, arrived), names


def keep_unsent(
    rows: DataFrame, target: DataFrame, segment: Segment, arrived: DataFrame | None
) -> DataFrame:
    """Give rows the values that the target has under their key in columns that the source no longer sends.

    They are read now, as in ``keep_not_in_batch``.

    :param target: the target's rows in the columns ``n<i>``.
    :param arrived: see ``keep_not_in_batch``.
    """
    names = [staged.new(i) for i in segment.unsent]
    held = target.select(
        *(F.col(name).alias(f"k{name}") for name in segment.key_names), *(F.col(n) for n in names)
    )
    return _with_held(rows.drop(*names), held, segment, arrived)


def _with_held(
    rows: DataFrame, held: DataFrame, segment: Segment, arrived: DataFrame | None
) -> DataFrame:
    """Join rows with the target's rows, see ``keep_not_in_batch``.

    :param held: the target's rows. Their key columns are called ``kn<i>``.
    """
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
    """The target's rows under the wanted keys. Read now, because the branch deletes them later."""
    # Not NULL and not ``nowhere``.
    wanted = folded.where(f"{HELD_UNDER}.{segment.key_names[0]} IS NOT NULL")
    wanted = wanted.select(F.col(HELD_UNDER).alias("wanted")).distinct()
    own_key = F.struct(*(F.col(name) for name in segment.key_names))
    same = [F.col(name) == F.col("wanted")[name] for name in segment.key_names]
    # Whole rows are read from every file that holds a wanted key, so it matters more here to read few files.
    target = key_ranges.within(target, _ranges(wanted.select("wanted.*"), segment, is_large))
    values = [F.col(staged.new(i)).alias(_held(i)) for i in missing]
    values.append(F.col(IS_DELETED))
    held = target.join(wanted, same, "inner").select(own_key.alias(_HELD), *values)
    held = held.localCheckpoint()
    if not held.groupBy(_HELD).count().where("count > 1").isEmpty():
        raise TableRefused(
            "The target holds several rows under one key.",
            table=segment.table,
            advice=f"copy the table again (copy_tables=[{segment.table!r}]).",
        )
    return held
