"""Fills values that a folded row lacks from the target, before anything is deleted there.

A value is lacking when it was left out as unchanged TOAST and no earlier change of the batch holds
it. One read of the target, of the key columns and the lacking columns, serves all of them.
What is not here: deciding which values are lacking (``fold.py``, ``chains.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.events import LIVE, source_key
from airflow_provider_pgoutput.apply.names import quote
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.errors import RowMissing, TableRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_pgoutput.apply.versions import Segment

_HELD = "held_key"


def resolve(
    folded: DataFrame, target: DataFrame, segment: Segment, missing: tuple[int, ...]
) -> DataFrame:
    """Fill the columns in ``missing`` from the target rows under the keys ``t<i>``.

    A row that is gone, and that the target does not hold either, is left out.

    :param folded: persisted by the caller.
    :param target: the target's rows in the columns ``n<i>``.
    :raises RowMissing: the target holds no row under such a key.
    :raises TableRefused: it holds several.
    """
    held = _held_rows(folded, target, segment, missing)
    rows, lacks = folded, []
    for i in missing:
        values = held.select(F.col(_HELD).alias(f"h{i}"), F.col(staged.new(i)).alias(f"v{i}"))
        rows = rows.join(values, F.col(source_key(i)) == F.col(f"h{i}"), "left")
        lacks.append(f"({source_key(i)} IS NOT NULL AND h{i} IS NULL)")
    lost = " OR ".join(lacks)
    if not rows.where(f"{LIVE} AND ({lost})").isEmpty():
        raise RowMissing(
            "An update leaves out an unchanged value of a row that the target does not hold.",
            table=segment.table,
            advice="copy the table again, or give it REPLICA IDENTITY FULL.",
        )
    filled = {
        staged.new(i): F.expr(f"CASE WHEN h{i} IS NULL THEN {staged.new(i)} ELSE v{i} END")
        for i in missing
    }
    return rows.where(f"{LIVE} OR NOT ({lost})").withColumns(filled).select(*folded.columns)


def keep_foreign(
    rows: DataFrame, target: DataFrame, segment: Segment, foreign: frozenset[str]
) -> tuple[DataFrame, dict[str, str]]:
    """Give rows what the target holds under their key in columns that are not the source's.

    Read now: the rows are deleted from the branch before they are written again.

    :param target: the target's rows in its own columns.
    :return: the rows with further columns, and the names of these by column of the target.
    """
    names = {name: f"x{i}" for i, name in enumerate(sorted(foreign))}
    keys = {segment.columns[i].name: staged.new(i) for i in segment.key}
    held = target.select(
        *(F.col(quote(column)).alias(f"k{name}") for column, name in keys.items()),
        *(F.col(quote(column)).alias(name) for column, name in names.items()),
    )
    same = [F.col(f"k{name}") == F.col(name) for name in keys.values()]
    wanted = rows.select(*keys.values()).distinct()
    held = held.join(wanted, same, "left_semi").localCheckpoint()
    return rows.join(held, same, "left"), names


def _held_rows(
    folded: DataFrame, target: DataFrame, segment: Segment, missing: tuple[int, ...]
) -> DataFrame:
    """The target's rows under the keys wanted, read now: they are deleted from the branch later."""
    wanted_keys = F.array_compact(F.array(*(F.col(source_key(i)) for i in missing)))
    wanted = folded.select(F.explode(wanted_keys).alias("wanted")).distinct()
    own_key = F.struct(*(F.col(name) for name in segment.key_names))
    same = [F.col(name) == F.col("wanted")[name] for name in segment.key_names]
    values = [F.col(staged.new(i)) for i in missing]
    held = target.join(wanted, same, "inner").select(own_key.alias(_HELD), *values)
    held = held.localCheckpoint()
    if not held.groupBy(_HELD).count().where("count > 1").isEmpty():
        raise TableRefused(
            "The target holds several rows under one key.",
            table=segment.table,
            advice="copy the table again.",
        )
    return held
