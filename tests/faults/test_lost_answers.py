"""F21, F22: the catalog does not say whether it committed, and did or did not, at each kind; or it says no.

A REST catalog drops connections and answers 5xx. What must come of it: the apply looks, decides, and asks
again for what is not there; no file of the lake is removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch.checkpoint import BRANCH_PREFIX, CHECKPOINT_TABLE
from airflow_provider_pgoutput.errors import CommitStateUnknown, LakeDenied
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from tests.faults.rest_catalog import NO_ANSWER, Commit, Fault, RestCatalog
from tests.faults.workload import LOG_TABLE, UPSERT_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from quickstart.spark import LocalLake
    from tests.faults.conftest import Subject


_REST = "rest"


def makes_branch(commit: Commit) -> bool:
    return not commit.adds_snapshot and not commit.removed_references and bool(_branches(commit))


def writes_rows(commit: Commit) -> bool:
    return commit.adds_snapshot and bool(_branches(commit))


def publishes(commit: Commit) -> bool:
    return not commit.adds_snapshot and "main" in commit.set_references


def writes_checkpoint(commit: Commit) -> bool:
    return commit.adds_snapshot and commit.table == CHECKPOINT_TABLE


def _branches(commit: Commit) -> list[str]:
    return [each for each in commit.set_references if each.startswith(BRANCH_PREFIX)]


KINDS = (makes_branch, writes_rows, publishes, writes_checkpoint)
#: Those without which an apply cannot go on.
STOPPING = KINDS[1:]
TABLES = (*UPSERT_TABLES, LOG_TABLE)
#: Of one apply at one table.
ATTEMPTS = 4


@pytest.fixture
def rest_catalog(spark: SparkSession, local_lake: LocalLake) -> Iterator[RestCatalog]:
    """The tests' catalog over HTTP, as the catalog ``rest`` of the tests' session."""
    catalog = RestCatalog(spark, local_lake)
    catalog.attach(_REST)
    yield catalog
    catalog.stop()


@pytest.mark.slow
def test_f21_f22_no_answer_to_a_commit(
    subject: Callable[[int], Subject], rest_catalog: RestCatalog, local_lake: LocalLake
) -> None:
    run = subject(21)
    run.pipeline.plan_options["catalog_name"] = _REST
    run.run()
    for committed in (True, False):
        files, before = _files(run, local_lake), len(rest_catalog.commits)
        run.change_each()
        # Each apply meets all of them, once.
        faults = [
            Fault(chosen, (NO_ANSWER, 504)[(number + committed) % 2], committed)
            for number, chosen in enumerate(KINDS)
        ]
        rest_catalog.fail(*faults)
        run.run()
        assert [each.happened for each in faults] == [1] * len(faults)
        # What was committed is not asked for again; what was not, once.
        asked = rest_catalog.commits[before:]
        assert sum(map(publishes, asked)) == len(TABLES) + (not committed)
        assert sum(map(writes_checkpoint, asked)) == 1 + (not committed)
        assert files <= _files(run, local_lake)
        assert not run.left_branches()
    for status, chosen in zip((504, NO_ANSWER, 503), STOPPING, strict=True):
        run.change_each()
        batch = run.stage()
        # Also what the apply itself has written when it asks: any of these may still be committed.
        there = _files(run, local_lake)

        def looks(
            commit: Commit, wanted: Callable[[Commit], bool] = chosen, there: set[Path] = there
        ) -> bool:
            there |= _files(run, local_lake)
            return wanted(commit)

        before = len(there)
        never = Fault(looks, status, commits=False, times=1000)
        rest_catalog.fail(never)
        with pytest.raises(CommitStateUnknown) as stop:
            run.apply(batch)
        assert stop.value.table is not None
        assert len(there) > before, "the apply wrote nothing that could be removed"
        assert there <= _files(run, local_lake)
        assert 1 < never.happened < 2 * ATTEMPTS * len(TABLES)
        run.judge.after_any_run()
        rest_catalog.fail()
        run.apply(batch)
        run.advance()
    assert not run.left_branches()
    checkpoints = f"lake.{run.pipeline.namespace}.{CHECKPOINT_TABLE}"
    rows = run.pipeline.spark.table(checkpoints)
    assert rows.count() == rows.select("batch_id", "table_name").distinct().count()
    run.finish()


def test_a_catalog_that_does_not_let_us_in_is_not_asked_again(
    subject: Callable[[int], Subject], rest_catalog: RestCatalog
) -> None:
    """Nobody knows whether a lost answer was a yes; a 401 or 403 is a no, whoever asks how often."""
    run = subject(211)
    run.pipeline.plan_options["catalog_name"] = _REST
    run.run()
    run.change_each()
    batch = run.stage()
    for status, chosen in ((403, writes_rows), (401, publishes), (403, writes_checkpoint)):
        never = Fault(chosen, status, commits=False, times=1000)
        rest_catalog.fail(never)
        with pytest.raises(LakeDenied) as stop:
            run.apply(batch)
        assert stop.value.table is not None
        assert 1 <= never.happened <= len(TABLES)
        run.judge.after_any_run()
    rest_catalog.fail()
    for status in (401, 403):
        rest_catalog.denies = status
        with pytest.raises(LakeDenied):
            run.apply(batch)
        with pytest.raises(LakeDenied):
            read_checkpoint(
                _REST, rest_catalog.properties, run.pipeline.namespace, run.pipeline.slot_name
            )
    rest_catalog.denies = None
    run.apply(batch)
    run.advance()
    assert not run.left_branches()
    run.finish()


def _files(run: Subject, lake: LocalLake) -> set[Path]:
    folder = lake.home / "warehouse" / run.pipeline.namespace
    return set(folder.rglob("*.parquet"))
