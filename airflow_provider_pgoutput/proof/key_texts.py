"""Values of keys in the lake, as PostgreSQL prints them: the source looks for rows by these texts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_pgoutput.batch.lake_types import decimal_type
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    Texts = list[str | None]


def text_maker(lake_type: str) -> Callable[[pa.Array], Texts]:
    """The function that prints values of a lake type.

    :raises ConfigurationError: the type is a list, a map or a struct.
    """
    make = _fixed if decimal_type(lake_type) is not None else _MAKERS.get(lake_type)
    if make is None:
        raise ConfigurationError(f"A column of the key is {lake_type} in the lake.")
    return lambda values: [None if each is None else make(each) for each in values.to_pylist()]


def _boolean(value: bool) -> str:
    return "t" if value else "f"


def _fixed(value: Any) -> str:
    return format(value, "f")


def _float(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"


def _moment(value: Any) -> str:
    return str(value.isoformat(sep=" "))


def _bytes(value: bytes) -> str:
    return f"\\x{value.hex()}"


_MAKERS: Final[dict[str, Callable[[Any], str]]] = {
    "boolean": _boolean,
    "int": str,
    "long": str,
    "float": _float,
    "double": _float,
    "string": str,
    "uuid": str,
    "date": str,
    "timestamp": _moment,
    "timestamptz": _moment,
    "binary": _bytes,
}
