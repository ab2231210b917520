"""A run of the example DAG as a program that dies right after a task pushed its XCom, and is taken up again.

``interrupted_run.py start CONF [TASK]`` runs the DAG as ``airflow dags test`` does; ``resume [TASK]`` takes
up the run that did not end where it was left. Named, the task's process ends by SIGKILL when the value that
the task returned is in Airflow's database and before anything else is. ``clear RUN`` clears all tasks of a
run as ``airflow tasks clear`` does. What is not here: any look at the result.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

DAG_ID = "pgoutput_to_iceberg"


def kill_after_xcom(task: str) -> None:
    """Let the process die in Airflow's own code between the XCom and the success of a task."""
    from airflow.sdk.execution_time import task_runner

    push = task_runner._push_xcom_if_needed

    def push_and_die(result: Any, ti: Any, log: Any) -> None:
        push(result, ti, log)
        if ti.task_id == f"{DAG_ID}.{task}":
            os.kill(os.getpid(), signal.SIGKILL)

    task_runner._push_xcom_if_needed = push_and_die


def start(conf: str) -> None:
    """Run the DAG from its first task."""
    from airflow.__main__ import main

    sys.argv = ["airflow", "dags", "test", DAG_ID, "-c", conf]
    main()


def clear(run_id: str) -> None:
    """Clear a run, which ended."""
    from airflow.__main__ import main
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(DagRun.logical_date).where(DagRun.dag_id == DAG_ID, DagRun.run_id == run_id)
        logical_date = session.scalars(query).one()
    assert logical_date is not None
    date = logical_date.isoformat()
    sys.argv = ["airflow", "tasks", "clear", DAG_ID, "--yes", "-s", date, "-e", date]
    main()


def resume() -> None:
    """Fail what lost its heartbeat, as the scheduler does, and go on with the same run.

    The loop is the one of ``DAG.test``, which can only begin a run.
    """
    from airflow.models.dagrun import DagRun
    from airflow.sdk.definitions.dag import _run_task
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.utils.cli import get_bagged_dag
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from sqlalchemy import select

    dag = get_bagged_dag(None, DAG_ID)
    for task in dag.tasks:
        task.retry_delay = timedelta(0)
    begun = (DagRunState.QUEUED, DagRunState.RUNNING)
    wanted = select(DagRun).where(DagRun.dag_id == DAG_ID, DagRun.state.in_(begun))
    with create_session() as session:
        run = session.scalars(wanted).one()
        run.state = DagRunState.RUNNING
        run.dag = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
        for instance in run.get_task_instances(session=session):
            if instance.state == TaskInstanceState.RUNNING:
                instance.task = run.dag.get_task(instance.task_id)
                instance.handle_failure("The task lost its heartbeat.", session=session)
        while run.state == DagRunState.RUNNING:
            session.expire_all()
            ready, _ = run.update_state(session=session)
            for instance in ready:
                instance.try_number += 1
                instance.state = TaskInstanceState.SCHEDULED
            session.commit()
            for instance in ready:
                _run_task(ti=instance, task=dag.get_task(instance.task_id))


def main() -> None:
    """Do what the arguments say."""
    command, *rest = sys.argv[1:]
    given = [] if command == "resume" else [rest.pop(0)]
    if rest:
        kill_after_xcom(*rest)
    commands: dict[str, Callable[..., None]] = {"start": start, "resume": resume, "clear": clear}
    commands[command](*given)


if __name__ == "__main__":
    main()
