"""Change log mode, and the metadata columns of both modes.

A change log gets each change as a row, and no row is ever updated. A value that was left out as unchanged
TOAST is taken from the change's old row, if it has one. Otherwise it is NULL, and ``_pgoutput_unchanged``
names its column. An update shows the new row. If it moved the row to another key, ``_pgoutput_old_key`` has
the old key. In a table without a key it has the whole old row. Rows of a copy have the operation ``C`` and
sequence numbers below zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.iceberg.sql import Sql, literal
from airflow_provider_pgoutput.apply.rows.key_events import moves
from airflow_provider_pgoutput.apply.table.target import OLD_KEY_COLUMN, OP_COLUMN, UNCHANGED_COLUMN
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.crash_points import reach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from airflow_provider_pgoutput.apply.rows.segments import Segment
    from airflow_provider_pgoutput.apply.rows.table_state import TableState
    from airflow_provider_pgoutput.batch.lsn import Lsn


_NESTED = frozenset({"list", "map", "struct"})
#: Column of a logged change, see ``_old_key``.
_OLD_KEY = Sql("old_key")
#: A map without entries.
_NO_KEY = Sql("map_from_arrays(CAST(array() AS ARRAY<STRING>), CAST(array() AS ARRAY<STRING>))")


def of_folded() -> dict[str, Sql]:
    """SQL of the metadata columns of folded rows."""
    return {
        **_of_change(),
        OP_COLUMN: Sql(f"CASE WHEN live THEN {staged.OP} ELSE '{staged.DELETE}' END"),
    }


def of_copy(copy_lsn: Lsn, numbered: bool) -> dict[str, Sql]:
    """SQL of the metadata columns of copied rows."""
    found = {
        staged.metadata(staged.COMMIT_LSN): Sql(f"{int(copy_lsn)}L"),
        OP_COLUMN: literal(staged.COPIED),
    }
    if numbered:
        found[staged.metadata(staged.SEQ)] = Sql("-1L - monotonically_increasing_id()")
    return found


def append_end(preparation: TableState) -> None:
    """Append a truncate that says that the table was copied while it had no row.

    Without it, nothing in the log would end the rows from before the copy.
    """
    names = (staged.new(i) for i in range(len(preparation.columns)))
    nothing = ", ".join(f"NULL AS {name}" for name in names)
    extra = {
        **of_copy(preparation.start.floor, numbered=True),
        OP_COLUMN: literal(staged.TRUNCATE),
    }
    preparation.writer().append(preparation.spark.sql(f"SELECT {nothing}"), extra)


def append_all(preparation: TableState, segments: Sequence[Segment]) -> None:
    """Append every change of the batch to the branch."""
    for number, segment in enumerate(segments):
        changes = preparation.read(segment)
        if changes.isEmpty():
            continue
        is_last = number == len(segments) - 1
        marker = preparation.marker if is_last else None
        extra = {
            **_of_change(),
            **_origins(segment),
            UNCHANGED_COLUMN: _unchanged_names(segment),
            OLD_KEY_COLUMN: _OLD_KEY,
        }
        preparation.writer().append(_logged(changes, segment), extra, marker)
        reach("apply.after_append")
    preparation.count(appended=preparation.counts.changes)


def _of_change() -> dict[str, Sql]:
    return {name: Sql(of_change) for name, of_change in staged.METADATA.items()}


def _origins(segment: Segment) -> dict[str, Sql]:
    """SQL of the columns about the origin. If no change has an origin, they stay NULL."""
    if not segment.has_origins:
        return {}
    return {staged.metadata(name): Sql(name) for name, _ in staged.ORIGINS}


def _logged(changes: DataFrame, segment: Segment) -> DataFrame:
    """The values that the log shows: those of the new row, or of the old row.

    The old row's are taken for a delete and for unchanged TOAST, as far as the change has them.
    """
    selected: list[str] = [*_of_change().values(), *_origins(segment).values()]
    for i in range(len(segment.columns)):
        value = staged.new(i)
        if i in segment.old:
            whole = f"{staged.OLD_KIND} = '{staged.OLD_ROW}'"
            deleted = whole if i not in segment.key else f"{staged.OLD_KIND} IS NOT NULL"
            takes_old = f"({staged.OP} = '{staged.DELETE}' AND {deleted})"
            if i in segment.unchanged:
                takes_old += f" OR ({staged.unchanged(i)} AND {deleted})"
            value = f"CASE WHEN {takes_old} THEN {staged.old(i)} ELSE {value} END"
        selected.append(f"{value} AS {staged.new(i)}")
    flags = [staged.unchanged(i) for i in segment.unchanged]
    selected.append(f"{_old_key(segment)} AS {_OLD_KEY}")
    return changes.selectExpr(*selected, staged.OLD_KIND, *flags)


def _old_key(segment: Segment) -> Sql:
    """SQL of a map from column name to old value as text.

    It has the old key, if an update moved its row to another key. Of a table without a key it has the whole
    old row of each update. For all other changes it is empty.
    """
    if segment.key and all(i in segment.old for i in segment.key):
        return _old_values(segment, segment.key, moves(segment))
    if segment.full and not segment.key:
        is_update = Sql(
            f"{staged.OP} = '{staged.UPDATE}' AND {staged.OLD_KIND} = '{staged.OLD_ROW}'"
        )
        return _old_values(segment, segment.image_columns, is_update)
    return _NO_KEY


def _old_values(segment: Segment, columns: Sequence[int], shown: Sql) -> Sql:
    """SQL of the old values of columns, as a map of names and texts.

    :param columns: positions.
    :param shown: SQL: whether a change shows them. If not, the map is empty.
    """
    names = [literal(segment.columns[i].name) for i in columns]
    texts = [_old_text(segment, i) for i in columns]
    return Sql(
        f"CASE WHEN {shown} THEN map_from_arrays(array({', '.join(names)}), array({', '.join(texts)}))"
        f" ELSE {_NO_KEY} END"
    )


def _old_text(segment: Segment, position: int) -> Sql:
    """SQL of an old value as text: a cast, JSON of a nested value, or hexadecimal digits of bytes."""
    lake_type = segment.columns[position].lake_type
    if lake_type.partition("<")[0] in _NESTED:
        return Sql(f"to_json({staged.old(position)})")
    if lake_type == "binary":
        return Sql(f"lower(hex({staged.old(position)}))")
    return Sql(f"CAST({staged.old(position)} AS STRING)")


def _unchanged_names(segment: Segment) -> Sql:
    """SQL of the names of the columns whose value is missing in a logged change."""
    names = [
        f"CASE WHEN {staged.unchanged(i)} AND NOT ({staged.OLD_KIND} <=> '{staged.OLD_ROW}')"
        f" THEN {literal(segment.columns[i].name)} END"
        for i in segment.unchanged
        if i not in segment.key
    ]
    if not names:
        return Sql("CAST(array() AS ARRAY<STRING>)")
    return Sql(f"array_compact(array({', '.join(names)}))")
