"""Repairs rows of the lake that differ from the source, after an approval; see docs/how-to/verify.md.

``verify`` compares, and fails for no difference. If tables differ, ``approve`` shows them and waits for an
answer on Airflow's page "Required Actions". Then ``repair`` compares these tables again, lets a run of the
pipeline read the rows that differ from the source, and compares once more.

Connections: ``postgres_default`` (type postgres) and ``iceberg_default`` (type iceberg). The pipeline's own
DAG has to run meanwhile. Start it with the parameters of your pipeline, or give them defaults of your own and
set ``schedule="@weekly"``.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider_pgoutput.task_groups.verification import APPROVED, verify_lake

with DAG(
    dag_id="pgoutput_repair",
    description="Repairs rows of Apache Iceberg tables that differ from their PostgreSQL source",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 1, "retry_delay": timedelta(minutes=5)},
    tags=["cdc", "postgresql", "iceberg"],
    params={
        "slot_name": Param(
            "pgoutput_to_iceberg",
            type="string",
            pattern="^[a-z0-9_]{1,63}$",
            description="The pipeline's slot.",
        ),
        "publication_names": Param(
            ["pgoutput_to_iceberg"],
            type="array",
            items={"type": "string"},
            minItems=1,
            description="The pipeline's publications.",
        ),
        "staging_uri": Param(
            type="string", minLength=1, description="The pipeline's staging area."
        ),
        "namespace": Param(
            "pgoutput", type="string", minLength=1, description="The pipeline's namespace."
        ),
        "tables": Param(
            [],
            type="array",
            items={"type": "string"},
            description='Tables to compare: ["public.orders"]; empty: all.',
        ),
        "wait_seconds": Param(
            3600,
            type="integer",
            minimum=1,
            description="The longest wait for a run of the pipeline.",
            section="Advanced",
        ),
    },
) as dag:
    verify_lake(
        slot_name="{{ params.slot_name }}",
        publication_names="{{ params.publication_names | tojson }}",
        staging_uri="{{ params.staging_uri }}",
        namespace="{{ params.namespace }}",
        repair=APPROVED,
        verify_options={
            "tables": "{{ params.tables | tojson }}",
            "wait_seconds": "{{ params.wait_seconds }}",
        },
    )
