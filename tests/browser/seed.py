"""Fills an Airflow with what runs of pipelines told: ``python tests/browser/seed.py`` in its environment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import update

from airflow_provider_pgoutput.tasks.progress import KEY
from airflow_provider_pgoutput.tasks.proof_event import difference_key

#: Tables of each run, and runs.
TABLES, RUNS = 1000, 100
#: Pipelines of DAGs that have several: DAG, task and map index.
_DAGS_OF_SEVERAL = {
    "left": ("two_dag", "left.apply", -1),
    "right": ("two_dag", "right.apply", -1),
    "mapped57": ("mapped_dag", "pipeline.apply", 57),
    "mapped58": ("mapped_dag", "pipeline.apply", 58),
}
MARKUP = "<script>document.title = 'run'</script>"


def told(run: int, tables: int, ended: datetime, **more: Any) -> dict[str, Any]:
    """The facts of a run, as ``tasks/run_event.py`` writes them."""
    shown = range(run * 20 % tables, run * 20 % tables + 20)
    facts = {
        "schema_version": 1,
        "slot_name": "shop",
        "namespace": "shop",
        "batch_id": "b" * 16,
        "start_lsn": f"0/{run:X}0",
        "end_lsn": f"0/{run + 1:X}0",
        "complete_until": (ended - timedelta(seconds=20 + run)).isoformat(),
        "changes": 10 * run,
        "stage_seconds": 1.5,
        "apply_seconds": 20.5,
        "publish_seconds": 2.5,
        "slot": {
            "retained_bytes": run * 10**6,
            "wal_status": "reserved",
            "safe_wal_size_bytes": 10**9,
            "wal_limit_bytes": 10**9,
        },
        "totals": {"inserts": 10 * run, "copied": 3},
        "tables": {f"public.t{number:04}": {"inserts": number + 1} for number in shown},
        "tables_left_out": tables - 20,
    }
    return facts | more


def prove(session: Any, now: datetime, slot: str, dag_id: str, task_id: str) -> None:
    """Write the events of two verifications of a pipeline. The older one found a difference."""
    uri = f"pgoutput-proof://db.example.com:5432/app/{slot}"
    asset = AssetModel(name=uri, uri=uri, group="asset", extra={})
    session.add(asset)
    session.flush()
    facts = {
        "schema_version": 1,
        "slot_name": slot,
        "lsn": "0/640",
        "tables": 1000,
        "equal": 1000,
        "different": 0,
        "not_compared": 0,
        "rows": 123456,
        "seconds": 7.5,
    }
    older = {"lsn": "0/500", "equal": 997, "different": 1, "not_compared": 2}
    older |= {"different_tables": ["public.t0007"], "rows": 120_000, "seconds": 8.5}
    for hours, more in ((27, older), (3, {})):
        session.add(
            AssetEvent(
                asset_id=asset.id,
                extra={"pgoutput_proof": facts | more},
                source_dag_id=dag_id,
                source_task_id=task_id,
                source_run_id="first",
                source_map_index=-1,
                timestamp=now - timedelta(hours=hours),
            )
        )


def leave_differences(session: Any) -> None:
    """Write what a failed verification of ``late`` leaves, and what one that succeeded returned."""
    of_table = {"table_name": "public.t0001", "is_equal": True, "source_rows": 42}
    part = {"table_name": "public.other", "is_equal": True, "share_number": 3, "share_of": 100}
    of_task = {"task_id": "apply", "run_id": "first", "session": session}
    XComModel.set(
        key="return_value",
        value={"lsn": "0/640", "tables": [of_table, part]},
        dag_id="verify_dag",
        **of_task,
    )
    differs = {"table_name": "public.t0003", "is_equal": False, "source_rows": 7}
    facts = {
        "schema_version": 1,
        "slot_name": "late",
        "lsn": "0/700",
        "tables": 20,
        "equal": 19,
        "different": 1,
        "different_tables": ["public.t0003"],
        "not_compared": 0,
        "rows": 1900,
        "seconds": 1.5,
        "found": {"lsn": "0/700", "tables": [differs]},
    }
    key = difference_key("pgoutput-proof://db.example.com:5432/app/late")
    XComModel.set(key=key, value=facts, dag_id="late_dag", **of_task)


def change_tables(session: Any, now: datetime) -> None:
    """Write the events of more tables, changed by a run of ``danger_dag``, than the page asks for at once."""
    for number in range(120):
        uri = f"iceberg://lake/shop/t{number:04}"
        asset = AssetModel(name=uri, uri=uri, group="asset", extra={})
        session.add(asset)
        session.flush()
        session.add(
            AssetEvent(
                asset_id=asset.id,
                extra={},
                source_dag_id="danger_dag",
                source_task_id="apply",
                source_run_id="run_0",
                source_map_index=-1,
                timestamp=now,
            )
        )


def first_copy(session: Any, now: datetime) -> None:
    """Let two runs work that were triggered. One tells how far its copy is, one logged it."""
    for model in (DagRun, TaskInstance):
        working = model.dag_id.in_(("copy_dag", "logging_dag"))
        session.execute(update(model).where(working).values(state="running"))
    facts = {
        "schema_version": 1,
        "at": now.isoformat(),
        "what": "copy",
        "tables_done": 3,
        "tables": 12,
        "bytes_done": 1_200_000_000,
        "bytes": 4_800_000_000,
        "rows": 6_000_000,
        "rows_per_second": 50_000,
        "seconds_left": 360,
    }
    XComModel.set(
        key=KEY, value=facts, dag_id="copy_dag", task_id="apply", run_id="first", session=session
    )


def main() -> None:
    """Write the events of a healthy pipeline with many tables, of others in trouble, and of a first copy."""
    now = datetime.now(UTC)
    danger = {
        "slot": {
            "retained_bytes": 10**9,
            "wal_status": "unreserved",
            "warnings": ["Slot danger is past max_slot_wal_keep_size."],
        }
    }
    aside = {"set_aside": 2, "set_aside_tables": ["public.t0001", "public.t0002"]}
    trouble: dict[str, dict[str, Any]] = {
        "danger": danger,
        "aside": aside,
        "failed": {},
        "late": {},
        "retry": {},
        # Two pipelines of one DAG. The tasks of one failed.
        "left": {},
        "right": {},
        # Two of a mapped task group.
        "mapped57": {},
        "mapped58": {},
        "waiting": {},
        "old": aside,
    }
    hours_ago = {"late": 10, "waiting": 100, "old": 720}
    changed = {"schema_changes": {"public.t0001": [f"column due was added, date {MARKUP}"]}}
    with create_session() as session:
        first_copy(session, now)
        change_tables(session, now)
        leave_differences(session)
        few = ((slot, 3 if slot == "late" else 1, 20) for slot in trouble)
        for slot, runs, tables in (("shop", RUNS, TABLES), *few):
            uri = f"pgoutput://db.example.com:5432/app/{slot}"
            asset = AssetModel(name=uri, uri=uri, group="asset", extra={})
            session.add(asset)
            session.flush()
            if slot == "shop":
                prove(session, now, slot, "verify_dag", "apply")
            if slot == "aside":
                # The newest run of this DAG failed, so it found a difference and told nothing.
                prove(session, now, slot, "failed_dag", "stage")
            newest = now - timedelta(hours=hours_ago.get(slot, 0))
            dag_id, task_id, map_index = _DAGS_OF_SEVERAL.get(slot, (f"{slot}_dag", "apply", -1))
            for run in range(runs):
                ended = newest - timedelta(minutes=5 * (runs - run))
                more = trouble.get(slot, changed if run == runs - 1 else {})
                session.add(
                    AssetEvent(
                        asset_id=asset.id,
                        extra={"pgoutput": told(run, tables, ended, **more)},
                        source_dag_id=dag_id,
                        source_task_id=task_id,
                        source_run_id=f"run_{run}",
                        source_map_index=map_index,
                        timestamp=ended,
                    )
                )


if __name__ == "__main__":
    main()
