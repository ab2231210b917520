"""What the operators that give work to the Spark application share: options, the job, and its end.

What is not here: which work (``apply.py``, ``replay.py``, ``maintain.py``), and the application itself
(``apply/main.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.jobs import UPSERT
from airflow_provider_pgoutput.hooks.connections import get_connection
from airflow_provider_pgoutput.spark_submit.result import failure_of_status, job_failure, job_result
from airflow_provider_pgoutput.tasks import arguments
from airflow_provider_pgoutput.tasks.plan_options import plan_fields, table_options
from airflow_provider_pgoutput.tasks.task_run import new_attempt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_provider_pgoutput.batch.jobs import AnyJob, Job
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.spark_submit.job import SparkJob
    from airflow_provider_pgoutput.tasks.arguments import Converter
    from airflow_provider_pgoutput.tasks.lake import Lake

_Job = TypeVar("_Job", bound="Job")

#: Arguments of ``SparkApplyOperator`` that are fields of ``WriteJob``. Each has what turns a template's text
#: into its value.
_OF_JOB: dict[str, Converter] = {
    "mode": arguments.required_text,
    "metadata_columns": arguments.optional_text_list,
    "soft_delete": arguments.flag,
    "table_options": table_options,
}


class LakeJobOperator(SparkSubmitOperator):
    """Base of the operators that have Spark work on a pipeline's tables.

    All of ``SparkSubmitOperator``'s arguments work as they do there. ``conf`` is laid over the catalog's
    configuration; ``application`` and ``py_files`` default to this package's own, made for each job.
    ``application_args`` alone are this package's in any case: what is given there is replaced.

    :param slot_name: the slot of the pipeline. (templated)
    :param staging_uri: folder of the staging area. (templated)
    :param namespace: namespace of the pipeline's Iceberg tables. (templated)
    :param iceberg_conn_id: the lake's catalog, a connection of type ``iceberg``; its secrets reach Spark
        by a private properties file. (templated)
    :param catalog_name: name of the catalog, when it is not named like its connection. (templated)
    :param conn_id: the Spark cluster, a connection of type ``spark``. (templated)
    :param name: name of the Spark application. (templated)
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "slot_name",
        "staging_uri",
        "namespace",
        "iceberg_conn_id",
        "catalog_name",
        "conn_id",
    )
    template_fields_renderers = {"conf": "json"}  # noqa: RUF012
    ui_color = "#ffe3c9"

    def __init__(
        self,
        *,
        slot_name: str,
        staging_uri: str,
        namespace: str,
        iceberg_conn_id: str = "iceberg_default",
        catalog_name: str | None = None,
        conn_id: str = "spark_default",
        name: str = "airflow-{{ dag.dag_id }}-{{ task.task_id }}",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, conn_id=conn_id, **kwargs)
        if not kwargs.keys() & {"durable", "reconnect_on_retry"}:
            # A job that is reconnected to, or counts as done, is that of another attempt. And a table
            # takes nothing twice.
            self.durable = False
        self.slot_name = slot_name
        self.staging_uri = staging_uri
        self.namespace = namespace
        self.iceberg_conn_id = iceberg_conn_id
        self.catalog_name = catalog_name
        self.conn_id = conn_id

    def make_job(
        self, kind: type[_Job], context: Context, lake: Lake, area: StagingArea, **fields: Any
    ) -> _Job:
        """Make a job and check it.

        :param fields: the fields that only this kind of job has.
        :raises ConfigurationError: a field has a wrong value, or values do not go together.
        """
        dag_run = context["dag_run"]
        job = kind(
            staging_uri=area.staging_uri,
            catalog=lake.catalog.name,
            namespace=lake.namespace,
            dag_id=dag_run.dag_id,
            run_id=dag_run.run_id,
            **fields,
        )
        job.check()
        return job

    def run_job(
        self,
        context: Context,
        area: StagingArea,
        lake: Lake,
        job: AnyJob,
        job_id: str,
        *,
        is_short: bool = False,
    ) -> dict[str, Any] | None:
        """Write the job's file and run it; return what it did, or None when it left no word.

        :param job_id: the batch's id, or another word for what is done.
        :param is_short: the job has few rows to work on.

        What it did, or why it failed, is in the file that it leaves beside the file of the job.
        """
        slot_name = arguments.required_text(self.slot_name, "slot_name")
        job_path = layout.job_path(slot_name, job_id, new_attempt(context))
        area.write_whole(job_path, job.to_json().encode("utf-8"))
        try:
            self._submit(context, lake, area.uri(job_path), is_short)
        except (AirflowException, RuntimeError) as error:
            status = getattr(getattr(self._hook, "_submit_sp", None), "returncode", None)
            if failure := job_failure(area, job_path) or failure_of_status(status):
                raise failure from error
            raise
        if failure := job_failure(area, job_path):
            raise failure
        return job_result(area, job_path)

    def _submit(self, context: Context, lake: Lake, job_uri: str, is_short: bool) -> None:
        from airflow_provider_pgoutput.spark_submit.job import SparkJob

        self._conn_id = arguments.required_text(self.conn_id, "conn_id")
        conf = arguments.mapping(self.conf, "conf")
        job = SparkJob.prepare(
            # An unknown connection would silently become the master "yarn".
            get_connection(self._conn_id),
            self._deploy_mode,
            self._spark_binary,
            conf,
            self.properties_file,
            self.env_vars,
        )
        self._warn(job, lake)
        given = self.conf, self.env_vars, self.application, self.py_files, self.properties_file
        try:
            with job.files(
                lake.catalog.spark_secrets,
                self.properties_file,
                conf,
                self.env_vars,
                is_short=is_short,
            ) as files:
                self.conf = job.merged_conf(lake.catalog.spark_conf, conf)
                self.env_vars = job.environment(lake.catalog.environment, self.env_vars)
                self.application = self.application or files.application
                self.py_files = ",".join(filter(None, (files.package_zip, self.py_files)))
                self.properties_file = files.properties_file
                self.application_args = ["--job-uri", job_uri]
                self._spark_binary = job.spark_binary
                self._hook = None
                SparkSubmitOperator.execute(self, context)
        finally:
            self.conf, self.env_vars, self.application, self.py_files, self.properties_file = given

    def _warn(self, job: SparkJob, lake: Lake) -> None:
        """Say what somebody should know of the secrets that the job gets, or does not get."""
        if job.has_config_map and lake.catalog.spark_secrets:
            self.log.warning(
                "In deploy mode cluster Spark puts its configuration into a ConfigMap of the driver: what the"
                " connection %s gives in secret can be read there. Use deploy mode client, or give the driver"
                " an identity or a Kubernetes secret.",
                self.iceberg_conn_id,
            )
        if lake.catalog.not_for_spark:
            self.log.warning(
                "The connection %s logs in to an object store by what pyiceberg reads and Iceberg's Java does"
                " not: %s. Give Spark an identity, or what it needs by a properties_file.",
                self.iceberg_conn_id,
                ", ".join(lake.catalog.not_for_spark),
            )

    def on_kill(self) -> None:
        """Stop the job, its Python driver included, which outlives a killed JVM.

        Whatever still runs elsewhere is fenced out when it tries to publish.
        """
        if self._hook is None:
            # Spark was not started, and what a hook would be made of may not be resolved yet.
            return
        from airflow_provider_pgoutput.spark_submit.job import kill_descendants, submit_process

        process = submit_process(self._hook)
        with kill_descendants(process):
            super().on_kill()


class SparkApplyOperator(LakeJobOperator):
    """Base of the operators that apply staged batches with Spark; the arguments that they share.

    The other arguments are those of ``LakeJobOperator``.

    :param mode: ``upsert`` keeps tables as they are at the source, ``change_log`` appends every change.
        (templated)
    :param metadata_columns: metadata columns that tables in upsert mode carry, ``["_pgoutput_commit_lsn"]``;
        see ``docs/apply.md``. A change log has all of them. (templated)
    :param soft_delete: keep deleted rows, marked. (templated)
    :param table_options: options of single tables by their names at the source, for instance
        ``{"schema.table": {"target": "orders", "partitioned_by": ["days(made_at)"]}}``. ``docs/apply.md`` has
        all of them. The apply task warns of a name that is not published. A replay in place needs those of
        the pipeline. (templated)
    :param plan_options: options of all tables, for instance ``{"write_mode": "copy-on-write"}``.
        ``docs/apply.md`` has all of them. (templated)
    """

    template_fields: Sequence[str] = (
        *LakeJobOperator.template_fields,
        *_OF_JOB,
        "plan_options",
    )
    template_fields_renderers = {  # noqa: RUF012
        **LakeJobOperator.template_fields_renderers,
        "table_options": "json",
        "plan_options": "json",
    }

    def __init__(
        self,
        *,
        mode: str = UPSERT,
        metadata_columns: Sequence[str] | str | None = None,
        soft_delete: bool | str = False,
        table_options: Mapping[str, Mapping[str, Any]] | str | None = None,
        plan_options: Mapping[str, Any] | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        arguments.keep(self, locals(), _OF_JOB)
        self.plan_options = plan_options

    def make_job(
        self, kind: type[_Job], context: Context, lake: Lake, area: StagingArea, **fields: Any
    ) -> _Job:
        """Make a job out of the shared arguments and what an operator adds."""
        shared = arguments.values_of(self, _OF_JOB) | plan_fields(self.plan_options)
        return super().make_job(kind, context, lake, area, **shared, **fields)
