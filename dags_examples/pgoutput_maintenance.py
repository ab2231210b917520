"""The tables of a pipeline kept fast and small, once a day; docs/how-to/maintain.md says what is done.

Connections: ``spark_default`` (type spark) and ``iceberg_default`` (type iceberg). It may run beside the
pipeline's own DAG:

    airflow dags test pgoutput_maintenance -c '{"slot_name": "lake", "namespace": "shop",
        "staging_uri": "file:///tmp/staging"}'

To run it by itself, give the parameters defaults of your own and set ``schedule="@daily"``.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider_pgoutput.operators.maintain import PgoutputMaintenanceOperator

with DAG(
    dag_id="pgoutput_maintenance",
    description="Compaction and expiry of a pipeline's Apache Iceberg tables",
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
        "staging_uri": Param(
            type="string", minLength=1, description="The pipeline's staging area."
        ),
        "namespace": Param(
            "pgoutput", type="string", minLength=1, description="The pipeline's namespace."
        ),
        "iceberg_conn_id": Param(
            "iceberg_default", type="string", description="The catalog.", section="Connections"
        ),
        "catalog_name": Param(
            None,
            type=["null", "string"],
            description="Name of the catalog, when it is not named like its connection.",
            section="Connections",
        ),
        "tables": Param(
            [],
            type="array",
            items={"type": "string"},
            description='Tables to maintain: ["public.orders"]; empty: all.',
        ),
        "compact_options": Param(
            {},
            type="object",
            description="Options of rewrite_data_files, as texts.",
            section="Advanced",
        ),
        "spark_conf": Param(
            {}, type="object", description="Spark configuration of the job.", section="Advanced"
        ),
    },
) as dag:
    PgoutputMaintenanceOperator(
        task_id="maintain",
        slot_name="{{ params.slot_name }}",
        staging_uri="{{ params.staging_uri }}",
        namespace="{{ params.namespace }}",
        iceberg_conn_id="{{ params.iceberg_conn_id }}",
        catalog_name="{{ params.catalog_name or '' }}",
        tables="{{ params.tables | tojson }}",
        compact_options="{{ params.compact_options | tojson }}",
        conf="{{ params.spark_conf | tojson }}",
    )
