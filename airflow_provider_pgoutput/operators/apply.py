"""Airflow's door to apply: one batch, given to Spark. The Spark application is ``apply/main.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowException

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.batch.plan import UPSERT, Plan, TableOptions
from airflow_provider_pgoutput.batch.xcom import batch_xcom
from airflow_provider_pgoutput.errors import BatchRefused, ConfigurationError, LakeUnavailable
from airflow_provider_pgoutput.hooks.connections import get_connection
from airflow_provider_pgoutput.operators import arguments
from airflow_provider_pgoutput.operators.batches import ReceivedBatch
from airflow_provider_pgoutput.operators.job_result import job_failure, job_result
from airflow_provider_pgoutput.operators.outcome import airflow_outcome
from airflow_provider_pgoutput.operators.progress import Lake
from airflow_provider_pgoutput.operators.runs import (
    log_group,
    log_tables,
    new_attempt,
    refuse_backfill,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_provider_pgoutput.capture.staging.area import StagingArea


class PgoutputApplyOperator(SparkSubmitOperator):
    """Apply a staged batch to Iceberg tables with Spark, and return what it did.

    A batch that the lake holds already is not given to Spark again, so a cleared task of an old run does
    nothing. After the job the checkpoint is read back: the task succeeds only when the batch is in it.

    All of ``SparkSubmitOperator``'s arguments work as they do there. ``conf`` is laid over the catalog's
    configuration; ``application`` and ``py_files`` default to this package's own, made for each job.

    :param batch: the batch as ``PgoutputStageOperator`` returned it. (templated)
    :param slot_name: the slot that the batch must be of. (templated)
    :param staging_uri: folder of the staging area. (templated)
    :param namespace: namespace of the Iceberg tables. (templated)
    :param iceberg_conn_id: the lake's catalog, a connection of type ``iceberg``; its secrets reach Spark
        by a private properties file. (templated)
    :param catalog_name: name of the catalog, when it is not named like its connection. (templated)
    :param conn_id: the Spark cluster, a connection of type ``spark``.
    :param mode: ``upsert`` keeps tables as they are at the source, ``change_log`` appends every change.
        (templated)
    :param tables: options of single tables, ``{"schema.table": {"target": ..., "mode": ...,
        "properties": {...}, "partitioned_by": [...]}}``. (templated)
    :param metadata_columns: metadata columns that tables in upsert mode carry. (templated)
    :param soft_delete: keep deleted rows, marked. (templated)
    :param plan_options: further fields of ``Plan``: ``format_version``, ``write_mode``,
        ``tag_retention_days``, ``parallel_tables``. (templated)
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "batch",
        "slot_name",
        "staging_uri",
        "namespace",
        "iceberg_conn_id",
        "catalog_name",
        "mode",
        "tables",
        "metadata_columns",
        "soft_delete",
        "plan_options",
    )
    template_fields_renderers = {  # noqa: RUF012
        "batch": "json",
        "tables": "json",
        "plan_options": "json",
        "conf": "json",
    }
    ui_color = "#ffe3c9"

    def __init__(
        self,
        *,
        batch: Any,
        slot_name: str,
        staging_uri: str,
        namespace: str,
        iceberg_conn_id: str = "iceberg_default",
        catalog_name: str | None = None,
        mode: str = UPSERT,
        tables: Mapping[str, Mapping[str, Any]] | str | None = None,
        metadata_columns: Sequence[str] | str | None = None,
        soft_delete: bool | str = False,
        plan_options: Mapping[str, Any] | str | None = None,
        name: str = "airflow-{{ dag.dag_id }}-{{ task.task_id }}",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.batch = batch
        self.slot_name = slot_name
        self.staging_uri = staging_uri
        self.namespace = namespace
        self.iceberg_conn_id = iceberg_conn_id
        self.catalog_name = catalog_name
        self.mode = mode
        self.tables = tables
        self.metadata_columns = metadata_columns
        self.soft_delete = soft_delete
        self.plan_options = plan_options

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Apply the batch, unless the lake holds it already."""
        with airflow_outcome():
            refuse_backfill(context)
            slot_name = arguments.required_text(self.slot_name, "slot_name")
            batch = ReceivedBatch.required(self.batch, slot_name)
            lake = Lake.open(self.iceberg_conn_id, self.catalog_name, self.namespace)
            before = lake.checkpoint(slot_name)
            if before is not None and batch.end_lsn <= before.end_lsn:
                self.log.info(
                    "Batch %s ends at %s and the lake is at %s: it was applied before.",
                    batch.batch_id[:16],
                    batch.end_lsn,
                    before.end_lsn,
                )
                return _result(batch, applied=False)
            from airflow_provider_pgoutput.capture.staging.area import StagingArea

            area = StagingArea(arguments.required_text(self.staging_uri, "staging_uri"))
            manifest = self._manifest(area, batch)
            plan_path = self._write_plan(context, area, batch, lake)
            with log_group(f"Apply batch {batch.batch_id[:16]} with Spark"):
                result = self._run(context, area, lake, plan_path)
            self._verify(lake, batch)
        counts = batch_xcom(manifest, batch.manifest_uri)["tables"]
        log_tables(counts)
        self._describe_outlets(context, manifest)
        return _result(batch, applied=True) | {
            "changes": manifest.changes,
            "tables": counts,
            "snapshots": result.get("published", {}),
        }

    def _describe_outlets(self, context: Context, manifest: Manifest) -> None:
        """Say in the events of the task's assets up to where the lake is now."""
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra = {
                    "slot_name": manifest.slot_name,
                    "end_lsn": str(manifest.end_lsn),
                    "changes": manifest.changes,
                }

    def _manifest(self, area: StagingArea, batch: ReceivedBatch) -> Manifest:
        """Read the manifest and make sure that it is the batch's and the pipeline's."""
        path = layout.manifest_path(batch.slot_name, batch.start_lsn, batch.end_lsn, batch.batch_id)
        folder, _, name = path.rpartition("/")
        if batch.manifest_uri != area.uri(path) or name not in area.names(folder):
            raise BatchRefused(
                "The batch is not in this pipeline's staging area.",
                slot=batch.slot_name,
                lsn=batch.end_lsn,
                advice="give the stage and apply tasks the same staging_uri, and clear the stage task.",
            )
        manifest = Manifest.from_json(area.read(path).decode("utf-8"))
        if (manifest.slot_name, manifest.batch_id) != (batch.slot_name, batch.batch_id):
            raise BatchRefused(
                "The manifest is of another batch than the stage task named.",
                slot=batch.slot_name,
                advice="clear the stage task of this run.",
            )
        return manifest

    def _write_plan(
        self, context: Context, area: StagingArea, batch: ReceivedBatch, lake: Lake
    ) -> str:
        dag_run = context["dag_run"]
        try:
            plan = Plan(
                manifest_uri=batch.manifest_uri,
                staging_uri=area.staging_uri,
                catalog=lake.catalog.name,
                namespace=lake.namespace,
                mode=arguments.required_text(self.mode, "mode"),
                tables={
                    table: TableOptions(
                        **{**options, "partitioned_by": tuple(options.get("partitioned_by", ()))}
                    )
                    for table, options in arguments.mapping(self.tables, "tables").items()
                },
                metadata_columns=arguments.optional_text_list(
                    self.metadata_columns, "metadata_columns"
                ),
                soft_delete=arguments.flag(self.soft_delete, "soft_delete"),
                dag_id=dag_run.dag_id,
                run_id=dag_run.run_id,
                **arguments.mapping(self.plan_options, "plan_options"),
            )
        except TypeError as error:
            raise ConfigurationError(
                "tables or plan_options has an option that does not exist."
            ) from error
        plan.check()
        relative = layout.plan_path(batch.slot_name, batch.batch_id, new_attempt(context))
        area.write_whole(relative, plan.to_json().encode("utf-8"))
        return relative

    def _run(
        self, context: Context, area: StagingArea, lake: Lake, plan_path: str
    ) -> dict[str, Any]:
        """Run the job; what it did, or why it failed, is in the file that it leaves beside the plan."""
        try:
            self._submit(context, lake, area.uri(plan_path))
        except AirflowException as error:
            if failure := job_failure(area, plan_path):
                raise failure from error
            raise
        return job_result(area, plan_path) or {}

    def _submit(self, context: Context, lake: Lake, plan_uri: str) -> None:
        from airflow_provider_pgoutput.operators.spark_job import SparkJob

        # An unknown connection would silently become the master "yarn".
        job = SparkJob.prepare(get_connection(self._conn_id), self._deploy_mode, self._spark_binary)
        given = self.conf, self.env_vars, self.application, self.py_files, self.properties_file
        try:
            with job.files(lake.catalog.spark_secrets, self.properties_file) as files:
                self.conf = job.merged_conf(
                    lake.catalog.spark_conf, arguments.mapping(self.conf, "conf")
                )
                self.env_vars = job.environment(lake.catalog.environment, self.env_vars)
                self.application = self.application or files.application
                self.py_files = ",".join(filter(None, (files.package_zip, self.py_files)))
                self.properties_file = files.properties_file
                self.application_args = ["--plan-uri", plan_uri]
                self._spark_binary = job.spark_binary
                self._hook = None
                super().execute(context)
        finally:
            self.conf, self.env_vars, self.application, self.py_files, self.properties_file = given

    def _verify(self, lake: Lake, batch: ReceivedBatch) -> None:
        after = lake.checkpoint(batch.slot_name)
        if after is None or after.end_lsn < batch.end_lsn:
            raise LakeUnavailable(
                "Spark ended without an error, but the lake's checkpoint does not hold the batch: it is"
                f" {'missing' if after is None else after.end_lsn}.",
                slot=batch.slot_name,
                lsn=batch.end_lsn,
                advice="make sure that the iceberg connection and Spark's conf name the same catalog.",
            )

    def on_kill(self) -> None:
        """Stop the job, its Python driver included, which outlives a killed JVM.

        Whatever still runs elsewhere is fenced out when it tries to publish.
        """
        from airflow_provider_pgoutput.operators.spark_job import kill_descendants, submit_process

        process = submit_process(self._hook)
        with kill_descendants(process):
            super().on_kill()


def _result(batch: ReceivedBatch, *, applied: bool) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "slot_name": batch.slot_name,
        "batch_id": batch.batch_id,
        "start_lsn": str(batch.start_lsn),
        "end_lsn": str(batch.end_lsn),
        "applied": applied,
    }
