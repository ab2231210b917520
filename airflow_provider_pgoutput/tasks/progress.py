"""How far a task is, while it runs: an XCom of its own that is written again and again. The page shows it.

Airflow 3.3 has a state of tasks, too. An XCom is the same in each version, and the API shows both.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.airflow_versions import pushes_leave_tasks_alone

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk.types import RuntimeTaskInstanceProtocol

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
#: Name of the XCom.
KEY = "pgoutput_progress"
#: A write takes less than 0.1 s, so it costs less than a hundredth of the time.
_SECONDS_BETWEEN = 15.0


class TaskProgress:
    """Writes the XCom, at most every 15 seconds.

    The caller reports every five seconds, so a shorter task writes none. Airflow 3.1 gets none: there a write
    ends the task if the API server does not answer for some seconds.
    """

    def __init__(self, task_instance: RuntimeTaskInstanceProtocol) -> None:
        self._task_instance = task_instance
        self._told_at: float | None = None
        self._stopped = not pushes_leave_tasks_alone()

    def __call__(self, facts: Mapping[str, Any]) -> None:
        """Write the facts, if the last write is 15 seconds old.

        If Airflow does not take them, the task goes on and writes no more. Nothing depends on them.
        """
        now = time.monotonic()
        if self._stopped or (self._told_at is not None and now - self._told_at < _SECONDS_BETWEEN):
            return
        self._told_at = now
        at = datetime.now(UTC).isoformat(timespec="seconds")
        value = {"schema_version": SCHEMA_VERSION, "at": at, **facts}
        try:
            self._task_instance.xcom_push(key=KEY, value=value)
        except Exception as error:
            # An XCom backend of the user may raise anything, and a long copy must not end because of it. Its
            # text is not logged, because it may quote an address.
            self._stopped = True
            log.warning(
                "The page will not show the progress: Airflow did not take it (%s).",
                type(error).__name__,
            )
