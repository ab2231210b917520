"""PostgreSQL tables into Iceberg tables, exactly once: the whole pipeline, set up by its parameters.

Connections: ``postgres_default`` (type postgres), ``spark_default`` (type spark) and ``iceberg_default``
(type iceberg). Try it against any database that has ``wal_level = logical`` and a publication:

    airflow dags test pgoutput_to_iceberg -c '{"slot_name": "lake", "publication_names": ["lake"],
        "staging_uri": "file:///tmp/staging", "namespace": "shop"}'

To run it by itself, give the parameters defaults of your own and set ``schedule``, for example to
``timedelta(minutes=5)``.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Asset, Param

from airflow_provider_pgoutput.task_groups.pipeline import pgoutput_to_iceberg

with DAG(
    dag_id="pgoutput_to_iceberg",
    description="PostgreSQL logical replication to Apache Iceberg",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    # A slot has one reader: a second run at the same time could only wait.
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    tags=["cdc", "postgresql", "iceberg"],
    params={
        "slot_name": Param(
            "pgoutput_to_iceberg",
            type="string",
            pattern="^[a-z0-9_]{1,63}$",
            description="Replication slot. The first run creates it and copies the tables.",
        ),
        "publication_names": Param(
            ["pgoutput_to_iceberg"],
            type="array",
            items={"type": "string"},
            minItems=1,
            description="Publications to read; CREATE PUBLICATION makes one.",
        ),
        "staging_uri": Param(
            type="string",
            minLength=1,
            description="Folder for staged batches, s3://bucket/path or file:///path.",
        ),
        "namespace": Param(
            "pgoutput",
            type="string",
            minLength=1,
            description="Iceberg namespace of the tables and of the checkpoint.",
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
        "transport": Param(
            "sql",
            type="string",
            enum=["sql", "walsender", "auto"],
            description="sql is faster; walsender needs no temporary space on the server; auto chooses.",
            section="Advanced",
        ),
        "decode_parallelism": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            maximum=8,
            description="Connections that decode parts of the slot at the same time, at most.",
            section="Advanced",
        ),
        "max_changes": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            description="End a batch at the first commit past so many row changes.",
            section="Advanced",
        ),
        "max_seconds": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            description="End a batch at the first commit past so many seconds of reading.",
            section="Advanced",
        ),
        "initial_copy": Param(
            "always",
            type="string",
            enum=["always", "never"],
            description="never: only changes; the tables are loaded from outside.",
            section="Advanced",
        ),
        "start_lsn": Param(
            None,
            type=["null", "string"],
            pattern="^([0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}|[0-9A-Fa-f]{16})?$",
            description="Read the slot again from this LSN on in this run; it still has to hold it.",
            section="This run",
        ),
        "copy_tables": Param(
            [],
            type="array",
            items={"type": "string"},
            description='Tables to copy again in this run: ["public.orders"].',
            section="This run",
        ),
        "copy_engine": Param(
            "worker",
            type="string",
            enum=["worker", "spark"],
            description="Who copies large tables: the stage task, or a Spark job.",
            section="Advanced",
        ),
        "spark_copy_from_bytes": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            description="Tables from this size on are large, in bytes on the server's disk.",
            section="Advanced",
        ),
        "spark_copy_conf": Param(
            {},
            type="object",
            description="Spark configuration of the copy job.",
            section="Advanced",
        ),
        "mode": Param(
            "upsert",
            type="string",
            enum=["upsert", "change_log"],
            description="Keep tables as at the source, or append every change.",
        ),
        "table_options": Param(
            {},
            type="object",
            description='Options by table: {"public.orders": {"partitioned_by": ["days(made_at)"]}}.',
            section="Advanced",
        ),
        "spark_conf": Param(
            {},
            type="object",
            description="Spark configuration of the apply job.",
            section="Advanced",
        ),
    },
) as dag:
    pgoutput_to_iceberg(
        slot_name="{{ params.slot_name }}",
        publication_names="{{ params.publication_names | tojson }}",
        staging_uri="{{ params.staging_uri }}",
        namespace="{{ params.namespace }}",
        postgres_conn_id="{{ params.postgres_conn_id }}",
        iceberg_conn_id="{{ params.iceberg_conn_id }}",
        catalog_name="{{ params.catalog_name or '' }}",
        outlets=[Asset("pgoutput_to_iceberg")],
        stage_options={
            "transport": "{{ params.transport }}",
            "decode_parallelism": "{{ params.decode_parallelism or '' }}",
            "max_changes": "{{ params.max_changes or '' }}",
            "max_seconds": "{{ params.max_seconds or '' }}",
            "initial_copy": "{{ params.initial_copy }}",
            "start_lsn": "{{ params.start_lsn or '' }}",
            "copy_tables": "{{ params.copy_tables | tojson }}",
            "copy_engine": "{{ params.copy_engine }}",
            "spark_copy_from_bytes": "{{ params.spark_copy_from_bytes }}",
            "spark_copy_conf": "{{ params.spark_copy_conf | tojson }}",
        },
        apply_options={
            "mode": "{{ params.mode }}",
            "table_options": "{{ params.table_options | tojson }}",
            "conf": "{{ params.spark_conf | tojson }}",
        },
    )
