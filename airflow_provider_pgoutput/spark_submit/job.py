"""How one spark-submit is started: where, with which binary, configuration and environment.

``SparkSubmitHook`` builds the command line and follows the job.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.spark_submit.files import (
    APPLY,
    REDACTION_KEY,
    has_own_log,
    own_spark_submit,
    property_of,
    spark_defaults,
    spark_files,
    spark_home,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    import psutil
    from airflow.sdk import Connection

    from airflow_provider_pgoutput.spark_submit.files import Application, SparkFiles

_EXTENSIONS = "spark.sql.extensions"
_DEPLOY_MODE = "spark.submit.deployMode"
_PYTHON = "PYSPARK_PYTHON"


@dataclass(frozen=True, slots=True)
class SparkJob:
    """Where a job runs. That decides what may be handed to it."""

    #: None: what ``SparkSubmitHook`` chooses.
    spark_binary: str | None
    #: The same, or what the hook chooses.
    submit: str
    #: Then ``env_vars`` are the driver's, and not spark-submit's.
    on_kubernetes: bool
    #: The driver gets its configuration, with secrets, through a ConfigMap of the cluster.
    has_config_map: bool
    #: The driver is a child of this process, so the environment does not go on a command line.
    driver_is_here: bool
    #: spark-submit is the driver itself. It is not in deploy mode cluster: there it only follows the driver.
    is_driver: bool
    #: The spark-submit of Airflow's own environment is used.
    uses_own_spark: bool

    @classmethod
    def prepare(
        cls,
        connection: Connection,
        deploy_mode: str | None,
        spark_binary: str | None,
        conf: Mapping[str, Any] | None = None,
        properties_file: str | None = None,
        env_vars: Mapping[str, Any] | None = None,
    ) -> SparkJob:
        """Read the connection as ``SparkSubmitHook`` will, and the configuration as spark-submit will.

        :param connection: the connection of type ``spark``.
        :param deploy_mode: the operator's argument, which wins over the connection's.
        :param spark_binary: the operator's argument, which wins over the connection's.
        :param conf: the user's configuration. It may have the deploy mode, if nothing else says it.
        :param properties_file: the user's, which may have it, too; None: see ``files``.
        :param env_vars: the user's environment variables.
        """
        extra = connection.extra_dejson
        own = None if spark_binary or extra.get("spark-binary") else own_spark_submit()
        master = (
            (connection.host or "") if connection.conn_type == "spark" else connection.conn_type
        )
        # As SparkSubmitHook does: if the master contains "k8s", the environment goes on the command line.
        on_kubernetes = "k8s" in str(master)
        remote = on_kubernetes or "yarn" in str(master)
        submit = spark_binary or own or extra.get("spark-binary") or "spark-submit"
        mode = deploy_mode or extra.get("deploy-mode") or (conf or {}).get(_DEPLOY_MODE)
        if not mode:
            defaults = properties_file or spark_defaults(
                submit, {} if on_kubernetes else env_vars or {}
            )
            mode = (defaults and property_of(defaults, _DEPLOY_MODE)) or "client"
        return cls(
            spark_binary=spark_binary or own,
            submit=submit,
            on_kubernetes=on_kubernetes,
            has_config_map=on_kubernetes and mode == "cluster",
            driver_is_here=not remote and mode == "client",
            is_driver=mode == "client",
            uses_own_spark=own is not None,
        )

    def files(
        self,
        secrets: Mapping[str, str],
        properties_file: str | None,
        given: Mapping[str, Any],
        env_vars: Mapping[str, Any] | None = None,
        *,
        started: Application = APPLY,
        is_short: bool = False,
    ) -> AbstractContextManager[SparkFiles]:
        """Write the files of the job, see ``spark_files``.

        :param properties_file: the user's; None: the ``spark-defaults.conf`` that Spark would read otherwise.
        :param given: the user's configuration.
        :param env_vars: the user's environment variables.
        :param is_short: the job has little to do.
        """
        redaction = given.get(REDACTION_KEY)
        of_submit = {} if self.on_kubernetes else env_vars or {}
        begins_with = properties_file or spark_defaults(self.submit, of_submit)
        return spark_files(
            secrets,
            begins_with,
            started,
            redaction=None if redaction is None else str(redaction),
            is_short=is_short,
            # In deploy mode cluster, Airflow reads the driver's name and how it ended from the log.
            is_quiet=self.is_driver and not has_own_log(self.submit, of_submit, begins_with, given),
        )

    def home(self, env_vars: Mapping[str, Any] | None) -> Path | None:
        """The folder of the Spark that spark-submit starts; None: it was not found.

        :param env_vars: the user's environment variables.
        """
        return spark_home(self.submit, {} if self.on_kubernetes else env_vars or {})

    def merged_conf(self, catalog: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        """Put the user's configuration over the catalog's. Extensions of both are kept."""
        merged = {**catalog, **given}
        extensions = [
            each for conf in (catalog, given) for each in str(conf.get(_EXTENSIONS, "")).split(",")
        ]
        merged[_EXTENSIONS] = ",".join(dict.fromkeys(filter(None, extensions)))
        # It is already part of the one in the properties file, over which it would win here.
        merged.pop(REDACTION_KEY, None)
        return merged

    def environment(
        self, secrets: Mapping[str, str], given: Mapping[str, Any] | None
    ) -> dict[str, Any] | None:
        """Environment variables for spark-submit, in addition to its own.

        On YARN and Kubernetes they go on the command line. So secrets are left out there, and the cluster's
        own identity has to be enough.
        """
        environment = dict(given or {})
        if self.driver_is_here:
            environment = {**secrets, **environment}
            if self.uses_own_spark and _PYTHON not in environment and _PYTHON not in os.environ:
                # Otherwise spark-submit would take the first python3 in PATH, which may lack pyspark.
                environment[_PYTHON] = sys.executable
        return environment or None


def submit_process(hook: Any) -> psutil.Process | None:
    """The running spark-submit of ``hook``; None: there is none."""
    import psutil

    started = getattr(hook, "_submit_sp", None)
    if started is None or started.poll() is not None:
        return None
    try:
        return psutil.Process(started.pid)
    except psutil.NoSuchProcess:
        return None


@contextmanager
def kill_descendants(process: psutil.Process | None) -> Iterator[None]:
    """Remember the processes below ``process``, and after the block kill those that are left."""
    import psutil

    try:
        below = process.children(recursive=True) if process else []
    except psutil.NoSuchProcess:
        below = []
    try:
        yield
    finally:
        for child in below:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(below, timeout=5)
