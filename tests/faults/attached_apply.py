"""An apply or a replay that borrows a running JVM, so that killing its Python half costs no new JVM.

Its arguments come as JSON on standard input. What is not here: the whole driver, Python and JVM, which
``processes.apply_in_process`` starts and kills.

Source: pyspark's ``java_gateway.py`` (``PYSPARK_GATEWAY_PORT``, ``PYSPARK_GATEWAY_SECRET``)
"""

from __future__ import annotations

import json
import os
import sys
import traceback

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from airflow_provider_pgoutput.apply.come_back import apply_and_bring_back
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.batch.jobs import ApplyJob, ReplayJob, job_from_json


def main() -> None:
    """Do the job that standard input describes."""
    plan = job_from_json(json.load(sys.stdin)["job"])
    gateway = launch_gateway()
    jvm = gateway.jvm
    context = jvm.org.apache.spark.SparkContext.getOrCreate()
    java_context = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(context)
    conf = SparkConf(_jvm=jvm, _jconf=java_context.getConf())
    status = 0
    try:
        spark = SparkSession(SparkContext(gateway=gateway, jsc=java_context, conf=conf))
        if isinstance(plan, ReplayJob):
            replay(spark, plan)
        else:
            assert isinstance(plan, ApplyJob)
            apply_and_bring_back(spark, plan)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # The end of Python would stop the Spark that belongs to somebody else.
    os._exit(status)


if __name__ == "__main__":
    main()
