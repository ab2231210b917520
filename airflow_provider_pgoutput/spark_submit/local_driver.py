"""Spark jobs whose driver runs on this worker (deploy mode ``client``), for the task that started it.

Both sides talk through files in a private folder: the job, which may have a password in it and which the
driver deletes as soon as it has read it, and what the driver answers. ``spark_driver.py`` is the other side.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.hooks.connections import get_connection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_provider_pgoutput.spark_submit.files import Application, SparkFiles
    from airflow_provider_pgoutput.spark_submit.job import SparkJob

#: A driver that has reported everything only has to disconnect.
_SECONDS_TO_END = 30.0


@dataclass(slots=True)
class LocalDriver:
    """Submits jobs of one kind."""

    conn_id: str
    #: From how many bytes on a table is worth a job.
    least_bytes: int
    #: The user's Spark configuration.
    conf: Mapping[str, Any]
    #: Of the Spark application.
    name: str
    _hook: SparkSubmitHook | None = None

    @contextlib.contextmanager
    def submitted(self, application: Application, job: str) -> Iterator[Submission]:
        """Submit a job. When the block is left, it has ended or is ended.

        :param job: its text.
        """
        from airflow_provider_pgoutput.capture.copy_job import JOB_FILE
        from airflow_provider_pgoutput.spark_submit.files import write_private
        from airflow_provider_pgoutput.spark_submit.job import SparkJob

        spark = SparkJob.prepare(get_connection(self.conn_id), "client", None)
        with spark.files({}, None, self.conf, started=application) as files:
            write_private(files.folder / JOB_FILE, job)
            hook = self._hook = self._submit_hook(spark, files)
            submission = Submission(hook, files)
            submission.start()
            try:
                yield submission
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


class Submission(threading.Thread):
    """spark-submit, from its start to its end."""

    def __init__(self, hook: SparkSubmitHook, files: SparkFiles) -> None:
        super().__init__(name=files.folder.name, daemon=True)
        self._hook = hook
        self._application = files.application
        #: Where both sides leave their files.
        self.folder: Path = files.folder
        #: The error that the hook made of an exit status; None: the status was 0, or there is none yet.
        self.error: Exception | None = None

    def run(self) -> None:
        """Wait for the end, and log what the driver prints."""
        try:
            self._hook.submit(self._application)
        except Exception as error:  # Raised by the thread that waits for the answer.
            self.error = error

    def failure(self, what: str) -> Exception:
        """Why the job ended too early. What the driver itself reported counts more than its exit status.

        :param what: what it should have done, and say: ``copied``.
        """
        from airflow_provider_pgoutput.capture.copy_job import FAILURE_FILE, MISSING_MODULE, Failure

        if lacking := MISSING_MODULE.search(str(self.error)):
            return ConfigurationError(
                f"The Python of the Spark driver lacks the package {lacking[1].partition('.')[0]}.",
                advice="the driver runs on this worker. Let it run in Airflow's Python: name that one as"
                " spark.pyspark.driver.python in the configuration of the job.",
            )
        path = self.folder / FAILURE_FILE
        named = Failure.from_json(path.read_text("utf-8")).to_error() if path.exists() else None
        return (
            named
            or self.error
            or ConfigurationError(
                f"The Spark job ended well and did not say what it {what}.",
                advice="see its log; spark_conn_id must lead to a Spark whose driver may run on this worker.",
            )
        )
