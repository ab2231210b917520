"""F01 to F05 where a slot is lost: killed while it is replaced by a new one and all tables are copied again.

What is not here: what a lost slot costs when nothing is killed (``test_lost_slot.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.capture.source.plugin_options import StreamOptions
from tests.faults.processes import stage_in_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.conftest import Subject

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

#: In the order in which a run passes them; ``make test ALL=1`` kills at the others, too.
POINTS = (
    "stage.after_drop",
    "stage.after_slot",
    "stage.during_copy",
    "stage.after_copied_table",
    "stage.after_files",
    "stage.before_manifest",
    "stage.after_manifest",
)
ALWAYS = {"stage.after_drop", "stage.after_slot"}


@pytest.mark.parametrize(
    "point",
    [
        each if each in ALWAYS else pytest.param(each, marks=pytest.mark.exhaustive)
        for each in POINTS
    ],
)
def test_killed_while_a_lost_slot_is_replaced(
    point: str, subject: Callable[[int], Subject]
) -> None:
    """The slot was dropped and made again by somebody; with two_phase it is of no use, and replaced."""
    run = subject(390 + POINTS.index(point))
    run.pipeline.capture_options["options"] = StreamOptions(two_phase=True)
    run.run()
    run.work()
    name = run.pipeline.slot_name
    with psycopg.connect(run.pipeline.conninfo, autocommit=True) as session:
        session.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        session.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", (name,)
        )
    run.work()
    before = run.pipeline.snapshot_ids()
    assert stage_in_process(run.pipeline, point, on_slot_lost="copy"), f"{point} was not reached"
    run.work()
    # The slot is past the checkpoint until the batch is applied, so nobody judges its position here.
    batch = run.pipeline.stage(on_slot_lost="copy")
    assert run.pipeline.snapshot_ids() == before
    run.apply(batch)
    run.judge.check_positions()
    run.work()
    run.catch_up(on_slot_lost="copy")
    del run.judge.states[:-1]
    run.judge.after_any_run()
