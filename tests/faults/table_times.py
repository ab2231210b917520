"""Moves the times of a table, in place of a machine's clock. What is not here: what follows from it.

The clock of a machine cannot be moved in a test; what Iceberg and this package compare is the same.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from quickstart.spark import LocalLake


def shift_times(lake: LocalLake, namespace: str, table: str, milliseconds: int) -> None:
    """Move all times in the metadata of a table, as if its writers' clocks had been another."""
    with sqlite3.connect(lake.catalog_file) as catalog:
        where = "WHERE table_namespace = ? AND table_name = ?"
        (location,) = catalog.execute(
            f"SELECT metadata_location FROM iceberg_tables {where}", (namespace, table)
        ).fetchone()
        path = Path(urlsplit(location).path)
        body: dict[str, Any] = json.loads(path.read_text())
        body["last-updated-ms"] += milliseconds
        for each in (*body["snapshots"], *body["snapshot-log"], *body["metadata-log"]):
            each["timestamp-ms"] += milliseconds
        number = int(path.name.partition("-")[0]) + 1
        moved = path.with_name(f"{number:05}-{uuid.uuid4()}.metadata.json")
        moved.write_text(json.dumps(body))
        catalog.execute(
            f"UPDATE iceberg_tables SET metadata_location = ? {where}",
            (moved.as_uri(), namespace, table),
        )
