"""Writes all rows of some tables of a lake as Arrow files, one for each table, in a cell's own Python.

pyiceberg there has the extras of the cell's catalog. It is started by its path, with a request as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog


def main() -> None:
    """Read the tables that the request names; print what they are made of."""
    request = json.load(sys.stdin)
    catalog = load_catalog(request["catalog"], **request["properties"])
    facts = {}
    for name in request["tables"]:
        table = catalog.load_table((*request["namespace"].split("."), name))
        rows = table.scan().to_arrow()
        path = Path(request["folder"]) / f"{name}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
            writer.write_table(rows)
        deletes = table.inspect.delete_files().to_pylist()
        facts[name] = {
            "format_version": table.format_version,
            "delete_formats": sorted({each["file_format"] for each in deletes}),
        }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
