"""A pipeline of three tables with a judge beside it, for every fault test."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG, TableOptions
from airflow_provider_pgoutput.capture.request import AFTER_APPLY, AFTER_STAGE
from airflow_provider_pgoutput.proof.verify import verify
from tests import setting
from tests.conformance.compare import connect
from tests.conformance.pipeline import CATALOG, Batch, Pipeline
from tests.faults.invariants import Judge
from tests.faults.slot_watch import SlotWatch
from tests.faults.workload import LOG_TABLE, SETUP, UPSERT_TABLES, Workload
from tests.proof.worlds import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.lsn import Lsn

_numbers = itertools.count(1)

#: Files and tests that every run does in both settings of ``advance``; the others with ``ALL=1``.
#: ``test_kill_sweep`` kills a task of each kind in both settings.
ALWAYS_BOTH = {
    "test_lost_slot",
    "test_cancelled_runs",
    "test_f18_advancing_before_the_apply_moves_to_the_checkpoint_only",
    "test_f20_what_a_crashed_server_delivers_again_is_not_applied_again",
}
#: Files of tests that choose the setting themselves.
ITS_OWN = ("test_kill_sweep", "test_saved_positions", "test_slot_watch")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each fault test with the slot moved after apply, and after stage."""
    file = metafunc.module.__name__.rpartition(".")[2]
    settings: list[Any] = [setting.advance]
    if file not in ITS_OWN and setting.advance == AFTER_APPLY:
        always = ALWAYS_BOTH & {file, metafunc.function.__name__}
        marks = () if always else (pytest.mark.exhaustive,)
        settings.append(pytest.param(AFTER_STAGE, marks=marks))
    metafunc.parametrize("advance", settings, indirect=True)


@pytest.fixture(autouse=True)
def advance(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """When pipelines move their slot, where the test does not say it."""
    monkeypatch.setattr(setting, "advance", request.param)


@dataclass
class Subject:
    """What a fault test works on."""

    pipeline: Pipeline
    judge: Judge
    watch: SlotWatch
    workload: Workload
    #: The batches that were applied to their end, in order.
    applied: list[Batch] = field(default_factory=list)

    def work(self, transactions: int = 6) -> None:
        """Let the source commit some transactions and remember what it holds then."""
        with connect(self.pipeline.conninfo) as session:
            for _ in range(transactions):
                self.workload.transactions(session, 1)
                self.judge.remember_source()

    def change_each(self) -> None:
        """Let the source change a row of every table in a way that deletes and appends, and remember that."""
        with connect(self.pipeline.conninfo) as session:
            session.execute(
                "INSERT INTO account VALUES (1) ON CONFLICT (id) DO UPDATE SET name = 'again'"
            )
            session.execute("INSERT INTO bag VALUES (1, 'more')")
            session.execute("UPDATE bag SET x = 2 WHERE ctid = (SELECT min(ctid) FROM bag)")
            session.execute(
                "INSERT INTO journal SELECT coalesce(max(id), 100) + 1, 'm' FROM journal"
            )
        self.workload.journal_changes += 1
        self.judge.remember_source()

    def table_snapshots(self) -> dict[str, int | None]:
        """The current snapshot of every table of the source."""
        found = self.pipeline.snapshot_ids()
        return {name: found.get(name) for name in (*UPSERT_TABLES, LOG_TABLE)}

    def left_branches(self) -> list[str]:
        """Branches that attempts left on tables of the namespace."""
        catalog = load_catalog(CATALOG, **self.pipeline.catalog_properties)
        tables = [catalog.load_table(each) for each in catalog.list_tables(self.pipeline.namespace)]
        return [
            name
            for table in tables
            for name, reference in table.metadata.refs.items()
            if reference.snapshot_ref_type == "branch" and name != "main"
        ]

    def stage(self, **options: Any) -> Batch:
        """Stage in this process, and judge."""
        batch = self.pipeline.stage(**options)
        self.judge.after_any_run()
        return batch

    def apply(self, batch: Batch) -> None:
        """Apply in this process, and judge."""
        self.pipeline.apply(batch)
        self.applied.append(batch)
        self.judge.after_any_run()

    def advance(self) -> None:
        """Advance in this process, and judge."""
        self.pipeline.advance()
        self.judge.check_positions()

    def run(self, **options: Any) -> Batch:
        """One whole DAG run."""
        batch = self.stage(**options)
        self.apply(batch)
        self.advance()
        return batch

    def catch_up(self, **options: Any) -> None:
        """Run until the lake is where the source is now."""
        target = self.pipeline.flush_lsn()
        while self.run(**options).manifest.end_lsn < target:
            pass

    def prove(self) -> None:
        """Verify the lake while runs go on. The judge looks at each of them, and both must agree."""

        def wait(lsn: Lsn) -> None:
            while self.run().manifest.end_lsn < lsn:
                pass

        proof = verify(World(self.pipeline, self.pipeline.publication_names).request(), wait)
        names = {each.table.removeprefix("public."): each for each in proof.tables}
        assert names.keys() == {*UPSERT_TABLES, LOG_TABLE}
        assert [str(each) for each in names.values() if not each.is_equal] == []

    def finish(self) -> None:
        """Catch up and let the judge look at everything."""
        self.catch_up()
        self.judge.at_the_end(self.applied, self.workload.journal_changes)


@pytest.fixture
def subject(
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
) -> Iterator[Callable[..., Subject]]:
    """Make the source's tables from a seed; nothing is captured yet, and its slot is watched.

    What is given by name goes into every ``CaptureRequest``.
    """
    watches: list[SlotWatch] = []

    def make(seed: int, **capture_options: Any) -> Subject:
        with connect(postgres_database) as session:
            for statement in SETUP:
                session.execute(statement)
        number = next(_numbers)
        pipeline = Pipeline(
            conninfo=postgres_database,
            slot_name=f"faults_{number}",
            publication_names=("p",),
            namespace=f"faults_{number}",
            staging=tmp_path,
            catalog_properties=lake_catalog_properties,
            spark=spark,
            capture_options=capture_options,
            plan_options={"table_options": {f"public.{LOG_TABLE}": TableOptions(mode=CHANGE_LOG)}},
        )
        watches.append(SlotWatch(pipeline))
        judge = Judge(pipeline, watches[-1])
        judge.remember_source()
        return Subject(pipeline, judge, watches[-1], Workload(seed))

    yield make
    for watch in watches:
        watch.stop()
