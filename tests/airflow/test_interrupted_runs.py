"""F06: a task killed when its XCom was pushed and its success was not recorded, then tried again."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from tests.airflow.command_line import run as run_command
from tests.airflow.example_pipeline import TABLES, RunState, newest_run, run_state

if TYPE_CHECKING:
    from tests.airflow.example_pipeline import Pipeline

pytestmark = pytest.mark.submit

PROGRAM = str(Path(__file__).with_name("interrupted_run.py"))
NEVER = (None, 0)


def killed(pipeline: Pipeline, *arguments: str) -> RunState:
    """Run the program, which dies in the task that the last argument names."""
    status = pipeline.python(PROGRAM, *arguments)
    assert status == -signal.SIGKILL, pipeline.log[-5000:]
    return newest_run()


def resumed(pipeline: Pipeline) -> RunState:
    """Take up the newest run and let it go to its end."""
    assert pipeline.python(PROGRAM, "resume") == 0, pipeline.log[-5000:]
    return newest_run()


def positions(pipeline: Pipeline) -> tuple[Lsn, Lsn | None]:
    """Where the slot is, and the checkpoint."""
    with psycopg.connect(pipeline.conninfo) as session:
        row = session.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'shop'"
        ).fetchone()
    assert row is not None
    checkpoint = read_checkpoint("lake", pipeline.lake.pyiceberg_properties(), "shop", "shop")
    return Lsn.parse(row[0]), checkpoint.end_lsn if checkpoint else None


def snapshots(pipeline: Pipeline) -> dict[str, int]:
    """Main's head of every table, the checkpoint's table too."""
    catalog = pipeline.lake_catalog()
    names = [f"shop.{name}" for name in (*TABLES.values(), "pgoutput_checkpoint")]
    return {name: catalog.load_table(name).current_snapshot().snapshot_id for name in names}


def change_source(pipeline: Pipeline) -> None:
    with psycopg.connect(pipeline.conninfo) as session:
        session.execute("UPDATE orders SET price = price + 1 WHERE id % 7 = 0")
        session.execute("DELETE FROM sales.lines WHERE a = (SELECT min(a) FROM sales.lines)")
        session.execute("INSERT INTO orders SELECT max(id) + 1, 'late', 1 FROM orders")


def killed_in_stage(pipeline: Pipeline) -> dict[str, Any]:
    """Begin a DAG run whose stage task dies in its first try; the batch that it told."""
    run = killed(pipeline, "start", pipeline.conf(), "stage")
    assert run.tasks == {"stage": ("running", 1), "apply": NEVER, "advance": NEVER}
    change_source(pipeline)  # None of it is in the batch that was told.
    batch: dict[str, Any] = run.values["stage"]
    return batch


def lasting(batch: dict[str, Any]) -> dict[str, Any]:
    """What each try tells of a batch. How the slot stood and how long it took differs from try to try."""
    of_the_try = {"slot", "stage_seconds"}
    return {name: value for name, value in batch.items() if name not in of_the_try}


def sealed_batches(pipeline: Pipeline) -> int:
    staging = Path(pipeline.staging_uri.removeprefix("file://"))
    return len(list((staging / "shop" / "manifests").glob("*.json")))


@pytest.mark.further
def test_f06_a_task_killed_after_its_xcom_is_repeated_with_the_same_batch(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    """F06: in the first run each task dies once; in the next one, which has changes, stage does."""
    wanted = pipeline.source_rows()
    batch = killed_in_stage(pipeline)
    first_run_id = newest_run().run_id
    end = Lsn.parse(batch["end_lsn"])
    began, checkpoint = positions(pipeline)
    assert checkpoint is None

    run = killed(pipeline, "resume", "apply")
    assert run.tasks == {"stage": ("success", 2), "apply": ("running", 1), "advance": NEVER}
    assert lasting(run.values["stage"]) == lasting(batch), "the retry told another batch"
    assert sealed_batches(pipeline) == 1
    assert run.values["apply"]["applied"] is True
    # As far as Airflow knows the task still runs, so nobody has to run another.
    code, (note,) = run_command(
        capsys, "doctor", "--slot-name", "shop", "--namespace", "shop", "--catalog-name", "lake"
    )
    assert (code, note["where"]) == (0, "run")
    assert "pgoutput_to_iceberg.apply" in note["what"]
    assert positions(pipeline) == (began, end), "the slot moved before its task"
    published = snapshots(pipeline)
    assert pipeline.lake_rows() == wanted

    run = killed(pipeline, "resume", "advance")
    assert run.tasks == {
        "stage": ("success", 2),
        "apply": ("success", 2),
        "advance": ("running", 1),
    }
    assert run.values["apply"]["applied"] is False
    assert positions(pipeline) == (end, end)

    run = resumed(pipeline)
    assert set(run.tasks.values()) == {("success", 2)}
    assert run.values["advance"]["confirmed_flush_lsn"] == batch["end_lsn"]
    assert snapshots(pipeline) == published, "a retry wrote to the lake"
    assert pipeline.lake_rows() == wanted

    wanted = pipeline.source_rows()
    batch = killed_in_stage(pipeline)
    assert Lsn.parse(batch["start_lsn"]) == end
    assert positions(pipeline) == (end, end)
    run = resumed(pipeline)
    assert run.tasks == {
        "stage": ("success", 2),
        "apply": ("success", 1),
        "advance": ("success", 1),
    }
    assert lasting(run.values["stage"]) == lasting(batch)
    assert batch["changes"] > 0
    assert sealed_batches(pipeline) == 2
    assert positions(pipeline) == (Lsn.parse(batch["end_lsn"]),) * 2
    assert pipeline.lake_rows() == wanted
    a_whole_old_run_is_cleared(pipeline, first_run_id, Lsn.parse(batch["end_lsn"]))


def a_whole_old_run_is_cleared(pipeline: Pipeline, run_id: str, at: Lsn) -> None:
    """F16: its stage task, too, which goes on from the checkpoint and not from where the run began."""
    wanted = pipeline.source_rows()
    assert pipeline.python(PROGRAM, "clear", run_id) == 0, pipeline.log[-5000:]
    assert pipeline.python(PROGRAM, "resume") == 0, pipeline.log[-5000:]
    run = run_state(run_id)
    assert set(run.tasks.values()) == {("success", 3)}
    assert Lsn.parse(run.values["stage"]["start_lsn"]) == at
    end = Lsn.parse(run.values["stage"]["end_lsn"])
    assert positions(pipeline) == (end, end)
    assert pipeline.lake_rows() == wanted
