"""What differs between the versions of Airflow that this package runs with. No other module knows of it.

Airflow 3.2 moved some names, and the provider ``common.compat`` finds them in each version. Airflow 3.3 made
some functions that a trigger can await. Here they are made of the functions that every version has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    BaseHook,
    conf,
    mask_secret,
)

if TYPE_CHECKING:
    from airflow.sdk import Connection

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "BaseHook",
    "conf",
    "extra_of",
    "mask_secret",
    "mask_secret_async",
]


async def mask_secret_async(secret: str) -> None:
    """Hide a secret from the logs of a trigger, without blocking the event loop."""
    # Airflow sends the secret to its supervisor through the loop's own connection. asgiref brings the call
    # back to this loop; the threads of asyncio would use another one.
    from asgiref.sync import sync_to_async  # noqa: PLC0415 - parsing a DAG file does not need it

    await sync_to_async(mask_secret)(secret)


async def extra_of(connection: Connection) -> dict[str, Any]:
    """The extras of a connection, without blocking the event loop. Airflow hides them from logs."""
    from asgiref.sync import sync_to_async  # noqa: PLC0415 - as above

    return await sync_to_async(lambda: connection.extra_dejson)()
