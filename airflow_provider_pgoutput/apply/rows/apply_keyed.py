"""Applies the changes of a table with a key to a branch: fold, fill, prove, delete, append.

``fold.py`` has the fold, ``branch_writer.py`` the statements.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.sql import Sql, quote
from airflow_provider_pgoutput.apply.rows import change_log, key_ranges, quarantine
from airflow_provider_pgoutput.apply.rows.fill_missing import (
    IS_DELETED,
    fill,
    keep_not_in_batch,
    keep_unsent,
)
from airflow_provider_pgoutput.apply.rows.fold import fold
from airflow_provider_pgoutput.apply.rows.key_events import HELD_UNDER, LIVE, arrivals
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import BatchRefused, RowMissing, ValueRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from airflow_provider_pgoutput.apply.rows.segments import Segment
    from airflow_provider_pgoutput.apply.rows.table_state import TableState


#: In a target with fewer rows, reading all keys is faster than a closer look at the keys of the batch.
_MANY_ROWS = 4_000_000
#: With so many keys, or so many rows in the target, keys are looked up as bits of words (``key_ranges.py``).
#: With fewer keys Spark's hash table fits into a processor's cache. With fewer rows it takes longer to make
#: the words than to read the rows.
_KEYS_FOR_WORDS = 100_000
_ROWS_FOR_WORDS = 50_000_000


@dataclass(frozen=True, slots=True)
class Facts:
    """What one pass over the folded rows proves and counts."""

    keys: int
    #: Keys that exist after the batch. The others were deleted.
    live: int
    #: Rows that lack a value, which only the target can have.
    incomplete: int
    extremes: key_ranges.Extremes


def apply(preparation: TableState, segment: Segment, changes: DataFrame, is_last: bool) -> None:
    """Apply a segment's changes to the branch.

    :raises RowMissing: an update leaves out values of a row that the target does not have.
    :raises ValueRefused: a row has no key, because the lake does not hold its value.
    :raises BatchRefused: the folded rows are not unique by key.
    """
    notes, moves = preparation.notes, preparation.counts.old_tuples and not segment.full
    if notes.keeps and moves and quarantine.leaves_no_key(changes, segment):
        changes = quarantine.without_keyless(notes, changes, segment)
    try:
        _apply(preparation, segment, changes, is_last)
    except ValueRefused:
        # It was raised before anything was written.
        if not notes.keeps:
            raise
        changes = quarantine.without_keyless(notes, changes, segment)
        _apply(preparation, segment, changes, is_last)


def _apply(preparation: TableState, segment: Segment, changes: DataFrame, is_last: bool) -> None:
    soft_delete, counts = preparation.soft_delete, preparation.counts
    folded, missing = fold(changes, segment, counts, keep_gone=soft_delete)
    # Read twice: first its keys are deleted, then its rows are appended.
    folded = folded.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        facts = _prove(folded, segment, missing)
        if not facts.keys:
            return
        ranges = _ranges(preparation, segment, folded, facts)
        rows, lost = folded, None
        notes, entries = preparation.notes, preparation.entries()
        if facts.incomplete:
            _refuse_moved_in_load(preparation, segment)
            marked = Sql(f"{preparation.marked_deleted} AS {IS_DELETED}")
            held, converted = preparation.writer().rows(marked), preparation.layout.converted
            rows, lost = fill(
                folded,
                held,
                segment,
                missing,
                converted,
                is_large=is_large(preparation),
                keeps_lost=notes.keeps,
            )
        notes.settle(folded, lost, segment, entries)
        if lost is not None:
            count = notes.add(lost, segment.columns, segment.key, RowMissing.__name__)
            facts = dataclasses.replace(facts, live=facts.live - count)
        extra = change_log.of_folded()
        not_in_batch = preparation.layout.not_in_batch
        if (
            (segment.unsent or not_in_batch)
            and (facts.live or soft_delete)
            and not preparation.empty
        ):
            arrived = _arrived(preparation, segment, changes)
            if segment.unsent:
                held = key_ranges.within(preparation.writer().rows(), ranges)
                rows = keep_unsent(rows, held, segment, arrived)
            if not_in_batch:
                held = preparation.writer().rows_as_they_are()
                rows, kept = keep_not_in_batch(rows, held, segment, not_in_batch, arrived)
                extra |= kept
        # Old rows are deleted even if there are only inserts. A row can leave the source without an event and
        # come back. Example: its partition is detached, or deletes are not published.
        if not preparation.empty:
            marker = None if facts.live or soft_delete or not is_last else preparation.marker
            writer = preparation.writer()
            by_words = facts.keys >= _KEYS_FOR_WORDS or writer.held() >= _ROWS_FOR_WORDS
            writer.delete_keys(folded, segment.key, ranges, marker, by_words=by_words)
            preparation.count(deleted_keys=facts.keys)
        reach("apply.after_delete")
        if not soft_delete:
            rows = rows.where(LIVE)
        if facts.live or soft_delete:
            marker = preparation.marker if is_last else None
            preparation.writer().append(rows, extra, marker)
            preparation.note_rows(facts.keys if soft_delete else facts.live)
        reach("apply.after_append")
    finally:
        folded.unpersist()


def _arrived(preparation: TableState, segment: Segment, changes: DataFrame) -> DataFrame | None:
    """The keys under which the target may hold another row than the batch.

    :return: None: these keys are not known, and no key counts as one of them. Example: the user loaded the
        table after the start of its first batch. It may already hold the row that an insert brings.
    """
    if preparation.start.overlaps:
        return None
    return arrivals(changes, segment, preparation.counts.old_tuples > 0)


def _refuse_moved_in_load(preparation: TableState, segment: Segment) -> None:
    """Refuse to fill values from a loaded table when the first batch moves keys.

    Example: the load came after ``UPDATE t SET id = 2 WHERE id = 1``, and the stream has this update. What
    the load holds under a key need not be the row that the stream means. So its value may be the wrong one.

    :raises RowMissing: the table was loaded after the start of the batch, and the batch moves keys.
    """
    if preparation.start.overlaps and preparation.counts.old_tuples:
        raise RowMissing(
            "The first batch moves keys and leaves out unchanged values, which cannot be taken from a "
            "table that was loaded after its start.",
            table=segment.table,
            advice="name the table in copy_tables, or load it as it was at start_lsn itself.",
        )


def is_large(preparation: TableState) -> bool:
    """Whether the target is so large that narrow ranges of keys pay off, see ``key_ranges.py``."""
    return preparation.writer().held() >= _MANY_ROWS


def _ranges(
    preparation: TableState, segment: Segment, folded: DataFrame, facts: Facts
) -> tuple[key_ranges.KeyRanges, ...]:
    """The ranges of the keys. For a large target they are made narrow, which reads the keys once more."""
    if preparation.empty or not is_large(preparation):
        return key_ranges.whole(segment, facts.extremes)
    return key_ranges.narrow(folded, segment, facts.extremes)


def _prove(folded: DataFrame, segment: Segment, missing: tuple[int, ...]) -> Facts:
    """Prove that the rows are unique by key and that no key is NULL. Count rows, and find bounds of the keys.

    :param missing: positions of the columns that rows may lack.
    :raises BatchRefused: two rows have one key.
    :raises ValueRefused: a row has NULL in its key.
    """
    lacking = f"{HELD_UNDER} IS NOT NULL" if missing else "false"
    by_key = folded.groupBy(*segment.key_names).agg(
        F.count(F.lit(1)).alias("rows"),
        F.expr(f"count_if({LIVE})").alias("live"),
        F.expr(f"count_if({lacking})").alias("incomplete"),
    )
    facts = by_key.agg(
        F.count(F.lit(1)).alias("keys"),
        F.max("rows").alias("most"),
        F.sum("live").alias("live"),
        F.sum("incomplete").alias("incomplete"),
        *(F.expr(f"count_if({staged.new(i)} IS NULL)").alias(f"null{i}") for i in segment.key),
        *key_ranges.extremes(segment),
    ).collect()[0]
    if not facts["keys"]:
        return Facts(0, 0, 0, {})
    if facts["most"] > 1:
        raise BatchRefused(
            "The folded batch holds two rows with one key: this is a fault of the package.",
            table=segment.table,
            advice="report it with the manifest; nothing was written.",
        )
    for i in segment.key:
        if facts[f"null{i}"]:
            raise null_key(segment.table, segment.columns[i].name)
    extremes = key_ranges.extremes_of(facts.asDict(), segment)
    return Facts(facts["keys"], facts["live"], facts["incomplete"], extremes)


def refuse_null_keys(rows: DataFrame, table: str, key: Mapping[str, str]) -> None:
    """Refuse copied rows with NULL in a key column. A value that did not fit its column may have become NULL.

    :param key: names of the key columns of the source, by name in ``rows``.
    :raises ValueRefused: there are such rows.
    """
    counts = rows.agg(*(F.expr(f"count_if({quote(each)} IS NULL)").alias(each) for each in key))
    for each, count in counts.collect()[0].asDict().items():
        if count:
            raise null_key(table, key[each])


def null_key(table: str, column: str) -> ValueRefused:
    """The error for a row without a value in a key column."""
    return ValueRefused(
        "A row has no value in a key column: its type in the lake does not hold it, or the source has NULL.",
        table=table,
        column=column,
        advice="choose a type that holds it (column_types of the stage task) or another key (key_columns), or"
        " change the rows at the source; then remove the manifest of this batch, so that it is staged again.",
    )
