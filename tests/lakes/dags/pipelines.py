"""The DAGs of the lakes. They name no jar, and maintenance removes orphans; else they are as the examples."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_pgoutput.operators.maintain import PgoutputMaintenanceOperator
from airflow_provider_pgoutput.operators.replay import PgoutputReplayOperator
from airflow_provider_pgoutput.operators.verify import PgoutputVerifyOperator
from airflow_provider_pgoutput.task_groups.pipeline import pgoutput_to_iceberg

_JARS = {"packages": "auto"}
_WHERE: dict[str, Any] = {
    "slot_name": "{{ params.slot_name }}",
    "staging_uri": "{{ params.staging_uri }}",
    "namespace": "{{ params.namespace }}",
}


def _dag(dag_id: str, **more: Any) -> DAG:
    params = {name: Param(type="string") for name in _WHERE} | more
    return DAG(dag_id, schedule=None, catchup=False, max_active_runs=1, params=params)


with _dag("pgoutput_to_iceberg", publication_names=Param(type="array")):
    pgoutput_to_iceberg(
        **_WHERE,
        publication_names="{{ params.publication_names | tojson }}",
        apply_options=_JARS,
    )

with _dag("pgoutput_verify", publication_names=Param(type="array")):
    PgoutputVerifyOperator(
        task_id="verify",
        **_WHERE,
        publication_names="{{ params.publication_names | tojson }}",
    )

with _dag(
    "pgoutput_replay",
    from_lsn=Param(type="string"),
    target_namespace=Param(type="string"),
    table_options=Param({}, type="object"),
):
    PgoutputReplayOperator(
        task_id="replay",
        **_WHERE,
        from_lsn="{{ params.from_lsn }}",
        target_namespace="{{ params.target_namespace }}",
        table_options="{{ params.table_options | tojson }}",
        packages="auto",
    )

with _dag("pgoutput_maintenance"):
    PgoutputMaintenanceOperator(
        task_id="maintain", **_WHERE, orphan_retention=timedelta(days=1), packages="auto"
    )
