"""kill -9 between setting a table aside, advancing, pruning and coming back, with rows in the quarantine.

The slot never waits for the table, and nothing of it is lost.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.batch.checkpoint import PROPERTY_SLOT
from airflow_provider_pgoutput.capture.request import AFTER_STAGE
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.retention import prune
from airflow_provider_pgoutput.lake.quarantine import incomplete_tables
from tests.conformance.compare import connect, quoted
from tests.conformance.pipeline import CATALOG
from tests.conformance.troubles import REST
from tests.faults.crash_points import crash_points
from tests.faults.processes import (
    advance_in_process,
    apply_attached,
    prune_in_process,
    replay_attached,
    stage_in_process,
)
from tests.faults.rest_catalog import Fault, RestCatalog

if TYPE_CHECKING:
    from collections.abc import Callable

    from quickstart.spark import LocalLake
    from tests.faults.conftest import Subject

#: The tables to which the catalog forbids to write.
DENIED = ("bag", "journal")
#: The key of the row that the lake loses.
LOST = 5000
FEW = ("quarantine.after_append", "prune.after_manifests")
#: Passed where a run sets a table aside, goes on, prunes, or brings the table back.
EVERY = (
    "stage.after_manifest",
    *(each for each in crash_points("apply") if each not in {"apply.after_copy"}),
    "quarantine.after_delete",
    "quarantine.after_append",
    "advance.before_move",
    "advance.after_move",
    "prune.after_manifests",
)
_MOST_TIMES = 12


class Life:
    """One pipeline. The task that passes a point is killed there, each time that it passes it."""

    def __init__(self, run: Subject, point: str) -> None:
        self.run, self.point = run, point
        self.kills = 0

    def until_it_ends(self, task: Callable[[str], bool], *rooms: str) -> None:
        """Run a task in a process of its own until it is not killed any more.

        :param rooms: how the names of the points begin that it passes. Another task is not run here.
        """
        if self.point.partition(".")[0] not in rooms:
            return
        for times in itertools.count(1):
            assert times <= _MOST_TIMES, f"{self.point} is passed more than {_MOST_TIMES} times"
            killed = task(f"{self.point}:{times}")
            self.run.judge.after_any_run()
            if not killed:
                return
            self.kills += 1

    def whole_run(self) -> None:
        """Stage, apply, advance and prune; all of them may be killed."""
        run, pipeline = self.run, self.run.pipeline
        # With after_stage the stage task moves the slot.
        moves = pipeline.capture_options["advance"] == AFTER_STAGE
        rooms = ("stage", "advance") if moves else ("stage",)
        self.until_it_ends(lambda crash_at: stage_in_process(pipeline, crash_at), *rooms)
        batch = run.stage()
        self.until_it_ends(
            lambda crash_at: apply_attached(pipeline, batch, crash_at),
            "apply",
            "quarantine",
            # An apply may try tables again, as a replay does.
            "replay",
        )
        run.apply(batch)
        self.until_it_ends(lambda crash_at: advance_in_process(pipeline, crash_at), "advance")
        run.advance()
        # The slot never waits.
        assert pipeline.confirmed_flush_lsn() == batch.manifest.end_lsn
        self.until_it_ends(lambda crash_at: prune_in_process(pipeline, crash_at), "prune")
        checkpoint = pipeline.checkpoint()
        assert checkpoint is not None
        area = StagingArea(pipeline.staging.as_uri())
        prune(area, pipeline.slot_name, checkpoint, older_than=datetime.now(UTC))

    def bring_back(self) -> None:
        """Replay what the tables lack."""
        pipeline = self.run.pipeline
        job = pipeline.catch_up_job()
        self.until_it_ends(
            lambda crash_at: replay_attached(pipeline, job, crash_at), "apply", "replay"
        )
        if self.aside():
            replay(pipeline.spark, job)

    def aside(self) -> set[str]:
        """The tables that are set aside."""
        checkpoint = self.run.pipeline.checkpoint()
        assert checkpoint is not None
        for each in checkpoint.set_aside.values():
            assert each.refusal.error, f"I8: no class: {each}"
            assert each.refusal.message, f"I8: no message: {each}"
            assert each.refusal.advice, f"I8: no advice: {each}"
        return {each.table_name for each in checkpoint.set_aside.values()}

    def incomplete(self) -> dict[str, set[str]]:
        """The keys of the rows in the quarantine, by table."""
        pipeline = self.run.pipeline
        catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
        found = incomplete_tables(catalog, pipeline.namespace, pipeline.slot_name)
        return {each.table_name: {*each.keys} for each in found.values()}

    def set_slot(self, table: str, value: str) -> None:
        """Write the slot's name into the properties of a table of the lake."""
        name = quoted(CATALOG, self.run.pipeline.namespace, table)
        self.run.pipeline.spark.sql(
            f"ALTER TABLE {name} SET TBLPROPERTIES ('{PROPERTY_SLOT}' = '{value}')"
        )

    def execute(self, statement: str) -> None:
        """Run a statement at the source, and remember what it holds then."""
        with connect(self.run.pipeline.conninfo) as session:
            session.execute(statement.encode())
        self.run.judge.remember_source()


def _begun(make: Callable[..., Subject], seed: int, table: str) -> Subject:
    """A pipeline that runs, with options for trouble of one table and of one row."""
    run = make(seed, on_table_refused="set_aside")
    run.pipeline.plan_options.update(on_table_refused="set_aside", on_row_refused="quarantine")
    # Its applies borrow this JVM, which ends what the other tables' threads began.
    run.judge.writers_live_on = True
    run.run()
    assert run.pipeline.snapshot_ids()[table] is not None
    return run


@pytest.mark.further
@pytest.mark.parametrize(
    ("table", "points"),
    [
        ("bag", FEW),
        pytest.param("bag", EVERY, marks=pytest.mark.exhaustive),
        pytest.param("journal", EVERY, marks=pytest.mark.exhaustive),
    ],
    ids=["few", "upsert", "change log"],
)
def test_kills_between_setting_aside_and_coming_back(
    table: str,
    points: tuple[str, ...],
    subject: Callable[..., Subject],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = _begun(subject, 27, table)
    account = quoted(CATALOG, run.pipeline.namespace, "account")
    kills = {}
    for point in points:
        life = Life(run, point)
        life.execute(
            f"INSERT INTO account VALUES ({LOST}, 'n', repeat('x', 9000), 1)"
            " ON CONFLICT (id) DO UPDATE SET large = repeat('y', 9000)"
        )
        run.run()
        # The lake loses a row, and the table is changed by somebody.
        run.judge.quarantined.add(str(LOST))
        run.pipeline.spark.sql(f"DELETE FROM {account} WHERE id = {LOST}")
        life.set_slot(table, "another")
        for _ in range(2):
            run.change_each()
            life.execute(f"UPDATE account SET amount = amount + 1 WHERE id = {LOST}")
            life.whole_run()
            assert life.aside() == {f"public.{table}"}
            assert life.incomplete() == {"public.account": {f'{{"id":{LOST}}}'}}
        # The cause goes, and what the table lacks is still there.
        life.set_slot(table, run.pipeline.slot_name)
        life.bring_back()
        assert life.aside() == set()
        life.execute(f"UPDATE account SET large = repeat('z', 9000) WHERE id = {LOST}")
        run.change_each()
        life.whole_run()
        assert life.incomplete() == {}
        run.judge.quarantined.clear()
        kills[point] = life.kills
    run.catch_up()
    run.judge.at_the_end(run.applied, run.workload.journal_changes, pruned=True)
    with capsys.disabled():
        print(f"\n{table}: {sum(kills.values())} kills: {kills}")
    assert all(kills.values()), f"not reached: {[each for each in kills if not kills[each]]}"


@pytest.mark.exhaustive
def test_kills_while_a_right_is_missing_and_when_it_is_given(
    subject: Callable[..., Subject],
    local_lake: LocalLake,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A table of each mode comes back by itself: nobody asks for it.

    One such kill is in ``tests/conformance/test_rights_given_again.py``, in every run of the tests.
    """
    run = _begun(subject, 28, "bag")
    pipeline = run.pipeline
    rest = RestCatalog(pipeline.spark, local_lake)
    rest.attach(REST)
    pipeline.plan_options["catalog_name"] = REST
    kills = {}
    try:
        for point in (each for each in EVERY if not each.startswith("quarantine.")):
            life = Life(run, point)
            denied = Fault(lambda commit: commit.table in DENIED, 403, commits=False, times=1 << 30)
            rest.fail(denied)
            for _ in range(2):
                run.change_each()
                life.whole_run()
                assert life.aside() == {f"public.{each}" for each in DENIED}
            rest.fail()
            run.change_each()
            life.whole_run()
            # A task that is killed after its checkpoint leaves them to the next batch.
            run.change_each()
            life.whole_run()
            assert life.aside() == set()
            kills[point] = life.kills
        run.catch_up()
        run.judge.at_the_end(run.applied, run.workload.journal_changes, pruned=True)
    finally:
        rest.stop()
    with capsys.disabled():
        print(f"\ncoming back: {sum(kills.values())} kills: {kills}")
    assert all(kills.values()), f"not reached: {[each for each in kills if not kills[each]]}"
