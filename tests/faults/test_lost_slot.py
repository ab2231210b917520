"""F38 and F42 with on_slot_lost="copy": a slot that is gone, and a lake that is whole again in one batch.

That such a slot is refused otherwise is shown in ``tests/capture``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.errors import SlotNotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.conftest import Subject

pytestmark = [pytest.mark.postgres, pytest.mark.spark]


def test_f38_f42_a_lost_slot_costs_a_copy_and_no_row(subject: Callable[[int], Subject]) -> None:
    run = subject(38)
    run.run()
    run.work()
    with psycopg.connect(run.pipeline.conninfo, autocommit=True) as session:
        session.execute("SELECT pg_drop_replication_slot(%s)", (run.pipeline.slot_name,))
    with pytest.raises(SlotNotFound):
        run.pipeline.stage()
    before = run.pipeline.snapshot_ids()
    # The slot that this makes is past the checkpoint until the batch is applied, so nobody judges here.
    batch = run.pipeline.stage(on_slot_lost="copy")
    assert run.pipeline.snapshot_ids() == before
    run.apply(batch)
    run.judge.check_positions()
    run.work()
    run.catch_up(on_slot_lost="copy")
    assert not any(table.copy_lsn for each in run.applied[2:] for table in each.manifest.tables), (
        "a sound slot is read, and nothing is copied"
    )
    del run.judge.states[:-1]
    run.judge.after_any_run()
