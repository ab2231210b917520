"""F01 to F05 where a slot is lost: killed while it is replaced by a new one and all tables are copied again.

What is not here: what a lost slot costs when nothing is killed (``test_lost_slot.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from tests.faults.processes import apply_attached, stage_in_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.conftest import Subject


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
#: In the order in which the apply of the copies passes them.
APPLY_POINTS = (
    "apply.after_columns",
    "apply.after_branch",
    "apply.after_copy",
    "apply.before_publish",
    "apply.after_prepare",
    "apply.after_publish",
    "apply.between_publishes",
    "apply.before_checkpoint",
    "apply.after_checkpoint_table",
    "apply.after_checkpoint",
)


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
    run = lost_slot(subject(390 + POINTS.index(point)))
    before = run.pipeline.snapshot_ids()
    assert stage_in_process(run.pipeline, point, on_slot_lost="copy"), f"{point} was not reached"
    run.work()
    # The slot is past the checkpoint until the batch is applied, so nobody judges its position here.
    batch = run.pipeline.stage(on_slot_lost="copy")
    assert run.pipeline.snapshot_ids() == before
    run.apply(batch)
    went_on(run)


@pytest.mark.exhaustive
def test_killed_while_the_copies_are_applied(subject: Callable[[int], Subject]) -> None:
    """The same batch is killed at every point that its apply passes, one after the other."""
    run = lost_slot(subject(399))
    # The applies borrow this JVM, which ends what the other tables' threads began.
    run.judge.writers_live_on = True
    batch = run.pipeline.stage(on_slot_lost="copy")
    run.work()
    for point in APPLY_POINTS:
        assert apply_attached(run.pipeline, batch, point), f"{point} was not reached"
    run.apply(batch)
    went_on(run)


def lost_slot(run: Subject) -> Subject:
    """Somebody drops the slot and makes it again; with two_phase it is of no use then, and replaced."""
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
    return run


def went_on(run: Subject) -> None:
    """The pipeline goes on from the copies."""
    run.judge.check_positions()
    run.work()
    run.catch_up(on_slot_lost="copy")
    del run.judge.states[:-1]
    run.judge.after_any_run()
