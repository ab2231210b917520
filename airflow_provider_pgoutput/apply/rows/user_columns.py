"""Keeps the values of users' own columns when a copy replaces all rows of a table.

A copied row gets the values of the target's row with the same key. If there is no key to tell, the values are
lost, and a warning says so. ``fill_missing.py`` does the same for rows that a change replaces.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.sql import Sql, quote
from airflow_provider_pgoutput.batch import changes as staged

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame

    from airflow_provider_pgoutput.apply.rows.table_state import TableState

log = logging.getLogger(__name__)


def over_copy(
    preparation: TableState, rows: DataFrame, key: Collection[str], remasked: Collection[str]
) -> tuple[DataFrame, dict[str, Sql]]:
    """Give copied rows the target's values of the same key, in columns about which the batch says nothing.

    They are read now, because the rows are deleted from the branch before the copy is appended.

    :param rows: in the columns ``n<i>`` of the batch.
    :param key: names of the key columns, if the target had them before; otherwise none.
    :param remasked: names of columns whose values the copy masks. Values of before are not kept in them.
    :return: the rows with further columns, and the names of these, by column of the target.
    """
    layout, held = preparation.layout, preparation.writer().rows_as_they_are()
    # ``not_in_batch`` has the user's own columns, and other fields about which the batch says nothing. A
    # history keeps the values of the latter in earlier versions.
    not_in_copy = layout.user_columns
    if not preparation.target.is_history:
        not_in_copy |= layout.not_in_batch
    kept = sorted((not_in_copy & layout.not_in_batch).difference(remasked)) if key else []
    if lost := sorted(not_in_copy.difference(kept, remasked)):
        _warn(preparation, held, lost)
    if not kept:
        return rows, {}
    # With soft delete, a row that is marked as deleted is not the row that has its key now. So the copied row
    # does not get its values.
    held = held.where(f"NOT ({preparation.marked_deleted})")
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
    """The rows whose key no other row has.

    If the target had another key until now, several of its rows may share one new key. They are left out.

    :param held: the keys of all rows.
    """
    keys = held.columns
    counts = held.join(rows.select(*keys).distinct(), keys, "left_semi").groupBy(*keys).count()
    return rows.join(counts.where("count = 1").drop("count"), keys, "left_semi")


def _warn(preparation: TableState, held: DataFrame, lost: Collection[str]) -> None:
    if not held.where(_any_value(lost)).isEmpty():
        _say_lost(preparation, lost)


def _say_lost(preparation: TableState, lost: Collection[str]) -> None:
    log.warning(
        "%s: the copy replaced all rows, and no key tells which new row is which old one. So the values in"
        " %s, which the source does not have, are NULL now. An earlier snapshot of the table still has"
        " them.",
        preparation.target.name.target,
        ", ".join(lost),
    )


def _any_value(columns: Collection[str]) -> Sql:
    return Sql(" OR ".join(f"{quote(name)} IS NOT NULL" for name in columns) or "false")
