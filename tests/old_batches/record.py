"""Record two batches with the code of an older commit: ``python -m tests.old_batches.record COMMIT``.

From a checkout with its history. In the folder of the commit's name are then the staging area as that code
left it, and ``rows.json``, what the source held after each batch. Kept are 0d3dd4b, the first whose manifests
have all the fields that are demanded today, and 707c602 before it, of which only the manifests are needed.
What is not here: today's code on what was recorded (``tests/apply/test_old_batches.py``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation

HERE = Path(__file__).parent
SLOT = "old"
VERSION = 16
SETUP = """
    CREATE TABLE orders (id int PRIMARY KEY, note text, large text, price numeric(12, 2));
    ALTER TABLE orders ALTER large SET STORAGE EXTERNAL;
    CREATE TABLE bag (x int, y text);
    ALTER TABLE bag REPLICA IDENTITY FULL;
    CREATE PUBLICATION p FOR TABLE orders, bag;
    INSERT INTO orders SELECT i, 'note ' || i, repeat('x', 2100), i * 1.5 FROM generate_series(1, 4) i;
    INSERT INTO bag SELECT i % 2, 'y' FROM generate_series(1, 4) i
"""
#: A transaction each.
CHANGES = (
    "UPDATE orders SET note = NULL WHERE id <= 2",  # Its large value is not sent.
    "UPDATE orders SET id = 10 WHERE id = 3; DELETE FROM orders WHERE id = 4",
    "ALTER TABLE orders ADD added int DEFAULT 7",
    "INSERT INTO orders VALUES (11, 'new', 'short', 0.25, 8)",
    "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag); UPDATE bag SET y = 'z' WHERE x = 0",
)
#: Stages one batch with the code that comes first in the path; prints where it ends and the source's name.
_STAGE = """
import sys
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture import pipeline
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
try:
    from airflow_provider_pgoutput.capture.request import CaptureRequest
except ImportError:
    from airflow_provider_pgoutput.capture.pipeline import CaptureRequest
conninfo, slot, staging, *known = sys.argv[1:]
checkpoint = Checkpoint(Lsn.parse(known[0]), known[1]) if known else None
manifest = pipeline.stage_batch(CaptureRequest(conninfo, slot, ("p",), staging, checkpoint))[0]
print(manifest.end_lsn, manifest.system_identifier)
"""


def main() -> None:
    """Record what the code of the commit stages."""
    (commit,) = sys.argv[1:]
    target = HERE / commit
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as code:
        archive = subprocess.run(["git", "archive", commit], check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", code], check=True, input=archive.stdout)
        home = Path(tempfile.mkdtemp())
        server = EmbeddedPostgres(home, installation=find_or_fetch_installation(VERSION))
        try:
            with server.start(), psycopg.connect(server.conninfo(), autocommit=True) as session:
                record(session, server.conninfo(), code, target)
        finally:
            server.destroy()


def record(session: psycopg.Connection[Any], conninfo: str, code: str, target: Path) -> None:
    """Stage the copy and the changes; write both and what the source held."""
    session.execute(SETUP)
    known = stage(conninfo, code, target)
    rows = [source_rows(session)]
    for statement in CHANGES:
        session.execute(statement)
    stage(conninfo, code, target, *known)
    rows.append(source_rows(session))
    (target / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")


def stage(conninfo: str, code: str, target: Path, *known: str) -> list[str]:
    """Stage a batch after the checkpoint that is known; the checkpoint that it leads to."""
    command = [sys.executable, "-c", _STAGE, conninfo, SLOT, str(target / "staging"), *known]
    environment = {**os.environ, "PYTHONPATH": code}
    result = subprocess.run(
        command, check=True, cwd=code, env=environment, stdout=subprocess.PIPE, text=True
    )
    return result.stdout.split()[-2:]


def source_rows(session: psycopg.Connection[Any]) -> dict[str, list[list[str | None]]]:
    """Every row by table, its values as text."""
    found = {}
    for table in ("orders", "bag"):
        cursor = session.execute(f"SELECT * FROM {table}")
        rows = [[None if each is None else str(each) for each in row] for row in cursor]
        found[table] = sorted(rows, key=repr)
    return found


if __name__ == "__main__":
    main()
