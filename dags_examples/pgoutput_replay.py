"""Staged batches of a pipeline applied again, from a saved LSN on; see docs/how-to/replay.md.

Connections: ``spark_default`` (type spark) and ``iceberg_default`` (type iceberg); the source is not asked.
Pause the pipeline's own DAG while tables are rebuilt in place. Into another namespace:

    airflow dags test pgoutput_replay -c '{"slot_name": "lake", "staging_uri": "file:///tmp/staging",
        "namespace": "shop", "from_lsn": "0/1A2B3C", "target_namespace": "shop_again"}'
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider_pgoutput.operators.replay import PgoutputReplayOperator

_LSN = "^([0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}|[0-9A-Fa-f]{16})$"

with DAG(
    dag_id="pgoutput_replay",
    description="Staged batches applied to Apache Iceberg again",
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
            description="The slot whose batches they are; it need not exist any more.",
        ),
        "staging_uri": Param(
            type="string", minLength=1, description="Folder of the staged batches."
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
        "from_lsn": Param(
            type="string",
            pattern=_LSN,
            description="Where to begin: start_lsn or end_lsn of a run's XCom or of the checkpoint table.",
        ),
        "to_lsn": Param(
            None,
            type=["null", "string"],
            pattern=_LSN,
            description="Where to end, with target_namespace; empty: the newest batch.",
        ),
        "tables": Param(
            [],
            type="array",
            items={"type": "string"},
            description='Tables to replay: ["public.orders"]; empty: all.',
        ),
        "target_namespace": Param(
            None, type=["null", "string"], description="Namespace to write to; empty: in place."
        ),
        "mode": Param(
            "upsert",
            type="string",
            enum=["upsert", "change_log"],
            description="In place as in the pipeline; in another namespace either.",
        ),
        "soft_delete": Param(
            False, type="boolean", description="In place as in the pipeline.", section="Advanced"
        ),
        "table_options": Param(
            {},
            type="object",
            description="Options by table, as of the pipeline.",
            section="Advanced",
        ),
        "spark_conf": Param(
            {}, type="object", description="Spark configuration of the job.", section="Advanced"
        ),
    },
) as dag:
    PgoutputReplayOperator(
        task_id="replay",
        slot_name="{{ params.slot_name }}",
        staging_uri="{{ params.staging_uri }}",
        namespace="{{ params.namespace }}",
        iceberg_conn_id="{{ params.iceberg_conn_id }}",
        catalog_name="{{ params.catalog_name or '' }}",
        from_lsn="{{ params.from_lsn }}",
        to_lsn="{{ params.to_lsn or '' }}",
        tables="{{ params.tables | tojson }}",
        target_namespace="{{ params.target_namespace or '' }}",
        mode="{{ params.mode }}",
        soft_delete="{{ params.soft_delete }}",
        table_options="{{ params.table_options | tojson }}",
        conf="{{ params.spark_conf | tojson }}",
    )
