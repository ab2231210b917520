"""SQL of the value that older rows show in a new column.

``ALTER TABLE t ADD c int DEFAULT 7`` gives every older row a 7, and PostgreSQL sends no row for it. The
manifest has the 7 as text, see ``Column.missing_value``. ``evolve.py`` finds out which rows are older.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.sql import Sql, literal
from airflow_provider_pgoutput.apply.schema.spark_types import spark_type
from airflow_provider_pgoutput.batch.lake_types import list_element, map_entry, struct_fields
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.table_version import Column

#: An early version staged PostgreSQL's own text for lists and maps. Only the empty ones can be read.
_EMPTY_ARRAY, _EMPTY_HSTORE = "{}", ""


def missing_value(column: Column, table: str) -> Sql:
    """SQL of the value that older rows show in the column.

    :param table: the source's table, for the error.
    :raises TableRefused: an early version staged the value as PostgreSQL's text, which Spark cannot read.
    """
    text, kind = column.missing_value, column.lake_type
    if text is None or not kind.startswith(("list<", "map<", "struct<")):
        return _of_scalar(text, kind)
    if text == _EMPTY_ARRAY and list_element(kind):
        return _of_value([], kind)
    if text == _EMPTY_HSTORE and map_entry(kind):
        return _of_value({}, kind)
    try:
        return _of_value(json.loads(text), kind)
    except (ValueError, TypeError):
        raise TableRefused(
            "An earlier version staged the batch, without the value of older rows in an added column.",
            table=table,
            column=column.name,
            advice="remove the manifest of this batch, so that it is staged again, or copy the table again"
            f" (copy_tables=[{table!r}]).",
        ) from None


def _of_scalar(text: str | None, kind: str) -> Sql:
    if text is None:
        return Sql(f"CAST(NULL AS {spark_type(kind)})")
    if kind == "binary":
        return Sql(f"unhex({literal(text.removeprefix(chr(92) + 'x'))})")
    return Sql(f"CAST({literal(text)} AS {spark_type(kind)})")


def _of_value(value: Any, kind: str) -> Sql:
    """SQL of a value, or of an element, an entry or an attribute in it.

    :raises TypeError: the JSON value does not fit the type.
    :raises ValueError: the same.
    """
    if value is None:
        return _of_scalar(None, kind)
    if element := list_element(kind):
        made = Sql(
            f"array({', '.join(_of_value(each, element) for each in _checked(value, list))})"
        )
    elif entry := map_entry(kind):
        pairs = (
            f"{_of_value(key, entry[0])}, {_of_value(held, entry[1])}"
            for key, held in _checked(value, dict).items()
        )
        made = Sql(f"map({', '.join(pairs)})")
    elif fields := struct_fields(kind):
        parts = zip(fields, _checked(value, list), strict=True)
        named = (f"{literal(name)}, {_of_value(part, inner)}" for (name, inner), part in parts)
        made = Sql(f"named_struct({', '.join(named)})")
    else:
        return _of_scalar(_checked(value, str), kind)
    return Sql(f"CAST({made} AS {spark_type(kind)})")


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"no {kind.__name__}")
    return value
