"""Which files of a shared table may have rows of a slice, by the bounds that Iceberg keeps of each file.

So a slice costs little more when the table has many others.

Source: https://iceberg.apache.org/spec/#manifests (lower_bounds, upper_bounds, null_value_counts)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.jvm import Expression, all_of, class_named, java_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.slices import Slice


class SliceFiles:
    """The files of a table, or those that may have rows of some slices of it.

    :param slices: empty: the table is not shared.
    """

    def __init__(self, jvm: Any, slices: Sequence[Slice]) -> None:
        self._jvm = jvm
        #: By the name of a constant column: the texts in rows of the slices.
        self._texts: dict[str, set[str]] = {}
        for each in slices:
            for name, text in each.constants:
                self._texts.setdefault(name, set()).add(text)
        #: By snapshot: what was found. A snapshot never changes.
        self._planned: dict[int, list[Any]] = {}

    def tasks(self, java_table: Any, snapshot_id: int) -> list[Any]:
        """An ``org.apache.iceberg.FileScanTask`` for each file of a snapshot; of slices, with its bounds.

        :param java_table: an ``org.apache.iceberg.Table``.
        """
        scan = java_table.newScan().useSnapshot(snapshot_id)
        if not self._texts:
            return all_of(self._jvm, scan.planFiles())
        if snapshot_id not in self._planned:
            schema = scan.schema()
            # A snapshot that is older than the column is read in whole.
            if all(schema.findField(name) is not None for name in self._texts):
                scan = scan.filter(self._own())
            self._planned[snapshot_id] = all_of(self._jvm, scan.includeColumnStats().planFiles())
        return self._planned[snapshot_id]

    def _own(self) -> Expression:
        """Whether the slices have each constant of a row. Several slices may have them only together."""
        expressions = class_named(self._jvm, "org.apache.iceberg.expressions.Expressions")
        # A word of Python.
        both, is_in = (getattr(expressions, name) for name in ("and", "in"))
        found = expressions.alwaysTrue()
        for name, texts in self._texts.items():
            found = both(found, is_in(name, java_list(self._jvm, sorted(texts))))
        return Expression(found)

    def size(self, java_table: Any, snapshot_id: int) -> tuple[int, int]:
        """How many rows the files of a snapshot have, deleted ones included, and how many files there are."""
        tasks = self.tasks(java_table, snapshot_id)
        return sum(int(task.file().recordCount()) for task in tasks), len(tasks)

    def is_empty(self, java_table: Any, snapshot_id: int) -> bool | None:
        """Whether a slice has no row in a snapshot; None: only the rows tell."""
        tasks = self.tasks(java_table, snapshot_id)
        if not tasks:
            return True
        schema = java_table.newScan().useSnapshot(snapshot_id).schema()
        whole = (task.file() for task in tasks if task.deletes().isEmpty())
        return False if any(self._has_no_other(file, schema) for file in whole) else None

    def _has_no_other(self, file: Any, schema: Any) -> bool:
        """Whether all rows of a file are of the slice. Bounds of long texts are cut, so they do not tell."""
        conversions = class_named(self._jvm, "org.apache.iceberg.types.Conversions")
        bounds, nulls = (file.lowerBounds(), file.upperBounds()), file.nullValueCounts()
        for name, texts in self._texts.items():
            field = schema.findField(name)
            if field is None or nulls is None or nulls.get(field.fieldId()) != 0:
                return False
            for each in bounds:
                value = None if each is None else each.get(field.fieldId())
                if value is None or {str(conversions.fromByteBuffer(field.type(), value))} != texts:
                    return False
        return int(file.recordCount()) > 0
