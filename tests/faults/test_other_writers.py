"""F23, F24: compaction, rewritten manifests and expiry in a loop beside the pipeline."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.apply.iceberg import IcebergTable
from airflow_provider_pgoutput.apply.java import JAVA_ERRORS, java_classes
from airflow_provider_pgoutput.apply.names import TableName
from airflow_provider_pgoutput.errors import PublishRefused
from tests.conformance.pipeline import CATALOG
from tests.faults.workload import LOG_TABLE, UPSERT_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.pipeline import Batch
    from tests.faults.conftest import Subject

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_RETRIES = 5


class Maintenance(threading.Thread):
    """Compacts, rewrites manifests and expires all snapshots but the last, until it is stopped."""

    def __init__(self, run: Subject) -> None:
        super().__init__(name="maintenance", daemon=True)
        self._spark = run.pipeline.spark.newSession()
        self._names = [
            TableName(CATALOG, run.pipeline.namespace, each) for each in (*UPSERT_TABLES, LOG_TABLE)
        ]
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        #: Commits by their operation, and ``lost``: those that the pipeline was faster than.
        self.commits: Counter[str] = Counter()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                for name in self._names:
                    for work in (self._rewrite_data, self._rewrite_manifests, self._expire):
                        self._try(work, name)
        except BaseException as error:
            self._error = error

    def stop(self) -> None:
        """Stop after the present statement; raise what went wrong."""
        self._stopping.set()
        self.join()
        if self._error is not None:
            raise self._error

    def _try(self, work: Callable[[TableName], int], name: TableName) -> None:
        try:
            self.commits[work.__name__] += work(name)
        except JAVA_ERRORS as error:
            lost = ("CommitFailedException", "ValidationException")
            if not any(each.endswith(lost) for each in java_classes(error)):
                raise
            self.commits["lost"] += 1

    def _rewrite_data(self, name: TableName) -> int:
        options = "map('min-input-files', '2', 'delete-file-threshold', '1')"
        return self._call("rewrite_data_files", name, f", options => {options}")

    def _rewrite_manifests(self, name: TableName) -> int:
        return self._call("rewrite_manifests", name)

    def _call(self, procedure: str, name: TableName, more: str = "") -> int:
        row = self._spark.sql(
            f"CALL {CATALOG}.system.{procedure}(table => '{name.target}'{more})"
        ).first()
        assert row is not None
        return int(row[0] > 0)

    def _expire(self, name: TableName) -> int:
        """Also what tags would keep: nothing is left of the past but main and branches under way."""
        table = IcebergTable.load(self._spark, name)
        assert table is not None
        tags = [each for each, ref in dict(table.java.refs()).items() if ref.isTag()]
        if tags:
            change = table.java.manageSnapshots()
            for tag in tags:
                change = change.removeTag(tag)
            change.commit()
        now_ms = int(time.time() * 1000)
        table.java.expireSnapshots().expireOlderThan(now_ms).retainLast(1).commit()
        return 1


def test_f23_f24_maintenance_in_a_loop_beside_the_pipeline(
    subject: Callable[[int], Subject],
) -> None:
    """Compaction moves main under the batches, and expiry takes the snapshots with the markers."""
    run = subject(23)
    run.run()
    maintenance = Maintenance(run)
    maintenance.start()
    for _ in range(4):
        run.change_each()
        run.work(2)
        apply_with_retries(run, run.stage())
        run.advance()
    maintenance.stop()
    done = maintenance.commits
    assert done["_rewrite_data"], done
    assert done["_expire"], done
    assert not run.left_branches()
    # From here on alone: the judge looks for the tag of the last batch.
    run.change_each()
    run.finish()


def apply_with_retries(run: Subject, batch: Batch) -> None:
    """Apply as Airflow does."""
    for attempt in range(_RETRIES):
        try:
            run.apply(batch)
        except PublishRefused:
            if attempt == _RETRIES - 1:
                raise
        else:
            return
