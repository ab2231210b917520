"""F16 to F20: stale and future batches, a mis-wired advance, and a server that forgets its slot."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.errors import BatchGap, BatchRefused
from tests.conformance.compare import connect
from tests.faults.slot_watch import kept_up_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from quickstart.postgres import EmbeddedPostgres
    from tests.faults.conftest import Subject


def test_f16_an_old_batch_applied_again_is_a_no_op(subject: Callable[[int], Subject]) -> None:
    """F16: whoever clears an old run gets the same lake, whatever came after it."""
    run = subject(16)
    old = run.run()
    for _ in range(2):
        run.work()
        run.run()
    before = run.pipeline.snapshot_ids()
    for batch in (old, run.applied[1], old):
        run.pipeline.apply(batch)
        run.judge.after_any_run()
    assert run.pipeline.snapshot_ids() == before
    run.finish()


def test_f17_a_batch_from_the_future_is_refused(subject: Callable[[int], Subject]) -> None:
    """F17: a batch that starts past the checkpoint is a gap, and the slot does not move for it."""
    run = subject(17)
    run.run()
    run.work()
    skipped = run.stage()
    checkpoint = run.pipeline.checkpoint()
    assert checkpoint is not None
    run.work()
    future = run.stage(checkpoint=dataclasses.replace(checkpoint, end_lsn=skipped.manifest.end_lsn))
    assert future.manifest.start_lsn == skipped.manifest.end_lsn
    before = (run.pipeline.snapshot_ids(), run.pipeline.confirmed_flush_lsn())
    with pytest.raises(BatchGap) as refusal:
        run.pipeline.apply(future)
    assert refusal.value.slot == run.pipeline.slot_name
    assert refusal.value.lsn is not None
    assert refusal.value.advice
    run.advance()
    assert (run.pipeline.snapshot_ids(), run.pipeline.confirmed_flush_lsn()) == before
    run.apply(skipped)
    run.apply(future)
    run.finish()


def test_f17_an_altered_manifest_is_refused(subject: Callable[[int], Subject]) -> None:
    """F17: a manifest whose content does not give its id is not applied."""
    run = subject(171)
    run.run()
    run.work()
    batch = run.stage()
    before = run.pipeline.snapshot_ids()
    path = next(run.pipeline.staging.glob(f"*/manifests/*{batch.manifest.batch_id[:16]}.json"))
    text = path.read_text(encoding="utf-8")
    newer = f"{int(batch.manifest.end_lsn) + 8:X}"
    path.write_text(
        text.replace(str(batch.manifest.end_lsn), f"{newer[:-8] or '0'}/{newer[-8:]}"),
        encoding="utf-8",
    )
    with pytest.raises(BatchRefused):
        run.pipeline.apply(batch)
    assert run.pipeline.snapshot_ids() == before
    path.write_text(text, encoding="utf-8")
    run.apply(batch)
    run.finish()


def test_f18_advancing_before_the_apply_moves_to_the_checkpoint_only(
    subject: Callable[[int], Subject],
) -> None:
    """F18: a DAG wired in the wrong order loses nothing; the checkpoint alone moves the slot."""
    run = subject(18)
    run.run()
    run.work()
    batch = run.stage()
    run.advance()
    confirmed, checkpoint = run.pipeline.confirmed_flush_lsn(), run.pipeline.checkpoint()
    assert confirmed is not None
    assert checkpoint is not None
    assert checkpoint.end_lsn < batch.manifest.end_lsn
    kept = kept_up_to(run.pipeline)
    assert kept is not None
    assert confirmed <= kept
    again = run.stage()
    assert again.manifest.changes >= batch.manifest.changes > 0
    run.finish()


def test_f19_a_repeated_advance_is_a_success(subject: Callable[[int], Subject]) -> None:
    """F19: the server moved the slot and the answer was lost; an older position moves nothing."""
    run = subject(19)
    first = run.run()
    run.work()
    batch = run.stage()
    run.apply(batch)
    end = batch.manifest.end_lsn
    with psycopg.connect(run.pipeline.conninfo, autocommit=True) as session:
        session.execute(
            "SELECT pg_replication_slot_advance(%s, %s)", (run.pipeline.slot_name, str(end))
        )
    for _ in range(2):
        run.advance()
        assert run.pipeline.confirmed_flush_lsn() == end
    advance_slot(run.pipeline.reader, run.pipeline.slot_name, first.manifest.end_lsn)
    assert run.pipeline.confirmed_flush_lsn() == end
    run.work()
    run.finish()


def test_f20_what_a_crashed_server_delivers_again_is_not_applied_again(
    subject: Callable[[int], Subject], postgres_server: EmbeddedPostgres
) -> None:
    """F20, C96: the slot's position goes back with the crash; the checkpoint does not."""
    run = subject(20)
    run.run()
    with connect(run.pipeline.conninfo) as session:
        session.execute("CREATE TABLE unpublished(a int)")
        holder = psycopg.connect(run.pipeline.conninfo)
        holder.execute("INSERT INTO unpublished VALUES (1)")
        session.execute("CHECKPOINT")
    # An advance is written to the disk when it moves restart_lsn; this one moves it to the open
    # transaction, and the next one cannot.
    run.work()
    run.run()
    run.work()
    run.run()
    advanced = run.pipeline.confirmed_flush_lsn()
    assert advanced is not None
    postgres_server.stop("immediate")
    holder.close()
    postgres_server.start()
    confirmed = run.pipeline.confirmed_flush_lsn()
    assert confirmed is not None
    assert confirmed < advanced, "the server kept the position: this test shows nothing"
    before = run.pipeline.snapshot_ids()
    batch = run.stage()
    assert batch.manifest.start_lsn >= advanced
    assert batch.manifest.changes == 0
    run.apply(batch)
    after = run.pipeline.snapshot_ids()
    assert {name for name in after if after[name] != before[name]} <= {"pgoutput_checkpoint"}
    run.work()
    run.finish()
