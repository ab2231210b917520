"""The slot is read again from a saved LSN: what was lost is staged again, and nothing is applied twice.

Which positions are refused is shown in ``tests/capture/test_read_again.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.request import AFTER_APPLY
from airflow_provider_pgoutput.capture.staging.archive import batches_between
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.errors import BatchRefused
from tests.apply.build import replay_of
from tests.conformance.compare import connect
from tests.faults.workload import LOG_TABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.conftest import Subject


def reached(run: Subject) -> Lsn:
    checkpoint = run.pipeline.checkpoint()
    assert checkpoint is not None
    return checkpoint.end_lsn


def test_lost_batches_are_staged_again_and_applied_once(subject: Callable[..., Subject]) -> None:
    run = subject(71, advance=AFTER_APPLY)
    run.run()
    saved = reached(run)
    for _ in range(2):
        run.work(2)
        run.change_each()
        run.apply(run.stage())
    run.work(2)
    run.change_each()
    lost = run.stage()
    path = run.pipeline.staging / lost.manifest.paths[0]
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(BatchRefused, match="damaged"):
        run.apply(lost)
    # The archive is lost as well.
    for batch in run.applied[1:]:
        for name in (*batch.manifest.paths, batch.uri.partition(f"{run.pipeline.staging}/")[2]):
            (run.pipeline.staging / name).unlink()
    again = run.stage(start_lsn=saved)
    assert again.manifest.start_lsn == saved
    run.apply(again)
    run.advance()
    run.work(2)
    run.run()
    # And is whole again: tables can go back to the saved position, and forward.
    area = StagingArea(run.pipeline.staging.as_uri())
    chain = batches_between(area, run.pipeline.slot_name, saved)
    assert again.manifest.batch_id in [each.batch_id for each in chain]
    wanted = replay_of(
        run.pipeline.plan(again),
        [each.manifest_uri for each in chain],
        tables=("public.account", "public.bag"),
        in_place=True,
    )
    replay(run.pipeline.spark, wanted)
    run.judge.after_any_run()
    run.applied[:] = [run.applied[0], *run.applied[3:]]
    run.finish()


def test_what_was_left_out_on_request_does_not_come_back(
    subject: Callable[..., Subject],
) -> None:
    """A table that nothing else changed lately knows of no later position than the checkpoint."""
    run = subject(72, advance=AFTER_APPLY)
    run.run()
    saved = reached(run)
    with connect(run.pipeline.conninfo) as session:
        session.execute("INSERT INTO journal VALUES (900, 'left out')")
        session.execute("DELETE FROM journal WHERE id = 900")
    sealed = run.pipeline.stage().manifest
    (journal,) = [each for each in sealed.tables if each.table_name == LOG_TABLE]
    files = [str(run.pipeline.staging / f.path) for v in journal.versions for f in v.files]
    rows = run.pipeline.spark.read.parquet(*files).select("commit_lsn").collect()
    batch = run.stage(skip_lsns=[Lsn(row[0]) for row in rows])
    assert len(batch.manifest.skipped) == 2
    run.apply(batch)
    run.work(2)
    run.apply(run.stage(start_lsn=saved))
    run.advance()
    run.change_each()
    run.finish()
