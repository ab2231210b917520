"""Table properties that name a column by its path: they follow it to another name, and go when it goes.

Iceberg takes no change of any property, a publish among them, while one about metrics names a column that is
not there. It moves these by itself where a column is renamed, but not what names a part of it, and no others.
What is not here: which properties uuids need (``uuids.py``).

Source: https://iceberg.apache.org/docs/latest/configuration/#write-properties
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.jvm import JAVA_ERRORS, java_class, said
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What stands before the path of the column.
_PREFIXES = (
    "write.metadata.metrics.column.",
    "write.parquet.stats-enabled.column.",
    "write.parquet.bloom-filter-enabled.column.",
    "write.parquet.bloom-filter-fpp.column.",
    "write.parquet.bloom-filter-ndv.column.",
)


def moved(properties: Mapping[str, str], before: Any, after: Any) -> dict[str, str | None]:
    """What changes in the properties of a table; None: the property goes.

    :param before: the schema that they were made for, an ``org.apache.iceberg.Schema``.
    :param after: the one that they shall be right for.
    """
    changes: dict[str, str | None] = {}
    for key, value in properties.items():
        prefix = next((each for each in _PREFIXES if key.startswith(each)), None)
        field = None if prefix is None else before.findField(key.removeprefix(prefix))
        if prefix is None or field is None:
            continue
        name = after.findColumnName(field.fieldId())
        if name == before.findColumnName(field.fieldId()):
            continue
        # Its key may be another one's by now: columns swap their names.
        changes.setdefault(key, None)
        if name is not None:
            changes[f"{prefix}{name}"] = value
    return changes


def commit(update: Any, table: str) -> None:
    """Commit a change of properties to the transaction that it is of.

    :param update: an ``org.apache.iceberg.UpdateProperties``.
    :param table: the target, ``namespace.table``.
    :raises TableRefused: a property that is there names a column that is not.
    """
    try:
        update.commit()
    except JAVA_ERRORS as error:
        if not java_class(error).endswith("ValidationException"):
            raise
        raise TableRefused(
            f"Iceberg takes no change of the table's properties: {said(error)}",
            table=table,
            advice="correct the property that it names: ALTER TABLE <it> UNSET TBLPROPERTIES ('<property>').",
        ) from error
