"""Finds the tasks that Airflow is running. It reads Airflow's database and changes nothing.

``doctor/findings.py`` decides which findings are normal while a task runs.
"""

from __future__ import annotations

import logging

from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_pgoutput.doctor.findings import RunningTask

log = logging.getLogger(__name__)

#: A task counts as running in these states, also if Airflow is only about to start it or to try it again.
_UNDER_WAY = (
    TaskInstanceState.SCHEDULED,
    TaskInstanceState.QUEUED,
    TaskInstanceState.RUNNING,
    TaskInstanceState.RESTARTING,
    TaskInstanceState.UP_FOR_RETRY,
    TaskInstanceState.UP_FOR_RESCHEDULE,
    TaskInstanceState.DEFERRED,
)


def running_tasks() -> tuple[RunningTask, ...] | None:
    """The running tasks of all DAGs. None: Airflow's database did not answer."""
    wanted = select(
        TaskInstance.dag_id, TaskInstance.task_id, TaskInstance.run_id, TaskInstance.operator
    ).where(TaskInstance.state.in_(_UNDER_WAY))
    try:
        with create_session(scoped=False) as session:
            return tuple(RunningTask(*row) for row in session.execute(wanted).all())
    except SQLAlchemyError as error:
        name = type(error).__name__
        log.warning("Airflow's database does not say which tasks are under way (%s).", name)
        return None
