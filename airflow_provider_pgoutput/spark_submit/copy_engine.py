"""Copies large tables with a Spark job, while the task that started it holds the snapshot.

The job's driver runs on this worker (deploy mode ``client``). So both sides talk through files in a private
folder: the job with the source's password, which the driver deletes as soon as it has read it, how far the
tables are, and the result of each. The Spark application is in ``spark_copy/``. ``capture/copy/on_spark.py``
decides which tables are large.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.hooks import default_connections
from airflow_provider_pgoutput.hooks.connections import get_connection
from airflow_provider_pgoutput.spark_submit.local_driver import LocalDriver
from airflow_provider_pgoutput.tasks import arguments

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_provider_pgoutput.capture.copy_job import CopyJob, FromEngine
    from airflow_provider_pgoutput.spark_submit.local_driver import Submission

WORKER = "worker"
SPARK = "spark"

#: Size on the server's disk, with TOAST.
FROM_BYTES = 64 << 30

_SECONDS_BETWEEN_LOOKS = 0.5


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
class SparkCopy(LocalDriver):
    """A ``CopyEngine``: one Spark job for the large tables of a copy."""

    @contextlib.contextmanager
    def started(self, job: CopyJob) -> Iterator[Iterator[FromEngine]]:
        """Submit the job; see ``CopyEngine``."""
        from airflow_provider_pgoutput.spark_submit.files import COPY

        with self.submitted(COPY, job.to_json()) as submission:
            yield _tables(job, submission)


def _tables(job: CopyJob, submission: Submission) -> Iterator[FromEngine]:
    """The tables of a job. Each is yielded when the driver says that it is done, or refused.

    Before that it is yielded how far they are, every time that the driver says it.
    """
    from airflow_provider_pgoutput.capture.copy_job import (
        PROGRESS_FILE,
        CopiedSoFar,
        Failure,
        RefusedTable,
        copied_file,
        refused_file,
    )
    from airflow_provider_pgoutput.capture.staging.copied_table import CopiedTable

    folder = submission.folder
    waiting = {each.table.relation_oid for each in job.tables}
    progress, told_at = folder / PROGRESS_FILE, 0
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
        if progress.exists() and (written_at := progress.stat().st_mtime_ns) != told_at:
            told_at = written_at
            so_far = [CopiedSoFar(**each) for each in json.loads(progress.read_text("utf-8"))]
            yield from (each for each in so_far if each.relation_oid in waiting)
        if waiting and has_ended:
            raise submission.failure("copied")
        if waiting:
            submission.join(_SECONDS_BETWEEN_LOOKS)
