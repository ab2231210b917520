"""Which files of a shared table may have rows of a slice, by the bounds that Iceberg keeps of each file.

So a slice costs little more when the table has many others.

Source: https://iceberg.apache.org/spec/#manifests (lower_bounds, upper_bounds, null_value_counts)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.jvm import Expression, all_of, class_named

if TYPE_CHECKING:
    from airflow_provider_pgoutput.slices import Slice


class SliceFiles:
    """The files of a table, or those that may have rows of one slice of it.

    :param slice_: None: the table is not shared.
    """

    def __init__(self, jvm: Any, slice_: Slice | None) -> None:
        self._jvm = jvm
        self._slice = slice_
        self._texts = () if slice_ is None else slice_.constants
        #: By snapshot: what was found. A snapshot never changes.
        self._planned: dict[int, list[Any]] = {}

    def tasks(self, java_table: Any, snapshot_id: int) -> list[Any]:
        """An ``org.apache.iceberg.FileScanTask`` for each file of a snapshot; of a slice, with its bounds.

        :param java_table: an ``org.apache.iceberg.Table``.
        """
        scan = java_table.newScan().useSnapshot(snapshot_id)
        if self._slice is None:
            return all_of(self._jvm, scan.planFiles())
        if snapshot_id not in self._planned:
            schema = scan.schema()
            # A snapshot that is older than the column is read in whole.
            if all(schema.findField(name) is not None for name, _ in self._texts):
                scan = scan.filter(self._own())
            self._planned[snapshot_id] = all_of(self._jvm, scan.includeColumnStats().planFiles())
        return self._planned[snapshot_id]

    def _own(self) -> Expression:
        """Whether a row is of the slice."""
        expressions = class_named(self._jvm, "org.apache.iceberg.expressions.Expressions")
        # A word of Python.
        both = getattr(expressions, "and")
        found = expressions.alwaysTrue()
        for name, text in self._texts:
            found = both(found, expressions.equal(name, text))
        return Expression(found)

    def size(self, java_table: Any, snapshot_id: int) -> tuple[int, int]:
        """How many rows the files of a snapshot have, deleted ones included, and how many files there are."""
        tasks = self.tasks(java_table, snapshot_id)
        return sum(int(task.file().recordCount()) for task in tasks), len(tasks)

    def is_empty(self, java_table: Any, snapshot_id: int) -> bool | None:
        """Whether the slice has no row in a snapshot; None: only the rows tell."""
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
        for name, text in self._texts:
            field = schema.findField(name)
            if field is None or nulls is None or nulls.get(field.fieldId()) != 0:
                return False
            for each in bounds:
                value = None if each is None else each.get(field.fieldId())
                if value is None or str(conversions.fromByteBuffer(field.type(), value)) != text:
                    return False
        return int(file.recordCount()) > 0
