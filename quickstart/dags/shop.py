"""What ``make airflow`` shows: a pipeline that runs each minute, and a verification beside it.

The connections, and the values below, come from the environment of ``make airflow``. A pipeline of your own
has them in its file, as ``docs/how-to/schedule.md`` shows.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_pgoutput.operators.verify import PgoutputVerifyOperator
from airflow_provider_pgoutput.task_groups.pipeline import pgoutput_to_iceberg

#: ``slot_name``, ``publication_names``, ``staging_uri`` and ``namespace``.
pipeline = json.loads(os.environ["PGOUTPUT_DEMO_PIPELINE"])

with DAG(
    "shop",
    description="pgbench's tables into Iceberg",
    doc_md=__doc__,
    schedule=timedelta(minutes=1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    tags=["demo"],
):
    pgoutput_to_iceberg(**pipeline)

with DAG(
    "shop_verify",
    description="Proves that lake and source are equal at one LSN",
    doc_md=__doc__,
    start_date=datetime.fromisoformat(os.environ["PGOUTPUT_DEMO_VERIFIES_FROM"]),
    schedule=timedelta(minutes=10),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=30)},
    tags=["demo"],
):
    PgoutputVerifyOperator(task_id="verify", deferrable=True, **pipeline)
