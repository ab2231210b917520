"""Applies the changes of a table with a key to a branch: fold, fill, prove, delete, append.

What is not here: the fold itself (``fold.py``) and the statements (``write.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply import log
from airflow_provider_pgoutput.apply.events import LIVE, source_key
from airflow_provider_pgoutput.apply.fold import fold
from airflow_provider_pgoutput.apply.names import Sql, literal, quote
from airflow_provider_pgoutput.apply.resolve import keep_foreign, keep_unsent, resolve
from airflow_provider_pgoutput.apply.write import Bounds, can_bound
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch.crash_points import reach
from airflow_provider_pgoutput.errors import BatchRefused, RowMissing, ValueRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from airflow_provider_pgoutput.apply.prepare import TablePreparation
    from airflow_provider_pgoutput.apply.versions import Segment


@dataclass(frozen=True, slots=True)
class Facts:
    """What one pass over the folded rows proves and counts."""

    keys: int
    live: int
    #: Rows that lack a value which only the target can hold.
    incomplete: int
    bounds: tuple[Bounds, ...]


def apply(
    preparation: TablePreparation, segment: Segment, changes: DataFrame, is_last: bool
) -> None:
    """Apply a segment's changes to the branch.

    :raises RowMissing: the target lacks a row of which an update leaves values out.
    :raises BatchRefused: the folded rows are not unique by key.
    """
    soft_delete, counts = preparation.soft_delete, preparation.counts
    folded, missing = fold(changes, segment, counts, keep_gone=soft_delete)
    # Read twice: its keys are deleted, its rows are appended.
    folded = folded.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        facts = _prove(folded, segment, missing)
        if not facts.keys:
            return
        rows = folded
        if facts.incomplete:
            _refuse_moved_in_load(preparation, segment)
            held, converted = preparation.writer().rows(), preparation.layout.converted
            rows = resolve(folded, held, segment, missing, converted)
        extra = log.of_folded()
        if segment.unsent and (facts.live or soft_delete) and not preparation.empty:
            rows = keep_unsent(rows, preparation.writer().rows(), segment)
        if preparation.layout.foreign and (facts.live or soft_delete) and not preparation.empty:
            rows, kept = keep_foreign(
                rows, preparation.writer().rows_as_they_are(), segment, preparation.layout.foreign
            )
            extra |= kept
        # Also for inserts alone: rows can leave the source without an event (a partition is detached,
        # deletes are not published) and come back.
        if not preparation.empty:
            marker = None if facts.live or soft_delete or not is_last else preparation.marker
            preparation.writer().delete_keys(folded, segment.key, facts.bounds, marker)
            preparation.counted["deleted_keys"] += facts.keys
        reach("apply.after_delete")
        if not soft_delete:
            rows = rows.where(LIVE)
        if facts.live or soft_delete:
            marker = preparation.marker if is_last else None
            preparation.writer().append(rows, extra, marker)
            preparation.counted["appended"] += facts.keys if soft_delete else facts.live
            preparation.empty = False
        reach("apply.after_append")
    finally:
        folded.unpersist()


def _refuse_moved_in_load(preparation: TablePreparation, segment: Segment) -> None:
    """Refuse to fill values from a table that may be past the changes that left them out.

    A key that moved between the start and the load stands for another row in the load than in the
    stream, and the value would be that row's.
    """
    if preparation.start.overlaps and preparation.counts.old_tuples:
        raise RowMissing(
            "The first batch moves keys and leaves out unchanged values, which cannot be taken from a "
            "table that was loaded after its start.",
            table=segment.table,
            advice="name the table in copy_tables, or load it as it was at start_lsn itself.",
        )


def _prove(folded: DataFrame, segment: Segment, missing: tuple[int, ...]) -> Facts:
    """Prove that the rows are unique by key and that no key is NULL; count, and find the bounds."""
    lacking = " OR ".join(f"{source_key(i)} IS NOT NULL" for i in missing) or "false"
    by_key = folded.groupBy(*segment.key_names).agg(
        F.count(F.lit(1)).alias("rows"),
        F.expr(f"count_if({LIVE})").alias("live"),
        F.expr(f"count_if({lacking})").alias("incomplete"),
    )
    ranged = [i for i in segment.key if can_bound(segment.columns[i])]
    facts = by_key.agg(
        F.count(F.lit(1)).alias("keys"),
        F.max("rows").alias("most"),
        F.sum("live").alias("live"),
        F.sum("incomplete").alias("incomplete"),
        *(F.expr(f"count_if({staged.new(i)} IS NULL)").alias(f"null{i}") for i in segment.key),
        *(F.min(staged.new(i)).cast("string").alias(f"least{i}") for i in ranged),
        *(F.max(staged.new(i)).cast("string").alias(f"greatest{i}") for i in ranged),
    ).collect()[0]
    if not facts["keys"]:
        return Facts(0, 0, 0, ())
    if facts["most"] > 1:
        raise BatchRefused(
            "The folded batch holds two rows with one key: this is a fault of the package.",
            table=segment.table,
            advice="report it with the manifest; nothing was written.",
        )
    for i in segment.key:
        if facts[f"null{i}"]:
            raise _null_key(segment.table, segment.columns[i].name)
    bounds = tuple(_bounds(segment, i, facts[f"least{i}"], facts[f"greatest{i}"]) for i in ranged)
    return Facts(facts["keys"], facts["live"], facts["incomplete"], bounds)


def refuse_null_keys(rows: DataFrame, table: str, key: Mapping[str, str]) -> None:
    """Refuse rows of a copy whose key has no value; only what a column could not hold becomes NULL.

    :param key: the names of the key columns of the source, by name in ``rows``.
    :raises ValueRefused: there are such rows.
    """
    counts = rows.agg(*(F.expr(f"count_if({quote(each)} IS NULL)").alias(each) for each in key))
    for each, count in counts.collect()[0].asDict().items():
        if count:
            raise _null_key(table, key[each])


def _null_key(table: str, column: str) -> ValueRefused:
    return ValueRefused(
        "A key column holds a value that its type in the lake cannot hold.",
        table=table,
        column=column,
        advice="choose a type that holds it (types of the stage task) or another key (key_columns), or change"
        " the rows at the source; then remove the manifest of this batch, so that it is staged again.",
    )


def _bounds(segment: Segment, i: int, least: str, greatest: str) -> Bounds:
    name, kind = segment.columns[i].name, segment.columns[i].lake_type
    return Bounds(name, _bound(kind, least), _bound(kind, greatest))


def _bound(lake_type: str, text: str) -> Sql:
    """The literal of a value of a ranged type, from Spark's text of it."""
    if lake_type == "date":
        return Sql(f"DATE {literal(text)}")
    suffix = {"long": "L"}.get(lake_type, "BD" if "decimal" in lake_type else "")
    return Sql(f"{Decimal(text):f}{suffix}")
