"""The Arrow type behind each lake type, and the parts of a lake type's notation. It casts nothing.

Source: https://iceberg.apache.org/spec/#schemas-and-data-types
"""

from __future__ import annotations

import re
from functools import lru_cache

import pyarrow as pa

from airflow_provider_pgoutput.errors import ConfigurationError

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
STRING_MAP = "map<string, string>"


def list_element(lake_type: str) -> str | None:
    """The lake type of a list's elements; None when ``lake_type`` is no list."""
    if lake_type.startswith("list<") and lake_type.endswith(">"):
        return lake_type[len("list<") : -1]
    return None


@lru_cache(maxsize=1024)
def arrow_type(lake_type: str) -> pa.DataType:
    """The Arrow type of a staged column.

    :raises ConfigurationError: when ``lake_type`` is not in ``Column.lake_type``'s notation.
    """
    if lake_type in _PRIMITIVES:
        return _PRIMITIVES[lake_type]
    if lake_type == STRING_MAP:
        return pa.map_(pa.string(), pa.string())
    if element := list_element(lake_type):
        return pa.list_(pa.field("element", arrow_type(element)))
    if (found := _DECIMAL.fullmatch(lake_type)) is not None:
        precision, scale = int(found[1]), int(found[2])
        if 1 <= precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    raise ConfigurationError(f"Unknown lake type {lake_type!r}.")
