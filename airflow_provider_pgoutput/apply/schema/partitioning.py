"""Which columns a table's partition specs and its sort order use: these cannot be dropped.

A user may change the partitioning of a table of the lake at any time. Older files keep the old spec, and
Iceberg keeps that spec in the table.

Source: https://iceberg.apache.org/spec/#partition-evolution
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.jvm import elements, entries
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable

_MODES = ("write.delete.mode", "write.merge.mode", "write.update.mode")


def columns_in_use(table: IcebergTable) -> frozenset[int]:
    """Ids of the columns that any partition spec, current or older, or the current sort order uses.

    Iceberg itself refuses to drop columns of the current spec. It drops columns of older specs, but after
    that it can mark no row of the table as deleted. Older sort orders need no column.
    """
    fields = [*_partition_fields(table), *elements(table.java.sortOrder().fields())]
    sources = {int(each.sourceId()) for each in fields}
    columns = elements(table.java.schema().columns())
    return frozenset(int(each.fieldId()) for each in columns if not sources.isdisjoint(_ids(each)))


def lost_columns(table: IcebergTable) -> TableRefused | None:
    """The error if no row of a table can be marked as deleted, because a column of an older spec is gone.

    None: rows can be marked.
    """
    schema = table.java.schema()
    fields = _partition_fields(table)
    lost = sorted({str(e.name()) for e in fields if schema.findField(e.sourceId()) is None})
    if not lost:
        return None
    modes = ", ".join(f"'{mode}' = 'copy-on-write'" for mode in _MODES)
    return TableRefused(
        f"The table was once partitioned by {', '.join(lost)}, and a column of that was dropped since."
        " Iceberg can mark no row of such a table as deleted.",
        table=table.name.target,
        advice="let files be written anew in place of marks:"
        f" ALTER TABLE <it> SET TBLPROPERTIES ({modes}). The next try then succeeds. docs/reference/tables.md"
        " (Partitions of your own) says how to go back.",
    )


def is_partitioned(table: IcebergTable) -> bool:
    """Whether the table is partitioned, or its spec was ever changed."""
    specs = table.java.specs()
    return int(specs.size()) > 1 or not bool(table.java.spec().isUnpartitioned())


def _partition_fields(table: IcebergTable) -> list[Any]:
    """The fields of the current and of all older partition specs."""
    specs = entries(table.java.specs())
    return [field for _, spec in specs for field in elements(spec.fields())]


def _ids(field: Any) -> Iterator[int]:
    """The id of a field, and of all fields of its struct. A spec cannot use parts of a list or a map."""
    yield int(field.fieldId())
    if field.type().isStructType():
        for part in elements(field.type().asStructType().fields()):
            yield from _ids(part)
