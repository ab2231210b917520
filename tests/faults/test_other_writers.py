"""F23 to F25: others at the tables: maintenance in a loop, a user's DELETE and ALTER, a rollback."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.iceberg.jvm import JAVA_ERRORS, java_classes
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.errors import PublishRefused, TableRolledBack
from tests.apply.build import replay_of
from tests.conformance.compare import connect
from tests.conformance.pipeline import CATALOG
from tests.faults.workload import LOG_TABLE, UPSERT_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.conformance.pipeline import Batch
    from tests.faults.conftest import Subject


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


@pytest.mark.slow
def test_f23_f24_maintenance_in_a_loop_beside_the_pipeline(
    subject: Callable[[int], Subject],
) -> None:
    """Compaction moves main under the batches, and expiry takes the snapshots with the markers."""
    run = subject(23)
    run.run()
    maintenance = Maintenance(run)
    maintenance.start()
    done, works = maintenance.commits, ("_rewrite_data", "_rewrite_manifests", "_expire")
    try:
        for number in range(40):
            if number >= 4 and all(map(done.get, works)):
                break
            run.change_each()
            run.work(2)
            apply_with_retries(run, run.stage())
            run.advance()
    finally:
        maintenance.stop()
    assert all(map(done.get, works)), done
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


def test_f25_a_delete_that_lands_while_a_batch_is_prepared_stays(
    subject: Callable[[int], Subject],
) -> None:
    """The batch is prepared again on what the user left, whenever main moved below its branches."""
    run = subject(251)
    spark = run.pipeline.spark.newSession()
    names = {each: TableName(CATALOG, run.pipeline.namespace, each) for each in UPSERT_TABLES}
    run.run()
    # None of these rows is in the batch.
    for point, gone in (
        ("apply.after_branch", {"account": "id = 7", "bag": "x = 3"}),
        ("apply.after_prepare", {"account": "id = 8", "bag": "x = 0"}),
    ):
        left: dict[str, int | None] = {}

        def delete(
            reached: str,
            point: str = point,
            gone: dict[str, str] = gone,
            left: dict[str, int | None] = left,
        ) -> None:
            if reached != point or left:
                return
            for table, rows in gone.items():
                left[table] = None  # Other tables reach the point meanwhile.
                # Iceberg refuses a DELETE by what its cache holds of a table that has moved.
                spark.catalog.refreshTable(names[table].sql)
                spark.sql(f"DELETE FROM {names[table].sql} WHERE {rows}")
                left[table] = head(spark, names[table])

        run.change_each()
        batch = run.stage()
        with crash_points.watched(delete):
            run.pipeline.apply(batch)
        run.applied.append(batch)
        assert set(left) == set(gone)
        for table, name in names.items():
            found = IcebergTable.load(spark, name)
            assert found is not None
            snapshots = [int(each.snapshotId()) for each in found.history()]
            assert left[table] in snapshots[1:], f"{table}: the batch is not on top of the DELETE"
            marker = found.marker(run.pipeline.slot_name)
            assert marker is not None
            assert marker.batch_id == batch.manifest.batch_id
        assert not run.left_branches()
        # Without the user's rows the lake is what the source is without them, and nothing else.
        with connect(run.pipeline.conninfo) as session:
            for table, rows in gone.items():
                assert session.execute(f"DELETE FROM {table} WHERE {rows}").rowcount
        run.judge.remember_source()
        del run.judge.states[:-1]
        run.judge.after_any_run()
        run.advance()
        # A table without a key needs the row that is deleted (RowMissing); the copy is past that.
        run.run(copy_tables=["public.bag"])
    run.work()
    run.finish()


def head(spark: SparkSession, name: TableName) -> int | None:
    table = IcebergTable.load(spark, name)
    return None if table is None else table.head


@pytest.mark.slow
def test_f25_what_users_did_to_a_table_is_noticed_or_undone_by_a_replay(
    subject: Callable[[int], Subject],
) -> None:
    run = subject(25)
    spark, namespace = run.pipeline.spark, run.pipeline.namespace
    names = (*UPSERT_TABLES, LOG_TABLE)
    account, bag, journal = (TableName(CATALOG, namespace, each) for each in names)
    run.run()
    copied = run.table_snapshots()
    run.change_each()
    run.run()
    # A column of their own, and rows that are gone, stop nothing; a wider type is kept.
    spark.sql(f"ALTER TABLE {journal.sql} ADD COLUMN note string")
    spark.sql(f"ALTER TABLE {journal.sql} ALTER COLUMN id TYPE bigint")
    spark.sql(f"DELETE FROM {account.sql} WHERE id > 1")
    run.change_each()
    batch = run.pipeline.stage()
    run.pipeline.apply(batch)
    run.applied.append(batch)
    run.judge.check_positions()
    # A table of an older time has lost what was published since.
    spark.sql(f"CALL {CATALOG}.system.rollback_to_snapshot('{bag.target}', {copied['bag']})")
    run.change_each()
    before = run.table_snapshots()
    batch = run.pipeline.stage()
    for _ in range(2):
        with pytest.raises(TableRolledBack, match="replay") as stop:
            run.pipeline.apply(batch)
        assert stop.value.table == bag.target
        assert stop.value.lsn is not None
    assert run.table_snapshots() == before
    run.judge.check_positions()
    assert not run.left_branches()
    again = replay_of(
        run.pipeline.plan(run.applied[-1]),
        [each.uri for each in run.applied],
        tables=("public.account", "public.bag"),
        in_place=True,
    )
    replay(spark, again)
    run.judge.after_any_run()
    run.apply(batch)
    run.advance()
    run.work()
    run.finish()
