"""The whole pipeline as one task group: wait, stage, apply, advance, prune."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup

from airflow_provider_pgoutput.batch.answers import SET_ASIDE
from airflow_provider_pgoutput.hooks import default_connections
from airflow_provider_pgoutput.operators.advance import PgoutputAdvanceSlotOperator
from airflow_provider_pgoutput.operators.apply import PgoutputApplyOperator
from airflow_provider_pgoutput.operators.check_tables import PgoutputCheckTablesOperator
from airflow_provider_pgoutput.operators.prune import PgoutputPruneStagingOperator
from airflow_provider_pgoutput.operators.stage import PgoutputStageOperator
from airflow_provider_pgoutput.sensors.changes import PgoutputChangesSensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from airflow.sdk import Asset


def pgoutput_to_iceberg(
    *,
    slot_name: str,
    publication_names: Sequence[str] | str,
    staging_uri: str,
    namespace: str,
    group_id: str = "pgoutput_to_iceberg",
    postgres_conn_id: str = default_connections.POSTGRES,
    iceberg_conn_id: str = default_connections.ICEBERG,
    conn_id: str = default_connections.SPARK,
    catalog_name: str | None = None,
    wait_for_changes: bool = False,
    staging_retention: timedelta | None = None,
    on_table_refused: str = SET_ASIDE,
    fail_when_set_aside: bool = False,
    outlets: Sequence[Asset] = (),
    sensor_options: Mapping[str, Any] | None = None,
    stage_options: Mapping[str, Any] | None = None,
    apply_options: Mapping[str, Any] | None = None,
    advance_options: Mapping[str, Any] | None = None,
) -> TaskGroup:
    """Make the tasks ``[changes] >> stage >> apply >> advance [>> prune, check_tables]`` in the current DAG.

    Give the DAG ``max_active_runs=1``. A second run at the same time would find the slot busy.

    :param slot_name: the replication slot. Each pipeline needs its own. (templated)
    :param publication_names: the publications to read. (templated)
    :param staging_uri: folder of the staging area. (templated)
    :param namespace: namespace of the Iceberg tables. (templated)
    :param group_id: name of the task group.
    :param postgres_conn_id: the source, a connection of type ``postgres``. (templated)
    :param iceberg_conn_id: the lake's catalog, a connection of type ``iceberg``. (templated)
    :param conn_id: the Spark cluster, a connection of type ``spark``. (templated)
    :param catalog_name: name of the catalog; None: the name of its connection. (templated)
    :param wait_for_changes: begin with a ``PgoutputChangesSensor``.
    :param staging_retention: end with a ``PgoutputPruneStagingOperator`` that keeps applied batches for
        this long; None: nothing is removed from the staging area.
    :param on_table_refused: one table cannot be staged or copied, or a batch cannot be applied to it.
        ``set_aside``: the other tables go on, see ``PgoutputStageOperator`` and ``PgoutputApplyOperator``.
        ``fail``: the task fails. (templated)
    :param fail_when_set_aside: end with a ``PgoutputCheckTablesOperator``. It fails while a table is set
        aside, and if a copy that the run was asked for was refused.
    :param outlets: further assets that the apply task updates. ``docs/reference/events.md`` says what their
        events tell.
    :param sensor_options: further arguments of ``PgoutputChangesSensor``.
    :param stage_options: further arguments of ``PgoutputStageOperator``.
    :param apply_options: further arguments of ``PgoutputApplyOperator``.
    :param advance_options: further arguments of ``PgoutputAdvanceSlotOperator``.
    """
    source = {"slot_name": slot_name, "postgres_conn_id": postgres_conn_id}
    lake = {
        "namespace": namespace,
        "iceberg_conn_id": iceberg_conn_id,
        "catalog_name": catalog_name,
    }
    staged = {"staging_uri": staging_uri, **lake}
    applied = {"slot_name": slot_name, "conn_id": conn_id, "outlets": list(outlets)}
    with TaskGroup(group_id=group_id, tooltip="PostgreSQL to Iceberg") as group:
        stage = PgoutputStageOperator(
            **_arguments(
                "stage",
                source,
                staged,
                {"on_table_refused": on_table_refused},
                stage_options,
                publication_names=publication_names,
            )
        )
        apply = PgoutputApplyOperator(
            **_arguments(
                "apply",
                staged,
                applied,
                {"on_table_refused": on_table_refused},
                apply_options,
                batch=stage.output,
            )
        )
        advance = PgoutputAdvanceSlotOperator(
            **_arguments("advance", source, lake, advance_options, batch=stage.output)
        )
        stage >> apply >> advance
        if wait_for_changes:
            PgoutputChangesSensor(**_arguments("changes", source, sensor_options)) >> stage
        if staging_retention is not None:
            kept = {"slot_name": slot_name, "staging_retention": staging_retention}
            advance >> PgoutputPruneStagingOperator(**_arguments("prune", staged, kept))
        if fail_when_set_aside:
            checked = {"slot_name": slot_name, "batch": stage.output}
            advance >> PgoutputCheckTablesOperator(**_arguments("check_tables", lake, checked))
    return group


def _arguments(task_id: str, *parts: Mapping[str, Any] | None, **more: Any) -> dict[str, Any]:
    """Merge arguments. The options of the user come last, so they win."""
    merged: dict[str, Any] = {"task_id": task_id, **more}
    for part in parts:
        merged |= part or {}
    return merged
