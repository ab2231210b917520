"""The watch over I4 itself: it sees a slot that was early and came right before the task ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.capture.request import AFTER_APPLY

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from tests.faults.conftest import Subject


def move_slot(run: Subject, end: Lsn) -> None:
    with psycopg.connect(run.pipeline.conninfo, autocommit=True) as session:
        session.execute(
            "SELECT pg_replication_slot_advance(%s, %s)", (run.pipeline.slot_name, str(end))
        )
    run.watch.wait_for_a_look()


def test_a_slot_that_moves_before_the_checkpoint_is_seen(subject: Callable[..., Subject]) -> None:
    run = subject(41, advance=AFTER_APPLY)
    first = run.run()
    created_at = first.manifest.start_lsn
    run.work()
    batch = run.stage()
    run.watch.wait_for_a_look()
    assert run.watch.early(created_at) == []
    move_slot(run, batch.manifest.end_lsn)
    run.pipeline.apply(batch)
    run.advance()
    confirmed, checkpoint = run.pipeline.confirmed_flush_lsn(), run.pipeline.checkpoint()
    assert checkpoint is not None
    assert confirmed == checkpoint.end_lsn == batch.manifest.end_lsn, "all is well, afterwards"
    (early,) = run.watch.early(created_at)
    assert early.confirmed == batch.manifest.end_lsn
    assert early.kept == first.manifest.end_lsn
    with pytest.raises(AssertionError, match="I4"):
        run.judge.at_the_end([first, batch], run.workload.journal_changes)


def test_a_slot_that_moves_before_there_is_a_checkpoint_is_seen(
    subject: Callable[[int], Subject],
) -> None:
    run = subject(42)
    first = run.stage()
    run.work()
    end = run.pipeline.flush_lsn()
    move_slot(run, end)
    (early,) = run.watch.early(first.manifest.start_lsn)
    assert early.confirmed == end
    assert early.kept is None
