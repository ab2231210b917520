"""Bases of the operators that run the Spark application. They make its job, submit it and read its result.

The operators are in ``operators/``: ``apply.py``, ``replay.py`` and ``maintain.py``. The Spark application is
``apply/main.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_provider_pgoutput.airflow_versions import AirflowException
from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.answers import FAIL
from airflow_provider_pgoutput.batch.jobs import (
    HISTORY,
    UPSERT,
    WriteJob,
    check_modes,
    check_shared_names,
    check_target_names,
)
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.hooks import default_connections
from airflow_provider_pgoutput.hooks.connections import get_connection
from airflow_provider_pgoutput.hooks.lake_login import has_java_login
from airflow_provider_pgoutput.spark_submit.packages import catalog_properties, with_needed
from airflow_provider_pgoutput.spark_submit.result import failure_of_status, job_failure, job_result
from airflow_provider_pgoutput.tasks import arguments
from airflow_provider_pgoutput.tasks.plan_options import plan_fields, table_options
from airflow_provider_pgoutput.tasks.task_run import new_attempt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_provider_pgoutput.batch.jobs import AnyJob, Job
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.spark_submit.job import SparkJob
    from airflow_provider_pgoutput.tasks.lake import Lake

_Job = TypeVar("_Job", bound="Job")

#: Arguments of ``LakeJobOperator`` that ``SparkSubmitOperator`` does not keep.
_OF_PIPELINE = (
    "slot_name",
    "staging_uri",
    "namespace",
    "iceberg_conn_id",
    "catalog_name",
    "conn_id",
)


class LakeJobOperator(SparkSubmitOperator):
    """Base of the operators whose Spark job works on a pipeline's tables.

    The arguments of ``SparkSubmitOperator`` work as they do there. ``conf`` wins over the configuration that
    comes from the catalog's connection. By default ``application`` and ``py_files`` are this package's own
    files, made for each job. ``application_args`` are always this package's. Other values are replaced.

    :param slot_name: the slot of the pipeline. (templated)
    :param staging_uri: folder of the staging area. (templated)
    :param namespace: namespace of the pipeline's Iceberg tables. (templated)
    :param iceberg_conn_id: the lake's catalog, a connection of type ``iceberg``. Its secrets reach Spark in a
        private properties file. (templated)
    :param catalog_name: name of the catalog; None: the name of its connection. (templated)
    :param packages: Maven coordinates of jars, as in ``SparkSubmitOperator``. The word ``auto`` adds those
        that this Spark, catalog and staging area need; ``docs/reference/spark_jars.md`` lists them.
        (templated)
    :param conn_id: the Spark cluster, a connection of type ``spark``. (templated)
    :param name: name of the Spark application. (templated)
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        *_OF_PIPELINE,
    )
    template_fields_renderers = {"conf": "json"}  # noqa: RUF012
    ui_color = "#ffe3c9"

    namespace: str
    iceberg_conn_id: str
    conn_id: str

    def __init__(
        self,
        *,
        slot_name: str,
        staging_uri: str,
        namespace: str,
        iceberg_conn_id: str = default_connections.ICEBERG,
        catalog_name: str | None = None,
        packages: str | None = None,
        conn_id: str = default_connections.SPARK,
        name: str = "airflow-{{ dag.dag_id }}-{{ task.task_id }}",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, conn_id=conn_id, packages=packages, **kwargs)
        arguments.keep(self, locals(), _OF_PIPELINE)
        if not kwargs.keys() & {"durable", "reconnect_on_retry"}:
            # A durable operator could reconnect to the job of another attempt, or take it for done. Running
            # the job again is safe, because a table takes no batch twice.
            self.durable = False
        #: Where Spark's history server shows the application of this task; None: it is not known.
        self.spark_application_url: str | None = None

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
            catalog_name=lake.catalog.name,
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
        """Write the job's file, run the job and return its result. None: the job left no result.

        The job writes its result, or the reason of its failure, into a file beside its own.

        :param job_id: the batch's id, or another name for the work.
        :param is_short: the job has few rows to work on.
        """
        slot_name = arguments.slot_name(self)
        job_path = layout.job_path(slot_name, job_id, new_attempt(context))
        area.write_whole(job_path, job.to_json().encode("utf-8"))
        try:
            self._submit(context, lake, area.uri(job_path), is_short)
        except (AirflowException, RuntimeError) as error:
            status = getattr(getattr(self._hook, "_submit_sp", None), "returncode", None)
            result = job_result(area, job_path)
            self._keep_url(result)
            if failure := job_failure(result) or failure_of_status(status):
                raise failure from error
            raise
        result = job_result(area, job_path)
        self._keep_url(result)
        if failure := job_failure(result):
            raise failure
        return result

    def _keep_url(self, result: dict[str, Any] | None) -> None:
        """Keep the address of the Spark application for its link."""
        url = (result or {}).get("application_url")
        self.spark_application_url = url if isinstance(url, str) else None

    def _submit(self, context: Context, lake: Lake, job_uri: str, is_short: bool) -> None:
        from airflow_provider_pgoutput.spark_submit.job import SparkJob

        self._conn_id = arguments.required_text(self.conn_id, "conn_id")
        conf = arguments.mapping(self.conf, "conf")
        job = SparkJob.prepare(
            # Without this an unknown connection would silently become the master "yarn".
            get_connection(self._conn_id),
            self._deploy_mode,
            self._spark_binary,
            conf,
            self.properties_file,
            self.env_vars,
        )
        self._check_login(lake, conf)
        self._warn(job, lake)
        given = self.conf, self.env_vars, self.application, self.py_files, self.properties_file
        given_packages = self.packages, self.exclude_packages
        self.packages, self.exclude_packages = with_needed(
            self.packages,
            self.exclude_packages,
            job.home(self.env_vars),
            catalog_properties(
                lake.catalog.name, lake.catalog.spark_conf, lake.catalog.spark_secrets, conf
            ),
            job_uri,
        )
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
            self.packages, self.exclude_packages = given_packages

    def _check_login(self, lake: Lake, conf: Mapping[str, Any]) -> None:
        """Refuse a login at the catalog that Iceberg's Java does not have, unless Spark gets one of its own.

        :raises ConfigurationError: Spark would come to the catalog without a login.
        """
        prefix = f"spark.sql.catalog.{lake.catalog.name}."
        own = (name.removeprefix(prefix) for name in conf if name.startswith(prefix))
        kind = lake.catalog.login_not_for_spark
        if kind is None or self.properties_file or has_java_login(own):
            return
        raise ConfigurationError(
            f"The connection {self.iceberg_conn_id!r} logs in to its catalog by auth of type {kind!r}, which"
            " Iceberg's Java does not have.",
            advice="use oauth2, basic, google or SigV4, or give Spark a login of its own in conf or in a"
            f" properties_file, such as {prefix}token.",
        )

    def _warn(self, job: SparkJob, lake: Lake) -> None:
        """Warn of secrets that others can read, and of secrets that Spark cannot use."""
        if job.has_config_map and lake.catalog.spark_secrets:
            self.log.warning(
                "In deploy mode cluster Spark puts its configuration into a ConfigMap of the driver. The"
                " secrets of the connection %s can be read there. Use deploy mode client, or give the driver"
                " an identity or a Kubernetes secret.",
                self.iceberg_conn_id,
            )
        if lake.catalog.not_for_spark:
            self.log.warning(
                "The connection %s logs in to an object store with properties that pyiceberg reads and"
                " Iceberg's Java does not: %s. Give Spark an identity, or Java's properties in a"
                " properties_file.",
                self.iceberg_conn_id,
                ", ".join(lake.catalog.not_for_spark),
            )

    def on_kill(self) -> None:
        """Stop the job, and also its Python driver, which would outlive a killed JVM.

        If a driver still runs on another machine, its publish is refused.
        """
        if self._hook is None:
            # Spark was not started. A hook cannot be made here, because arguments may not be rendered yet.
            return
        from airflow_provider_pgoutput.spark_submit.job import kill_descendants, submit_process

        process = submit_process(self._hook)
        with kill_descendants(process):
            super().on_kill()


class SparkApplyOperator(LakeJobOperator):
    """Base of the operators that apply staged batches with Spark.

    The other arguments are those of ``LakeJobOperator``.

    :param mode: ``upsert``: a table has the rows that it has at the source. ``change_log``: a table has a row
        for every change. ``history``: a table has a row for every version of a row; see
        ``docs/how-to/history_tables.md``. (templated)
    :param metadata_columns: metadata columns of tables in the modes ``upsert`` and ``history``,
        ``["_pgoutput_commit_lsn"]``; see ``docs/reference/tables.md``. A change log has all of them.
        (templated)
    :param soft_delete: keep deleted rows of tables in mode ``upsert``, and mark them as deleted. (templated)
    :param current_views: make and keep a view ``<table>_current`` beside each change log: the rows that the
        source has now. The catalog has to keep views. (templated)
    :param on_row_refused: a row of a table in mode ``upsert`` cannot be written: an update leaves out values
        that the lake does not have, or the lake's type does not hold a value of its key. ``fail``: the table
        is refused. ``quarantine``: the row is left out of the table and noted in ``pgoutput_quarantine``, and
        the other rows go on. (templated)
    :param table_options: options of single tables by their names at the source, for instance
        ``{"schema.table": {"target": "orders", "partitioned_by": ["days(made_at)"]}}``.
        ``docs/reference/tables.md`` has all of them. The apply task warns of a name that is not published. A
        replay in place needs those of the pipeline. (templated)
    :param target_names: names of tables in the lake by pattern, for instance
        ``{"shop_(.*)[.]orders": "orders_{1}"}``: then ``shop_eu.orders`` becomes ``orders_eu``. A key is a
        regular expression for the whole of ``schema.table``. The first one that fits counts. A ``target`` in
        ``table_options`` goes before all of them. (templated)
    :param shared_names: names of tables in the lake that several tables share, by pattern, for instance
        ``{"shop_(?P<region>.*)[.]orders": "orders"}``: then ``shop_eu.orders`` and ``shop_us.orders`` are
        both written to ``orders``, which has a column ``region``; see ``docs/how-to/shared_tables.md``.
        (templated)
    :param plan_options: options of all tables, for instance ``{"write_mode": "copy-on-write"}``.
        ``docs/reference/tables.md`` has all of them. (templated)
    """

    on_row_refused: str

    plan_options: Mapping[str, Any] | str | None

    def __init__(
        self,
        *,
        mode: str = UPSERT,
        metadata_columns: Sequence[str] | str | None = None,
        soft_delete: bool | str = False,
        current_views: bool | str = False,
        on_row_refused: str = FAIL,
        table_options: Mapping[str, Mapping[str, Any]] | str | None = None,
        target_names: Mapping[str, str] | str | None = None,
        shared_names: Mapping[str, str] | str | None = None,
        plan_options: Mapping[str, Any] | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        arguments.keep(self, locals(), SparkApplyOperator._WRITE_ARGUMENTS)
        arguments.check_answers(self)
        check_target_names(_plain(target_names))
        check_shared_names(_plain(shared_names))
        _check_tables(mode, table_options)
        _check_histories(mode, table_options, soft_delete)

    _WRITE_ARGUMENTS = arguments.names_of(__init__)
    template_fields: Sequence[str] = (*LakeJobOperator.template_fields, *_WRITE_ARGUMENTS)
    template_fields_renderers = {  # noqa: RUF012
        **LakeJobOperator.template_fields_renderers,
        **arguments.renderers_of(__init__),
    }

    def make_job(
        self, kind: type[_Job], context: Context, lake: Lake, area: StagingArea, **fields: Any
    ) -> _Job:
        """Make a job out of the shared arguments and what an operator adds."""
        shared = arguments.values_of(
            self, SparkApplyOperator._WRITE_ARGUMENTS, WriteJob, table_options=table_options
        )
        options = plan_fields(self.plan_options)
        return super().make_job(kind, context, lake, area, **shared, **options, **fields)


def _plain(given: Mapping[str, str] | str | None) -> dict[str, str]:
    """The names by pattern that can be checked when a DAG is parsed: those without a template."""
    known = {str(key): str(name) for key, name in given.items()} if isinstance(given, dict) else {}
    return {key: name for key, name in known.items() if "{{" not in key + name}


def _check_tables(mode: str, given: object) -> None:
    """Refuse options of tables that cannot be right when the DAG file is parsed.

    What a template says is checked when the task runs.
    """
    tables = given if isinstance(given, Mapping) else {}
    known = {name: each for name, each in tables.items() if "{{" not in f"{name} {each}"}
    found = table_options(known)
    for table, options in found.items():
        options.check(table)
    modes = {each.mode for each in found.values() if each.mode}
    check_modes(modes | ({mode} if "{{" not in mode else set()), soft_delete=False)


def _check_histories(mode: str, options: object, soft_delete: bool | str) -> None:
    """Refuse what does not go with histories when the DAG file is parsed.

    What a template says is checked when the task runs.
    """
    tables = {} if options is None else options
    if not isinstance(soft_delete, bool) or not isinstance(tables, Mapping):
        return
    of_tables = [each.get("mode") for each in tables.values() if isinstance(each, Mapping)]
    if all(each == HISTORY for each in (mode, *of_tables) if each is not None):
        check_modes({HISTORY}, soft_delete=soft_delete)
