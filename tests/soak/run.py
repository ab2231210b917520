"""Runs of a pipeline back to back, killed at random, compared with the source four times.

A run is what the tasks of a DAG run do (stage, apply, advance), without Airflow; a maintenance and a prune go
between. Killed are the processes of the tasks, at crash points and at any other time. What is not here: the
load (``load.py``), and starting server, lake and Spark (``__main__.py``).
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING

import psutil

from airflow_provider_pgoutput.apply.maintain import maintain
from airflow_provider_pgoutput.batch.jobs import MaintenanceJob
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.retention import prune
from tests.conformance.compare import (
    connect,
    difference,
    lake_fields,
    quoted,
    read_lake,
    read_source,
    source_columns,
)
from tests.conformance.pipeline import CATALOG
from tests.faults.crash_points import crash_points
from tests.faults.invariants import replay
from tests.faults.processes import apply_attached, stage_in_process
from tests.faults.workload import LOG_TABLE, UPSERT_TABLES
from tests.soak.load import PGBENCH_TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.pipeline import Batch, Pipeline
    from tests.soak.load import Load

_COMPARED = (*UPSERT_TABLES, *(f"pgbench_{each}" for each in PGBENCH_TABLES))
_KEPT_SECONDS = 60
_RUNS_BETWEEN_MAINTENANCE = 10
_NO_POINT = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    seconds: float
    changes: int
    #: Bytes of WAL between the slot and the server when the run had ended.
    lag_bytes: int
    #: In the staging area and in the warehouse.
    files: int
    #: Of this process and of the JVM below it.
    memory_mib: int


@dataclass
class Soak:
    """A pipeline that runs until it is told to end."""

    pipeline: Pipeline
    load: Load
    warehouse: Path
    seed: int
    runs: list[Measured] = field(default_factory=list)
    kills: int = 0
    comparisons: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)  # noqa: S311 - kills at random, nothing secret
        self._capture, self._apply = crash_points("capture"), crash_points("apply")

    def go_on(self, until: float) -> None:
        """Run after run until a time of ``time.monotonic``."""
        while time.monotonic() < until:
            began = time.monotonic()
            changes = self.run()
            if len(self.runs) % _RUNS_BETWEEN_MAINTENANCE == _RUNS_BETWEEN_MAINTENANCE - 1:
                self.keep_small()
            self.runs.append(
                Measured(
                    time.monotonic() - began,
                    changes,
                    self._lag_bytes(),
                    self._files(),
                    self._memory_mib(),
                )
            )
            last = self.runs[-1]
            print(
                f"run {len(self.runs)}: {last.seconds:.1f} s, {last.changes:,} changes, lag "
                f"{last.lag_bytes / 2**20:.1f} MiB, {last.files:,} files, {last.memory_mib:,} MiB, "
                f"{self.kills} kills",
                flush=True,
            )

    def run(self) -> int:
        """One run, with kills; how many changes it carried."""
        while self._chance.random() < 0.4:
            point, after_seconds = self._when(self._capture)
            self.kills += stage_in_process(
                self.pipeline, point, after_seconds=after_seconds, **self._options()
            )
        batch = self.pipeline.stage(**self._options())
        while self._chance.random() < 0.3:
            point, after_seconds = self._when(self._apply)
            self.kills += apply_attached(self.pipeline, batch, point, after_seconds=after_seconds)
        self.apply(batch)
        return batch.manifest.changes

    def apply(self, batch: Batch) -> None:
        """Apply to the end, and let the slot follow."""
        self.pipeline.apply(batch)
        self.pipeline.advance()

    def keep_small(self) -> None:
        """What a maintenance DAG and the prune task do."""
        pipeline, checkpoint = self.pipeline, self.pipeline.checkpoint()
        assert checkpoint is not None
        job = MaintenanceJob(
            staging_uri=pipeline.staging.as_uri(),
            catalog_name=CATALOG,
            namespace=pipeline.namespace,
            slot_name=pipeline.slot_name,
            snapshot_retention_seconds=_KEPT_SECONDS,
        )
        maintain(pipeline.spark, job)
        older_than = datetime.now(UTC) - timedelta(seconds=_KEPT_SECONDS)
        area = StagingArea(pipeline.staging.as_uri())
        prune(area, pipeline.slot_name, checkpoint, older_than=older_than)

    def compare(self) -> None:
        """Let the load pause, catch up, and compare every row of every table.

        :raises AssertionError: something differs.
        """
        with self.load.paused():
            target = self.pipeline.flush_lsn()
            while (checkpoint := self.pipeline.checkpoint()) is None or checkpoint.end_lsn < target:
                self.apply(self.pipeline.stage())
            rows = sum(self._compare(table) for table in _COMPARED)
            self._compare_log()
        self.comparisons += 1
        print(f"comparison {self.comparisons}: {rows:,} rows, no difference", flush=True)

    def summary(self) -> str:
        """What the runs cost, and whether that grew: the second quarter against the last."""
        quarter = max(1, len(self.runs) // 4)
        before, after = self.runs[quarter : 2 * quarter] or self.runs, self.runs[-quarter:]

        def both(name: str) -> str:
            first, last = (median(getattr(run, name) for run in each) for each in (before, after))
            return f"{name} {first:,.0f} -> {last:,.0f}"

        names = ("seconds", "lag_bytes", "files", "memory_mib")
        changes = sum(run.changes for run in self.runs)
        return (
            f"{len(self.runs)} runs, {self.kills} kills, {changes:,} changes, {self.comparisons}"
            f" comparisons without a difference; medians of the second quarter and the last: "
            + ", ".join(both(name) for name in names)
        )

    def _when(self, points: tuple[str, ...]) -> tuple[str, float | None]:
        if self._chance.random() < 0.5:
            return self._chance.choice(points), None
        return _NO_POINT, self._chance.uniform(0.2, 6)

    def _options(self) -> dict[str, object]:
        return {
            "transport": self._chance.choice(("sql", "walsender")),
            "max_changes": self._chance.choice((None, None, 2000)),
        }

    def _compare(self, table: str) -> int:
        spark, name = self.pipeline.spark, quoted(CATALOG, self.pipeline.namespace, table)
        spark.catalog.refreshTable(name)
        fields = lake_fields(spark, name)
        with connect(self.pipeline.conninfo) as session:
            wanted = [fields[each] for each in source_columns(session, "public", table)]
            expected = read_source(session, "public", table, wanted)
        found = read_lake(spark, name, wanted)
        assert not (unequal := difference(found, expected)), f"{table}: {unequal}"
        return expected.total()

    def _compare_log(self) -> None:
        """The change log has each change once, and leads to the source's rows."""
        name = quoted(CATALOG, self.pipeline.namespace, LOG_TABLE)
        self.pipeline.spark.catalog.refreshTable(name)
        rows = self.pipeline.spark.table(name).collect()
        streamed = [row for row in rows if row["_pgoutput_op"] != "C"]
        places = {(row["_pgoutput_commit_lsn"], row["_pgoutput_seq"]) for row in streamed}
        assert len(places) == len(streamed), "a change is in the log twice"
        assert len(streamed) == self.load.workload.journal_changes, "changes are missing in the log"
        with connect(self.pipeline.conninfo) as session:
            source = dict(session.execute(f"SELECT id, v FROM {LOG_TABLE}").fetchall())
        assert replay(rows) == source

    def _lag_bytes(self) -> int:
        confirmed = self.pipeline.confirmed_flush_lsn()
        return 0 if confirmed is None else self.pipeline.flush_lsn() - confirmed

    def _files(self) -> int:
        roots = (self.pipeline.staging, self.warehouse)
        return sum(path.is_file() for root in roots for path in root.rglob("*"))

    def _memory_mib(self) -> int:
        me = psutil.Process()
        java = [each for each in me.children(recursive=True) if "java" in each.name()]
        return int(sum(each.memory_info().rss for each in (me, *java))) >> 20
