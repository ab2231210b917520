"""What differs between the versions of Airflow that this package runs with.

Airflow 3.2 moved some names, and the provider ``common.compat`` finds them in each version. Airflow 3.3 made
some functions that a trigger can await. Here they are made of the functions that every version has.

The command line is different, too: Airflow has commands of providers from 3.2 on. ``cli/`` handles that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    BaseHook,
    Stats,
    conf,
    mask_secret,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Connection

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "BaseHook",
    "CronSchedule",
    "Stats",
    "conf",
    "extra_of",
    "in_thread",
    "mask_secret",
    "mask_secret_async",
    "openlineage_facets",
    "pushes_leave_tasks_alone",
    "schedule_of",
]

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """When a DAG runs, as a cron expression in a time zone.

    :ivar timezone: a zone, or its name.
    """

    expression: str
    timezone: Any


def pushes_leave_tasks_alone() -> bool:
    """Whether a task goes on if Airflow cannot take an XCom while it runs. In 3.1 the supervisor ends."""
    # Parsing a DAG file does not need them.
    from airflow import __version__  # noqa: PLC0415
    from packaging.version import Version  # noqa: PLC0415

    return Version(__version__) >= Version("3.2")


def openlineage_facets() -> Any:
    """The classes of OpenLineage's datasets and facets. Airflow's OpenLineage provider is installed."""
    from airflow.providers.common.compat.openlineage import facet  # noqa: PLC0415

    return facet


async def in_thread(function: Callable[..., _Result], *arguments: object) -> _Result:
    """Run a function that blocks in a thread, for a trigger. The function may ask Airflow for something."""
    # Airflow sends the question to its supervisor through the loop's own connection. asgiref brings it back
    # to this loop. In a thread of asyncio, Airflow 3.1 would send it through another loop.
    from asgiref.sync import sync_to_async  # noqa: PLC0415 - parsing a DAG file does not need it

    # By default, asgiref has one thread for all triggers of the process.
    return await sync_to_async(function, thread_sensitive=False)(*arguments)


async def mask_secret_async(secret: str) -> None:
    """Hide a secret from the logs of a trigger, without blocking the event loop."""
    await in_thread(mask_secret, secret)


async def extra_of(connection: Connection) -> dict[str, Any]:
    """The extras of a connection, without blocking the event loop. Airflow hides them from logs."""
    return await in_thread(lambda: connection.extra_dejson)


def schedule_of(timetable: object) -> timedelta | CronSchedule | None:
    """Read when a DAG runs from its timetable. None: by hand, by assets, or by a timetable of another kind.

    A DAG of Airflow 3.2 has a timetable of the Task SDK, with public attributes. A DAG of Airflow 3.1 has a
    timetable of the scheduler, which shows its values only when it is serialised.
    """
    delta = getattr(timetable, "delta", None)
    if isinstance(delta, timedelta):
        return delta
    expression = getattr(timetable, "expression", None)
    if isinstance(expression, str):
        return CronSchedule(expression, getattr(timetable, "timezone", "UTC"))
    # Parsing a DAG file does not need them.
    import pendulum  # noqa: PLC0415
    from airflow.timetables import interval, trigger  # noqa: PLC0415

    if isinstance(timetable, interval.CronDataIntervalTimetable | trigger.CronTriggerTimetable):
        values = timetable.serialize()
        # A zone without a name, like +01:00, is serialised as seconds.
        return CronSchedule(values["expression"], pendulum.timezone(values["timezone"]))
    if isinstance(timetable, interval.DeltaDataIntervalTimetable | trigger.DeltaTriggerTimetable):
        seconds = timetable.serialize()["delta"]
        # A relativedelta is serialised as a dict. Its length differs from month to month.
        return timedelta(seconds=seconds) if isinstance(seconds, int | float) else None
    return None
