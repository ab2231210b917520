"""Fills an Airflow with what runs of pipelines told: ``python -m tests.browser.seed`` in its environment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.models.asset import AssetEvent, AssetModel
from airflow.utils.session import create_session

#: Tables of each run, and runs.
TABLES, RUNS = 1000, 100
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


def main() -> None:
    """Write the events of a healthy pipeline with many tables, and of one that is in danger."""
    now = datetime.now(UTC)
    danger = {"slot": {"retained_bytes": 10**9, "wal_status": "unreserved"}}
    changed = {"schema_changes": {"public.t0001": [f"column due was added, date {MARKUP}"]}}
    with create_session() as session:
        for slot, runs, tables in (("shop", RUNS, TABLES), ("danger", 1, 20)):
            uri = f"pgoutput://db.example.com:5432/app/{slot}"
            asset = AssetModel(name=uri, uri=uri, group="asset", extra={})
            session.add(asset)
            session.flush()
            for run in range(runs):
                ended = now - timedelta(minutes=5 * (runs - run))
                more = danger if slot == "danger" else changed if run == runs - 1 else {}
                session.add(
                    AssetEvent(
                        asset_id=asset.id,
                        extra={"pgoutput": told(run, tables, ended, **more)},
                        source_dag_id=f"{slot}_dag",
                        source_task_id="apply",
                        source_run_id=f"run_{run}",
                        source_map_index=-1,
                        timestamp=ended,
                    )
                )


if __name__ == "__main__":
    main()
