"""F10 to F12: the Spark driver killed between any two of its durable steps, then run again.

The crash points are found in the source. Each kills the driver of a real spark-submit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch.checkpoint import MESSAGES_TABLE
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from tests.conformance.compare import connect
from tests.faults.crash_points import crash_points
from tests.faults.processes import apply_in_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from quickstart.spark import LocalLake
    from tests.faults.conftest import Subject

pytestmark = pytest.mark.submit

#: Those of a replay are swept in ``tests/apply/test_replay.py``.
POINTS = [each for each in crash_points("apply") if not each.startswith("replay.")]
#: What only the run that makes the tables passes, and what is worth a kill there too.
ONLY_IN_THE_FIRST_RUN = {"apply.after_copy"}
ALSO_IN_THE_FIRST_RUN = {"apply.between_publishes"}
#: Where the driver itself writes the rows of a table. Random changes may all be of a kind that it leaves to
#: Spark.
OF_FEW = {"apply.before_row_delta", "apply.after_row_delta"}
#: Where every test run kills a whole driver; at the others ``test_kill_sweep.py`` and ``make test ALL=1`` do.
ALWAYS = {"apply.after_prepare", "apply.before_checkpoint"}


def test_there_are_crash_points() -> None:
    assert set(POINTS) > ALWAYS
    assert set(POINTS) > OF_FEW
    assert set(POINTS) > ONLY_IN_THE_FIRST_RUN | ALSO_IN_THE_FIRST_RUN


@pytest.mark.parametrize(
    "point",
    [
        each if each in ALWAYS else pytest.param(each, marks=pytest.mark.exhaustive)
        for each in POINTS
        if each not in ONLY_IN_THE_FIRST_RUN
    ],
)
def test_killed_apply_is_repeated_without_loss(
    point: str, subject: Callable[[int], Subject], local_lake: LocalLake
) -> None:
    run = subject(100 + POINTS.index(point))
    run.run()
    if point in OF_FEW:
        run.change_each()
    else:
        run.work()
    with connect(run.pipeline.conninfo) as session:
        session.execute("SELECT pg_logical_emit_message(true, 'crash', 'once')")
    batch = run.stage(options=StreamOptions(messages=True))
    assert apply_in_process(run.pipeline, batch, point, local_lake), f"{point} was not reached"
    run.judge.after_any_run()
    run.apply(batch)
    run.advance()
    run.work()
    run.finish()
    messages = f"lake.{run.pipeline.namespace}.{MESSAGES_TABLE}"
    assert run.pipeline.spark.table(messages).count() == 1


@pytest.mark.parametrize(
    "point",
    [
        *sorted(ALSO_IN_THE_FIRST_RUN),
        # ``tests/apply/test_crashes.py`` kills here in every run, without a driver of its own.
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in sorted(ONLY_IN_THE_FIRST_RUN)
        ),
    ],
)
def test_killed_first_apply_is_repeated_without_loss(
    point: str, subject: Callable[[int], Subject], local_lake: LocalLake
) -> None:
    run = subject(200 + POINTS.index(point))
    first = run.stage()
    assert apply_in_process(run.pipeline, first, point, local_lake), f"{point} was not reached"
    run.judge.after_any_run()
    run.apply(first)
    run.advance()
    run.work()
    run.finish()
