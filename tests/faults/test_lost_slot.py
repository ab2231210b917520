"""F38 and F42 with on_slot_lost="copy": a slot that is gone, and a lake that is whole again in one batch.

That such a slot is refused otherwise is shown in ``tests/capture``.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.errors import SlotNotFound
from tests.conformance.compare import connect
from tests.conformance.pipeline import CATALOG
from tests.faults.workload import LOG_TABLE, UPSERT_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.table import Table

    from tests.conformance.pipeline import Pipeline
    from tests.faults.conftest import Subject


TABLES = (*UPSERT_TABLES, LOG_TABLE)


class Reader(threading.Thread):
    """Reads all tables with another engine, again and again, and at each point of the apply."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(name="reader", daemon=True)
        self._pipeline = pipeline
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        #: The rows of each table whenever they were others than before, the oldest first.
        self.seen: dict[str, list[list[str]]] = {table: [] for table in TABLES}
        #: The points at which it looked.
        self.points: set[str] = set()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.look()
        except BaseException as error:
            self._error = error

    def stop(self) -> None:
        """Stop after the present look; raise what went wrong."""
        self._stopping.set()
        self.join()
        if self._error is not None:
            raise self._error

    def look(self, point: str = "") -> None:
        with self._lock:
            self.points.add(point)
            for table, seen in self.seen.items():
                found = load_table(self._pipeline, table).scan().to_arrow().to_pylist()
                rows = sorted(map(str, found))
                if not seen or rows != seen[-1]:
                    seen.append(rows)


def load_table(pipeline: Pipeline, table: str) -> Table:
    catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
    return catalog.load_table((pipeline.namespace, table))


def heads_of_main(pipeline: Pipeline) -> dict[str, list[int]]:
    """Every snapshot that main of a table ever was, the oldest first."""
    return {
        table: [each.snapshot_id for each in load_table(pipeline, table).history()]
        for table in TABLES
    }


def test_f38_f42_a_lost_slot_costs_a_copy_and_no_row(subject: Callable[[int], Subject]) -> None:
    run = subject(38)
    run.run()
    run.work()
    run.change_each()
    with psycopg.connect(run.pipeline.conninfo, autocommit=True) as session:
        session.execute("SELECT pg_drop_replication_slot(%s)", (run.pipeline.slot_name,))
    with pytest.raises(SlotNotFound):
        run.pipeline.stage()
    before = run.pipeline.snapshot_ids()
    # The slot that this makes is past the checkpoint until the batch is applied, so nobody judges here.
    batch = run.pipeline.stage(on_slot_lost="copy")
    assert run.pipeline.snapshot_ids() == before
    heads = heads_of_main(run.pipeline)
    reader = Reader(run.pipeline)
    reader.look()
    reader.start()
    try:
        with crash_points.watched(reader.look):
            run.apply(batch)
    finally:
        reader.stop()
    reader.look()
    # The copy takes the place of the old rows at once; nobody sees the table empty, or half of it.
    assert {"apply.after_copy", "apply.between_publishes"} <= reader.points
    assert {table: len(seen) for table, seen in reader.seen.items()} == dict.fromkeys(TABLES, 2)
    for table, found in heads_of_main(run.pipeline).items():
        assert found[:-1] == heads[table], f"{table}: main moved more than once"
    old, new = reader.seen[LOG_TABLE]
    assert set(old) < set(new), "a change log keeps what it had"
    assert copied_last(run) == journal(run)
    run.judge.check_positions()
    run.work()
    run.catch_up(on_slot_lost="copy")
    assert not any(table.copy_lsn for each in run.applied[2:] for table in each.manifest.tables), (
        "a sound slot is read, and nothing is copied"
    )
    del run.judge.states[:-1]
    run.judge.after_any_run()


def copied_last(run: Subject) -> dict[int, str]:
    """The rows of the newest copy in the change log."""
    rows = load_table(run.pipeline, LOG_TABLE).scan().to_arrow().to_pylist()
    copied = [row for row in rows if row["_pgoutput_op"] == "C"]
    newest = max(row["_pgoutput_commit_lsn"] for row in copied)
    return {row["id"]: row["v"] for row in copied if row["_pgoutput_commit_lsn"] == newest}


def journal(run: Subject) -> dict[int, str]:
    with connect(run.pipeline.conninfo) as session:
        return dict(session.execute("SELECT id, v FROM journal").fetchall())
