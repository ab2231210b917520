"""Carries what users put into columns of their own over a copy, which replaces all rows of the source.

A row is the one that the target holds under its key, as far as anybody can tell. Where no key finds it, the
values go with the rows, and that is said. What is not here: rows that a change replaces (``resolve.py``).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.sql import Sql, quote
from airflow_provider_pgoutput.apply.table.target import OP_COLUMN
from airflow_provider_pgoutput.batch import changes as staged

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame

    from airflow_provider_pgoutput.apply.rows.table_state import TableState

logger = logging.getLogger(__name__)


def over_copy(
    preparation: TableState, rows: DataFrame, key: Collection[str]
) -> tuple[DataFrame, dict[str, Sql]]:
    """Give the rows of a copy what the target holds under their key in columns that are not the source's.

    Read now: the rows are deleted from the branch before the copy is appended.

    :param rows: in the columns ``n<i>`` of the batch.
    :param key: names of the key columns, if the target had them before; else none.
    :return: the rows with further columns, and the names of these by column of the target.
    """
    layout, held = preparation.layout, preparation.writer().rows_as_they_are()
    kept = sorted(layout.foreign) if key else []
    if lost := sorted((layout.others | layout.foreign) - set(kept)):
        _warn(preparation, held, lost)
    if not kept:
        return rows, {}
    if OP_COLUMN in layout.metadata:
        # What was deleted and is there now was inserted since, as another row.
        held = held.where(f"NOT ({quote(OP_COLUMN)} <=> '{staged.DELETE}')")
    names = {name: Sql(f"x{i}") for i, name in enumerate(kept)}
    at = {column.name: staged.new(i) for i, column in enumerate(preparation.columns)}
    keys = {name: Sql(f"k{at[name]}") for name in key}
    selected = [f"{quote(name)} AS {alias}" for name, alias in {**keys, **names}.items()]
    valued = held.where(_any_value(kept)).selectExpr(*selected).localCheckpoint()
    if valued.isEmpty():
        return rows, {}
    alone = _alone(held.selectExpr(*selected[: len(keys)]), valued).localCheckpoint()
    if alone.count() < valued.count():
        _say_lost(preparation, kept)
    same = " AND ".join(f"{alias} = {at[name]}" for name, alias in keys.items())
    return rows.join(alone, F.expr(same), "left").drop(*keys.values()), names


def _alone(held: DataFrame, rows: DataFrame) -> DataFrame:
    """Those of the rows whose key no other row has: the target may have had another key until now.

    :param held: the keys of all rows.
    """
    keys = held.columns
    counts = held.join(rows.select(*keys).distinct(), keys, "left_semi").groupBy(*keys).count()
    return rows.join(counts.where("count = 1").drop("count"), keys, "left_semi")


def _warn(preparation: TableState, held: DataFrame, lost: Collection[str]) -> None:
    if not held.where(_any_value(lost)).isEmpty():
        _say_lost(preparation, lost)


def _say_lost(preparation: TableState, lost: Collection[str]) -> None:
    logger.warning(
        "%s: the copy replaces all rows, and nothing tells which of them is which of those before: what"
        " they had in %s, which the source does not have, is NULL now. An earlier snapshot of the table"
        " still has it.",
        preparation.target.name.target,
        ", ".join(lost),
    )


def _any_value(columns: Collection[str]) -> Sql:
    return Sql(" OR ".join(f"{quote(name)} IS NOT NULL" for name in columns) or "false")
