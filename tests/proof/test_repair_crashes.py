"""A repair is killed at each of its steps, and nothing is lost: what was asked for is done."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch.answers import REPAIR
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.repairs import leave_request, waiting_requests
from airflow_provider_pgoutput.proof.verify import verify
from tests.faults.processes import apply_attached, run_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.proof.worlds import World

_TASK = Path(__file__).with_name("verify_task.py")
_TABLES = """
CREATE TABLE items (id int PRIMARY KEY, v text);
CREATE TABLE others (id int PRIMARY KEY, v text);
INSERT INTO items SELECT i, 'v' FROM generate_series(1, 50) i;
INSERT INTO others SELECT i, 'v' FROM generate_series(1, 50) i;
CREATE PUBLICATION p FOR TABLE items, others;
"""
_DAMAGE = (
    "UPDATE {}.items SET v = 'damaged' WHERE id IN (1, 2)",
    "DELETE FROM {}.items WHERE id = 3",
    "INSERT INTO {}.others VALUES (99, 'surplus')",
)


@pytest.fixture(scope="module")
def world(new_world: Callable[..., World]) -> World:
    world = new_world(("p",))
    world.sql(_TABLES)
    world.run()
    return world


def _assert_equal(world: World) -> None:
    assert [str(each) for each in world.verify().different] == []


def test_a_task_that_dies_after_its_request_leaves_a_repair_that_is_done(world: World) -> None:
    world.damage(*_DAMAGE)
    request = world.request(on_difference=REPAIR)
    killed: list[bool] = []

    def verify_and_die() -> None:
        body = dataclasses.asdict(request)
        killed.append(run_program(_TASK, body, "verify.after_repair_request"))

    task = threading.Thread(target=verify_and_die, daemon=True)
    task.start()
    area, slot_name = StagingArea(request.staging_uri), request.slot_name
    # The runs of the pipeline for which the task waits. None may take up the repair: the task dies first.
    while task.is_alive() and not waiting_requests(area, slot_name):
        world.run()
    task.join()
    assert killed == [True]
    for _ in range(2):
        world.run()
    assert not waiting_requests(area, slot_name)
    _assert_equal(world)


@pytest.mark.parametrize(
    "point",
    [
        "apply.after_row_delta",
        "apply.between_publishes",
        "apply.before_checkpoint",
        *(
            pytest.param(f"apply.{each}", marks=pytest.mark.exhaustive)
            for each in (
                "after_branch",
                "before_row_delta",
                "before_publish",
                "after_prepare",
                "after_publish",
                "after_checkpoint",
            )
        ),
    ],
)
def test_a_killed_apply_of_a_repair_is_repeated(world: World, point: str) -> None:
    world.damage(*_DAMAGE)
    request = world.request(on_difference=REPAIR)
    proof = verify(request, world.run)
    keys = [each.to_repair for each in proof.tables if each.to_repair is not None]
    assert len(keys) == 2
    area = StagingArea(request.staging_uri)
    left = leave_request(area, request.slot_name, proof.system_identifier, keys, 600)
    batch = world.pipeline.stage()
    assert not left.is_waiting(), "the batch has the rows"
    assert apply_attached(world.pipeline, batch, point), f"{point} was not reached"
    # The killed apply comes again behind a change of a key that it repairs.
    world.sql("UPDATE items SET v = 'later' WHERE id = 1")
    for _ in range(2):
        world.run()
    _assert_equal(world)
