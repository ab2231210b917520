"""A verification that waits in its worker is killed at each of its steps. It leaves at most a mark."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from tests.faults.crash_points import crash_points
from tests.faults.processes import run_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.proof.worlds import World

_TASK = Path(__file__).with_name("verify_task.py")
#: Points that only a repair reaches (``test_repair_crashes.py``), or totals that are held (``test_held.py``).
_ELSEWHERE = {"verify.after_repair_request", "verify.after_totals", "verify.after_wait"}
#: The mark is there, because its wait did not end.
_LEAVES_MARK = {"verify.after_mark"}
_TABLES = """
CREATE TABLE items (id int PRIMARY KEY, v text);
CREATE TABLE bag (v text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO items SELECT i, 'v' FROM generate_series(1, 50) i;
INSERT INTO bag SELECT 'v' FROM generate_series(1, 50) i;
CREATE PUBLICATION p FOR TABLE items, bag;
"""


@pytest.fixture(scope="module")
def world(new_world: Callable[..., World]) -> World:
    world = new_world(("p",))
    world.sql(_TABLES)
    world.run()
    return world


def _sessions_and_slots(world: World) -> tuple[int, int]:
    """What the server still has of verifications."""
    with psycopg.connect(world.pipeline.conninfo) as session:
        row = session.execute(
            "SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            "                 AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()),"
            " (SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'pgoutput_proof%')"
        ).fetchone()
    assert row is not None
    return row[0], row[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", [*(each for each in crash_points("proof") if each not in _ELSEWHERE)]
)
def test_a_killed_verification_leaves_at_most_a_mark(world: World, point: str) -> None:
    world.sql("UPDATE items SET v = v || '.' WHERE id < 9; INSERT INTO bag VALUES ('more')")
    request = dataclasses.replace(world.request(), wait_seconds=600)
    killed: list[bool] = []
    task = threading.Thread(
        target=lambda: killed.append(run_program(_TASK, dataclasses.asdict(request), point)),
        daemon=True,
    )
    task.start()
    area, folder = StagingArea(request.staging_uri), layout.mark_folder(request.slot_name)
    while task.is_alive():
        # The verification waits for these runs, at the points behind the wait.
        world.run()
    task.join()
    assert killed == [True]
    deadline = time.monotonic() + 60
    while _sessions_and_slots(world) != (0, 0):
        assert time.monotonic() < deadline, "the server keeps a snapshot or a slot"
        time.sleep(0.2)
    marks = [layout.parse_mark_name(name) for name in area.names(folder)]
    assert len(marks) == (point in _LEAVES_MARK)
    # The pipeline goes on past the mark, and the next verification proves the tables.
    world.sql("UPDATE items SET v = 'later' WHERE id = 1")
    target = world.pipeline.flush_lsn()
    ends = [each.manifest.end_lsn for each in world.pipeline.drain(target)]
    assert ends[-1] >= target
    assert [str(each) for each in world.verify().tables if not each.is_equal] == []
    for name in area.names(folder):
        area.delete_file(f"{folder}/{name}")
