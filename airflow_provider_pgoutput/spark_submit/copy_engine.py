"""Copies large tables with a Spark job, while the task that started it holds the snapshot.

The job's driver runs on this worker (deploy mode ``client``). So both sides talk through files in a private
folder: the job with the source's password, which the driver deletes as soon as it has read it, and the result
of each table. The Spark application is in ``spark_copy/``. ``capture/copy/on_spark.py`` decides which tables
are large.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.hooks import default_connections
from airflow_provider_pgoutput.hooks.connections import get_connection
from airflow_provider_pgoutput.tasks import arguments

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_provider_pgoutput.capture.copy_job import CopyJob, RefusedTable
    from airflow_provider_pgoutput.capture.staging.copied_table import CopiedTable
    from airflow_provider_pgoutput.spark_submit.files import SparkFiles
    from airflow_provider_pgoutput.spark_submit.job import SparkJob

WORKER = "worker"
SPARK = "spark"

#: Size on the server's disk, with TOAST.
FROM_BYTES = 64 << 30

_SECONDS_BETWEEN_LOOKS = 0.5
#: A driver that has reported everything only has to disconnect.
_SECONDS_TO_END = 30.0


class CopyingOperator(BaseOperator):
    """Base of the stage operator, with the arguments of a copy on Spark.

    :param copy_engine: ``worker``: this task copies all tables. ``spark``: a Spark job copies the large
        tables, in the snapshot that this task holds; see ``docs/how-to/copy_with_spark.md``. (templated)
    :param spark_conn_id: the Spark cluster of the job, a connection of type ``spark``. (templated)
    :param spark_copy_from_bytes: a table is large if it takes at least this many bytes on the server's disk;
        None: 64 GiB. (templated)
    :param spark_copy_conf: Spark configuration of the job. It appears on a command line, so do not put
        secrets in it. (templated)
    """

    copy_engine: str
    spark_conn_id: str
    spark_copy_from_bytes: int | str | None
    spark_copy_conf: Mapping[str, Any] | str | None

    def __init__(
        self,
        *,
        copy_engine: str = WORKER,
        spark_conn_id: str = default_connections.SPARK,
        spark_copy_from_bytes: int | str | None = None,
        spark_copy_conf: Mapping[str, Any] | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        arguments.keep(self, locals(), CopyingOperator.template_fields)
        self._spark_copy: SparkCopy | None = None

    template_fields: Sequence[str] = arguments.templated_of(__init__)
    template_fields_renderers = arguments.renderers_of(__init__)

    def _copy_engine(self, postgres_conn_id: str) -> SparkCopy | None:
        """The engine that copies the large tables; None: this task copies them.

        :raises ConfigurationError: the arguments or the connections do not fit together.
        """
        engine = arguments.required_text(self.copy_engine, "copy_engine")
        if engine == WORKER:
            return None
        if engine != SPARK:
            raise ConfigurationError(
                f"Unknown copy_engine {engine!r}.", advice=f"use {WORKER!r} or {SPARK!r}."
            )
        if get_connection(postgres_conn_id).extra_dejson.get("iam"):
            raise ConfigurationError(
                "copy_engine='spark' opens sessions at the source for as long as the copy runs, and an IAM"
                " token serves for a quarter of an hour only.",
                advice="use a connection with a password or a certificate, or copy_engine='worker'.",
            )
        least = arguments.whole_number(self.spark_copy_from_bytes, "spark_copy_from_bytes")
        self._spark_copy = SparkCopy(
            arguments.required_text(self.spark_conn_id, "spark_conn_id"),
            FROM_BYTES if least is None else least,
            arguments.mapping(self.spark_copy_conf, "spark_copy_conf"),
            f"airflow-{self.dag_id}-{self.task_id}-copy",
        )
        # Without this check an unknown connection would silently become the master "yarn".
        get_connection(self._spark_copy.conn_id)
        return self._spark_copy

    def on_kill(self) -> None:
        """Stop the Spark job, if there is one."""
        if self._spark_copy is not None:
            self._spark_copy.stop()


@dataclass(slots=True)
class SparkCopy:
    """A ``CopyEngine``: one Spark job for the large tables of a copy."""

    conn_id: str
    least_bytes: int
    conf: Mapping[str, Any]
    name: str
    _hook: SparkSubmitHook | None = None

    @contextlib.contextmanager
    def started(self, job: CopyJob) -> Iterator[Iterator[CopiedTable | RefusedTable]]:
        """Submit the job; see ``CopyEngine``."""
        from airflow_provider_pgoutput.capture.copy_job import JOB_FILE
        from airflow_provider_pgoutput.spark_submit.files import COPY, write_private
        from airflow_provider_pgoutput.spark_submit.job import SparkJob

        spark = SparkJob.prepare(get_connection(self.conn_id), "client", None)
        with spark.files({}, None, self.conf, started=COPY) as files:
            write_private(files.folder / JOB_FILE, job.to_json())
            hook = self._hook = self._submit_hook(spark, files)
            submission = _Submission(hook, files.application)
            submission.start()
            try:
                yield _tables(files.folder, job, submission)
                submission.join(_SECONDS_TO_END)
            finally:
                # At the first attempt to stop it, its process may not be there yet.
                while submission.is_alive():
                    self.stop()
                    submission.join(1)
                self._hook = None

    def stop(self) -> None:
        """End the job's driver with its Python part. Its executors end with it."""
        from airflow_provider_pgoutput.spark_submit.job import kill_descendants, submit_process

        if self._hook is not None:
            with kill_descendants(submit_process(self._hook)):
                self._hook.on_kill()

    def _submit_hook(self, spark: SparkJob, files: SparkFiles) -> SparkSubmitHook:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        conf = dict(self.conf)
        if spark.uses_own_spark and "spark.pyspark.python" in conf:
            # This is the executors' Python. The driver runs here.
            conf.setdefault("spark.pyspark.driver.python", sys.executable)
        return SparkSubmitHook(
            conf=conf,
            conn_id=self.conn_id,
            py_files=files.package_zip,
            properties_file=files.properties_file,
            name=self.name,
            application_args=["--folder", str(files.folder)],
            env_vars=spark.environment({}, None),
            spark_binary=spark.spark_binary,
            deploy_mode="client",
        )


class _Submission(threading.Thread):
    """spark-submit, from its start to its end."""

    def __init__(self, hook: SparkSubmitHook, application: str) -> None:
        super().__init__(name="spark-copy", daemon=True)
        self._hook = hook
        self._application = application
        #: The error that the hook made of an exit status; None: the status was 0, or there is none yet.
        self.error: Exception | None = None

    def run(self) -> None:
        """Wait for the end, and log what the driver prints."""
        try:
            self._hook.submit(self._application)
        except Exception as error:  # Raised by the thread that waits for tables.
            self.error = error


def _tables(
    folder: Path, job: CopyJob, submission: _Submission
) -> Iterator[CopiedTable | RefusedTable]:
    """The tables of a job. Each is yielded when the driver says that it is done, or refused."""
    from airflow_provider_pgoutput.capture.copy_job import (
        Failure,
        RefusedTable,
        copied_file,
        refused_file,
    )
    from airflow_provider_pgoutput.capture.staging.copied_table import CopiedTable

    waiting = {each.table.relation_oid for each in job.tables}
    while waiting:
        has_ended = not submission.is_alive()
        for oid in sorted(waiting):
            copied, refused = folder / copied_file(oid), folder / refused_file(oid)
            if copied.exists():
                waiting.remove(oid)
                yield CopiedTable.from_json(copied.read_text(encoding="utf-8"))
            elif refused.exists():
                waiting.remove(oid)
                failure = Failure.from_json(refused.read_text(encoding="utf-8"))
                yield RefusedTable(oid, failure.to_error())
        if waiting and has_ended:
            raise _failure(folder, submission)
        if waiting:
            submission.join(_SECONDS_BETWEEN_LOOKS)


def _failure(folder: Path, submission: _Submission) -> Exception:
    """Why the job ended too early. What the driver itself reported counts more than its exit status."""
    from airflow_provider_pgoutput.capture.copy_job import FAILURE_FILE, Failure

    path = folder / FAILURE_FILE
    named = Failure.from_json(path.read_text("utf-8")).to_error() if path.exists() else None
    return (
        named
        or submission.error
        or ConfigurationError(
            "The Spark job of the copy ended well and did not say what it copied.",
            advice="see its log; spark_conn_id must lead to a Spark whose driver may run on this worker.",
        )
    )
