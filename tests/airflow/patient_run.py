"""A run of the example DAG as a program, as ``airflow dags test`` does it, with other retries than the DAG's.

``patient_run.py CONF RETRIES``: each task is tried again as often, a second after it failed. The exit status
is 1 when the run failed. What is not here: any look at the result.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta

DAG_ID = "pgoutput_to_iceberg"


def main() -> None:
    """Run the DAG from its first task to its last."""
    from airflow.sdk import DagRunState, timezone
    from airflow.utils.cli import get_bagged_dag

    conf, retries = sys.argv[1:]
    dag = get_bagged_dag(None, DAG_ID)
    for task in dag.tasks:
        task.retries = int(retries)
        task.retry_delay = timedelta(seconds=1)
    run = dag.test(logical_date=timezone.utcnow(), run_conf=json.loads(conf))
    sys.exit(0 if run.state == DagRunState.SUCCESS else 1)


if __name__ == "__main__":
    main()
