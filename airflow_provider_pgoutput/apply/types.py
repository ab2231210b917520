"""Lake types as Spark spells them, which of them may widen, and how values of them are compared.

The notation is Iceberg's, as in ``Column.lake_type``. What is not here: PostgreSQL's types.
Source: https://iceberg.apache.org/docs/latest/spark-getting-started/#iceberg-type-to-spark-type
"""

from __future__ import annotations

import re

from airflow_provider_pgoutput.errors import BatchRefused

_PRIMITIVES = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ",
    "timestamptz": "TIMESTAMP",
    "string": "STRING",
    "binary": "BINARY",
}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_LIST = re.compile(r"list<(.+)>")
_MAP = re.compile(r"map<([^,<>]+), ?(.+)>")
#: What Iceberg may widen, apart from decimals: https://iceberg.apache.org/spec/#schema-evolution
_WIDENINGS = {("int", "long"), ("float", "double")}
#: Types with two zeros that are equal and print differently.
SIGNED_ZEROS = frozenset({"float", "double"})
#: Types whose smallest and greatest key of a batch make a range that files are skipped by. Text is
#: not among them: a statement is shown in Spark's user interface, and a key may be a name.
RANGED = ("int", "long", "date", "decimal")


def spark_type(lake_type: str) -> str:
    """Spell a lake type as Spark SQL does.

    :raises BatchRefused: the type is not one that capture stages.
    """
    if lake_type in _PRIMITIVES:
        return _PRIMITIVES[lake_type]
    if found := _DECIMAL.fullmatch(lake_type):
        return f"DECIMAL({found[1]},{found[2]})"
    if found := _LIST.fullmatch(lake_type):
        return f"ARRAY<{spark_type(found[1])}>"
    if found := _MAP.fullmatch(lake_type):
        return f"MAP<{spark_type(found[1])},{spark_type(found[2])}>"
    raise BatchRefused(f"The manifest has the unknown lake type {lake_type!r}.")


def widens(old: str, new: str) -> bool:
    """Whether Iceberg can turn a column of ``old`` into ``new`` without rewriting a file."""
    if (old, new) in _WIDENINGS:
        return True
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    return bool(before and after and before[2] == after[2] and int(before[1]) < int(after[1]))


def comparable(column: str, lake_type: str) -> str:
    """A Spark expression that is equal for two values exactly when they are the same image.

    Spark takes ``-0.0`` and ``0.0`` for one value and cannot group by maps; their text differs.
    ``column`` is a quoted expression.
    """
    if lake_type in SIGNED_ZEROS:
        return f"CAST({column} AS STRING)"
    if _MAP.fullmatch(lake_type):
        return f"to_json(array_sort(map_entries({column})))"
    if _LIST.fullmatch(lake_type):
        # By element: as JSON, Spark shows times to the millisecond only.
        return f"transform({column}, x -> CAST(x AS STRING))"
    return column
