"""Proves that the lake equals the source at one LSN, while both go on; see docs/how-to/verify.md.

Connections: ``postgres_default`` (type postgres) and ``iceberg_default`` (type iceberg). It runs beside the
pipeline's own DAG, and waits for a run of it:

    airflow dags test pgoutput_verify -c '{"slot_name": "lake", "publication_names": ["lake"],
        "namespace": "shop", "staging_uri": "file:///tmp/staging"}'

To run it by itself, give the parameters defaults of your own and set ``schedule="@weekly"``.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider_pgoutput.operators.verify import PgoutputVerifyOperator

with DAG(
    dag_id="pgoutput_verify",
    description="Compares Apache Iceberg tables with their PostgreSQL source at one LSN",
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
        "postgres_conn_id": Param(
            "postgres_default", type="string", description="The source.", section="Connections"
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
            description='Tables to compare: ["public.orders"]; empty: all.',
        ),
        "share": Param(
            1.0,
            type="number",
            exclusiveMinimum=0,
            maximum=1,
            description="Compare only the next part of each table, such as 0.01; 1: all of it.",
        ),
        "keys_shown": Param(
            0,
            type="integer",
            minimum=0,
            description="Keys of rows that differ in log and record; they may be personal data.",
            section="Advanced",
        ),
        "wait_seconds": Param(
            3600,
            type="integer",
            minimum=1,
            description="The longest wait until the pipeline has reached the LSN.",
            section="Advanced",
        ),
        "spark_from_bytes": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            description="Spark hashes the files of tables that take at least so many bytes; null: never.",
            section="Advanced",
        ),
        "spark_conn_id": Param(
            "spark_default",
            type="string",
            description="The Spark cluster for that.",
            section="Connections",
        ),
    },
) as dag:
    PgoutputVerifyOperator(
        task_id="verify",
        slot_name="{{ params.slot_name }}",
        publication_names="{{ params.publication_names | tojson }}",
        staging_uri="{{ params.staging_uri }}",
        namespace="{{ params.namespace }}",
        postgres_conn_id="{{ params.postgres_conn_id }}",
        iceberg_conn_id="{{ params.iceberg_conn_id }}",
        catalog_name="{{ params.catalog_name or '' }}",
        tables="{{ params.tables | tojson }}",
        share="{{ params.share }}",
        keys_shown="{{ params.keys_shown }}",
        wait_seconds="{{ params.wait_seconds }}",
        spark_from_bytes="{{ params.spark_from_bytes }}",
        spark_conn_id="{{ params.spark_conn_id }}",
    )
