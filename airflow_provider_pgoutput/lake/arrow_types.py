"""The Arrow type behind each lake type. It casts nothing.

Source: https://iceberg.apache.org/spec/#schemas-and-data-types
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from airflow_provider_pgoutput.batch.lake_types import decimal_type, list_element, struct_fields
from airflow_provider_pgoutput.errors import ConfigurationError

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    # Spark has no such type: it reads and writes the text.
    "uuid": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
STRING_MAP = "map<string, string>"


@lru_cache(maxsize=1024)
def arrow_type(lake_type: str) -> pa.DataType:
    """The Arrow type of a staged column.

    :raises ConfigurationError: ``lake_type`` is not in the notation of ``Column.lake_type``.
    """
    if lake_type in _PRIMITIVES:
        return _PRIMITIVES[lake_type]
    if lake_type == STRING_MAP:
        return pa.map_(pa.string(), pa.string())
    if element := list_element(lake_type):
        return pa.list_(pa.field("element", arrow_type(element)))
    if fields := struct_fields(lake_type):
        return pa.struct([pa.field(name, arrow_type(kind)) for name, kind in fields])
    if digits := decimal_type(lake_type):
        return pa.decimal128(*digits)
    raise ConfigurationError(f"Unknown lake type {lake_type!r}.")
