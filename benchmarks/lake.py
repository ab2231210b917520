"""What all measurements of the apply share: a Spark session, a lake, an applied batch, and progress.

What is not here: the batches (``synthetic_batch.py``) and what is compared with what.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.jobs import ApplyJob
from quickstart.spark import LocalLake, class_archive_option, local_conf, spark_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_spark(lake: LocalLake) -> SparkSession:
    """A local session with two cores."""
    os.environ.update(spark_environment())
    from pyspark.sql import SparkSession  # noqa: PLC0415 - needs the environment

    builder = SparkSession.builder.master("local[2]").appName("pgoutput-benchmark")
    settings = local_conf(driver_memory="6g")
    # Java's own compiler and collector: the quick start's are for jobs of seconds.
    settings["spark.driver.extraJavaOptions"] = class_archive_option()
    for name, value in {**settings, **lake.spark_conf()}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def apply(
    spark: SparkSession, namespace: str, staging: Path, manifest_path: Path, **options: Any
) -> float:
    """Seconds of the pipeline's apply of a sealed batch, from the manifest to the checkpoint row.

    :param options: fields of the job over its defaults.
    """
    from airflow_provider_pgoutput.apply.pipeline import apply_batch  # noqa: PLC0415

    job = ApplyJob(
        manifest_uri=manifest_path.as_uri(),
        staging_uri=staging.as_uri(),
        catalog_name="lake",
        namespace=namespace,
        **options,
    )
    started = time.perf_counter()
    apply_batch(spark, job)
    return time.perf_counter() - started


def cpu_seconds(spark: SparkSession) -> float:
    """Of this process and of the Java below it."""
    jvm: Any = spark._jvm
    management = jvm.java.lang.management.ManagementFactory
    java = int(management.getRuntimeMXBean().getPid())
    ticks = 0
    for process in (os.getpid(), java):
        # After the name of the process, which may have any character, the 12th and 13th field.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def say(text: str) -> None:
    """Progress goes to standard error; standard output is for the result."""
    print(text, file=sys.stderr, flush=True)
