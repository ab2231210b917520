"""The catalog forbids writing to some tables, and allows it again: they come back with the next batch.

What is not here: the batches that are chosen (``tests/tasks/test_lacked_batches.py``), and kills in
processes of their own (``tests/faults/test_set_aside_crashes.py``).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput import crash_points
from tests.conformance.many_tables import Tables
from tests.conformance.test_tables_set_aside import Killed, aside
from tests.conformance.troubles import REST
from tests.faults.rest_catalog import Fault, RestCatalog

if TYPE_CHECKING:
    from quickstart.spark import LocalLake
    from tests.conformance.pipeline import Pipeline

DENIED = ("denied", "denied_log")
EVERY = (*DENIED, "good")


@pytest.mark.further
def test_tables_come_back_by_themselves_when_the_right_is_there(
    pipeline: Pipeline, local_lake: LocalLake, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline.capture_options.update(on_table_refused="set_aside")
    pipeline.plan_options.update(on_table_refused="set_aside", catalog_name=REST)
    rest = RestCatalog(pipeline.spark, local_lake)
    rest.attach(REST)
    tables = Tables(pipeline, logs=("public.denied_log",))
    numbers = itertools.count(10)

    def changes() -> list[str]:
        number = next(numbers)
        return [
            statement.format(name, number)
            for name in EVERY
            for statement in (
                "INSERT INTO {0} VALUES ({1}, 1)",
                "UPDATE {0} SET d = d + 1 WHERE a = 1",
            )
        ]

    try:
        tables.run(
            *(f"CREATE TABLE {name} (a int PRIMARY KEY, d int)" for name in EVERY),
            *(f"INSERT INTO {name} VALUES (1, 1)" for name in EVERY),
            f"CREATE PUBLICATION p FOR TABLE {', '.join(EVERY)}",
        )
        rest.fail(Fault(lambda commit: commit.table in DENIED, 403, commits=False, times=1 << 30))
        for lacking in (1, 2):
            tables.run(*changes())
            found = aside(pipeline)
            assert found.keys() == set(DENIED)
            assert {each.batches for each in found.values()} == {lacking}
            assert {each.refusal.error for each in found.values()} == {"LakeDenied"}
            tables.assert_equal("good")
        assert "Not all of these tables are back: public.denied, public.denied_log" in caplog.text

        # The right is there. The task is killed when they have one of the two batches.
        rest.fail()
        batches = itertools.count(1)

        def kill(point: str) -> None:
            # The first one is the batch with the copies, which ends where the next one starts.
            if point == "replay.after_batch" and next(batches) == 2:
                raise Killed

        with crash_points.watched(kill), pytest.raises(Killed):
            tables.run(*changes())
        found = aside(pipeline)
        assert {each.batches for each in found.values()} == {2}
        assert {each.refusal.error for each in found.values()} == {"LakeDenied"}
        tables.run(*changes())
        assert aside(pipeline) == {}
        tables.assert_equal(*EVERY)
        tables.assert_repeatable()
    finally:
        rest.stop()
