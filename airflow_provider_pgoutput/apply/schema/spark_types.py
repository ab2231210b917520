"""Lake types as Spark spells them, and SQL that compares their values.

The notation is Iceberg's, as in ``Column.lake_type``.

Source: https://iceberg.apache.org/docs/latest/spark-getting-started/#iceberg-type-to-spark-type
"""

from __future__ import annotations

from airflow_provider_pgoutput.apply.iceberg.sql import Sql, literal, quote
from airflow_provider_pgoutput.batch.lake_types import (
    FLOATS,
    decimal_type,
    list_element,
    map_entry,
    struct_fields,
)
from airflow_provider_pgoutput.errors import BatchRefused

PRIMITIVES = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ",
    "timestamptz": "TIMESTAMP",
    "string": "STRING",
    # Spark reads and writes text. Only the Iceberg table knows that it is a uuid.
    "uuid": "STRING",
    "binary": "BINARY",
}
UUID = "uuid"
#: Types of key columns whose least and greatest value in a batch become a range, by which files are skipped.
#: Text is not among them: Spark shows statements in its user interface, and a key may be a name.
#: ``rows/key_ranges.py`` adds UUIDs in text.
RANGED = ("int", "long", "date", "decimal")


def spark_type(lake_type: str) -> Sql:
    """Spell a lake type as Spark SQL does.

    :raises BatchRefused: the type is not one that capture stages.
    """
    if lake_type in PRIMITIVES:
        return Sql(PRIMITIVES[lake_type])
    if digits := decimal_type(lake_type):
        return Sql(f"DECIMAL({digits[0]},{digits[1]})")
    if element := list_element(lake_type):
        return Sql(f"ARRAY<{spark_type(element)}>")
    if entry := map_entry(lake_type):
        return Sql(f"MAP<{spark_type(entry[0])},{spark_type(entry[1])}>")
    if fields := struct_fields(lake_type):
        inner = ", ".join(f"{quote(name)}: {spark_type(kind)}" for name, kind in fields)
        return Sql(f"STRUCT<{inner}>")
    raise BatchRefused(f"The manifest has the unknown lake type {lake_type!r}.")


def comparable(expression: Sql, lake_type: str, depth: int = 0) -> Sql:
    """A Spark expression that is equal for two values exactly if the values are identical.

    Spark takes ``-0.0`` and ``0.0`` for equal, and cannot group by maps. Their text differs.

    :param expression: a quoted column, or an element or field of one.
    :param depth: in how many lists the expression is; it names the variable for the next one.
    """
    if lake_type in FLOATS:
        return Sql(f"CAST({expression} AS STRING)")
    if map_entry(lake_type):
        return Sql(f"to_json(array_sort(map_entries({expression})))")
    if element := list_element(lake_type):
        name = Sql(f"x{depth}")
        return Sql(f"transform({expression}, {name} -> {comparable(name, element, depth + 1)})")
    if fields := struct_fields(lake_type):
        inner = (
            comparable(Sql(f"{expression}.{quote(name)}"), kind, depth) for name, kind in fields
        )
        whole = f"struct({', '.join(inner)})"
        return Sql(f"CASE WHEN {expression} IS NOT NULL THEN {whole} END")
    return expression


def widened(expression: Sql, old: str, new: str, depth: int = 0) -> Sql:
    """A Spark expression that converts a value from ``old`` to ``new``, the same type or a wider one.

    :param expression: a quoted column, or an element or field of one.
    :param depth: in how many lists the expression is.
    """
    if old != new and (element := list_element(new)):
        name = Sql(f"x{depth}")
        inner = widened(name, list_element(old) or "", element, depth + 1)
        return Sql(f"transform({expression}, {name} -> {inner})")
    held = dict(struct_fields(old) or ())
    if old == new or not held:
        return Sql(f"CAST({expression} AS {spark_type(new)})")
    parts = []
    for attribute, kind in struct_fields(new) or ():
        part = Sql(f"CAST(NULL AS {spark_type(kind)})")
        if attribute in held:
            part = widened(Sql(f"{expression}.{quote(attribute)}"), held[attribute], kind, depth)
        parts.append(f"{literal(attribute)}, {part}")
    return Sql(f"CASE WHEN {expression} IS NOT NULL THEN named_struct({', '.join(parts)}) END")


def holds_uuid(lake_type: str) -> bool:
    """Whether a type is uuid, or contains one."""
    inner = [element] if (element := list_element(lake_type)) else []
    inner += [kind for _, kind in struct_fields(lake_type) or ()]
    return lake_type == UUID or any(holds_uuid(each) for each in inner)
