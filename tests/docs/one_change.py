"""Runs a few statements at a real PostgreSQL, and keeps what each becomes on its way to the lake.

A step is one batch: the statements, the messages that the slot has of them, the staged rows, the rows of two
tables of the lake (a mirror and a change log), and what the tasks log. ``test_one_change_page.py`` writes the
page.
"""

from __future__ import annotations

import dataclasses
import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG
from airflow_provider_pgoutput.batch.xcom import table_counts
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.tasks.task_run import log_tables, summary
from tests.conformance.pipeline import CATALOG, Batch, Pipeline
from tests.vectors.record import PINNED, peek

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = "notes"
SETUP = (
    "CREATE TABLE notes (id int PRIMARY KEY, title text, body text)",
    # As a document or a picture would be: a long value is not compressed.
    "ALTER TABLE notes ALTER body SET STORAGE EXTERNAL",
    "CREATE PUBLICATION p FOR TABLE notes",
    "INSERT INTO notes VALUES (1, 'first', 'short')",
)
#: By the name of a step: its statements, each a transaction of its own.
STEPS = {
    "insert": ("INSERT INTO notes VALUES (2, 'draft', repeat('b', 3000))",),
    "update": ("UPDATE notes SET title = 'final' WHERE id = 2",),
    "key change": ("UPDATE notes SET id = 7 WHERE id = 2",),
    "alter": (
        "ALTER TABLE notes ADD COLUMN likes int DEFAULT 0",
        "UPDATE notes SET likes = 5 WHERE id = 1",
    ),
    "truncate": ("TRUNCATE notes",),
}

_PACKAGE = "airflow_provider_pgoutput"

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Step:
    """What the statements of one batch became."""

    statements: tuple[str, ...]
    #: Messages of pgoutput.
    wire: list[bytes]
    #: By the path of each staged file, relative to the staging area: its rows.
    staged: dict[str, Rows]
    #: All rows of the mirror after the batch.
    lake: Rows
    #: The rows that the batch added to the change log.
    change_log: Rows
    #: What the tasks logged, each line with its level and with ``stage`` or ``apply``.
    lines: list[tuple[str, str, str]]


def run(pipeline: Pipeline) -> dict[str, Step]:
    """Copy a table of one row, then run the steps, each with a batch of its own."""
    _execute(pipeline, SETUP)
    as_log = dataclasses.replace(
        pipeline, namespace=f"{pipeline.namespace}_log", plan_options={"mode": CHANGE_LOG}
    )
    _apply(pipeline.stage(), pipeline, as_log)
    return {name: _step(statements, pipeline, as_log) for name, statements in STEPS.items()}


def _step(statements: tuple[str, ...], pipeline: Pipeline, as_log: Pipeline) -> Step:
    # So the slot has what follows, and nothing else.
    pipeline.advance()
    logged_before = len(_rows(as_log))
    _execute(pipeline, statements)
    wire = _wire(pipeline)
    lines: list[tuple[str, str, str]] = []
    with _logged(lines, "stage"):
        batch = pipeline.stage()
        log_tables(table_counts(batch.manifest))
        logging.getLogger(_PACKAGE).info("%s", summary("Staged", batch.manifest, 0))
    with _logged(lines, "apply"):
        pipeline.apply(batch)
        log_tables(table_counts(batch.manifest))
        logging.getLogger(_PACKAGE).info("%s", summary("Applied", batch.manifest, 0))
    as_log.apply(batch)
    change_log = sorted(_rows(as_log), key=_position)
    return Step(
        statements,
        wire,
        _staged(batch, pipeline),
        sorted(_rows(pipeline), key=lambda row: int(row["id"])),
        change_log[logged_before:],
        lines,
    )


def _apply(batch: Batch, *pipelines: Pipeline) -> None:
    for each in pipelines:
        apply_batch(each.spark, each.plan(batch))


def _execute(pipeline: Pipeline, statements: tuple[str, ...]) -> None:
    with psycopg.connect(pipeline.conninfo, autocommit=True) as session:
        for statement in statements:
            session.execute(statement.encode())


def _wire(pipeline: Pipeline) -> list[bytes]:
    """What the stage task will get, read with the same options."""
    with psycopg.connect(pipeline.conninfo, autocommit=True, options=PINNED) as session:
        options = StreamOptions().for_server(
            read_server(session, pipeline.conninfo), pipeline.publication_names
        )
        return peek(session, pipeline.slot_name, dict(options.pairs))


def _staged(batch: Batch, pipeline: Pipeline) -> dict[str, Rows]:
    files = [
        file.path
        for table in batch.manifest.tables
        for version in table.versions
        for file in version.files
    ]
    return {path: pq.read_table(pipeline.staging / path).to_pylist() for path in files}


def _rows(pipeline: Pipeline) -> Rows:
    catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
    found: Rows = catalog.load_table((pipeline.namespace, TABLE)).scan().to_arrow().to_pylist()
    return found


def _position(row: dict[str, Any]) -> tuple[int, int]:
    return row["_pgoutput_commit_lsn"], row["_pgoutput_seq"]


@contextmanager
def _logged(lines: list[tuple[str, str, str]], task: str) -> Iterator[None]:
    """Keep what the package logs meanwhile."""

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append((task, record.levelname, record.getMessage()))

    logger, keeper = logging.getLogger(_PACKAGE), Keeper()
    level = logger.level
    logger.addHandler(keeper)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(keeper)
        logger.setLevel(level)
