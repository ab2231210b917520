"""Table properties that name a column: they follow a rename, and go when the column goes.

Example: ``write.metadata.metrics.column.a``. While such a property names a column that does not exist,
Iceberg refuses every change of properties, also the one of a publish. Iceberg itself renames these metrics
properties for whole columns, but not for parts of a column (``tags.element``), and no others.
``schema/uuid_tables.py`` sets some of them.

Source: https://iceberg.apache.org/docs/latest/configuration/#write-properties
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.jvm import JAVA_ERRORS, java_class, said
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What stands before the column's name.
_PREFIXES = (
    "write.metadata.metrics.column.",
    "write.parquet.stats-enabled.column.",
    "write.parquet.bloom-filter-enabled.column.",
    "write.parquet.bloom-filter-fpp.column.",
    "write.parquet.bloom-filter-ndv.column.",
)


def moved(properties: Mapping[str, str], before: Any, after: Any) -> dict[str, str | None]:
    """The changes of a table's properties that a new schema needs; None: the property is removed.

    :param before: the ``org.apache.iceberg.Schema`` for which the properties were made.
    :param after: the schema for which they shall be right.
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
        # Columns may swap names, so another property may have taken this key already.
        changes.setdefault(key, None)
        if name is not None:
            changes[f"{prefix}{name}"] = value
    return changes


def commit(update: Any, table: str) -> None:
    """Commit a change of properties to its transaction.

    :param update: an ``org.apache.iceberg.UpdateProperties``.
    :param table: the target, ``namespace.table``.
    :raises TableRefused: a property names a column that does not exist.
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
