"""What a trigger awaits: Airflow's functions that would block the event loop."""

from __future__ import annotations

import asyncio
import json
import threading

from airflow.sdk import Connection
from airflow.sdk.log import redact
from asgiref.sync import async_to_sync

from airflow_provider_pgoutput.airflow_versions import extra_of, in_thread, mask_secret_async


def test_a_trigger_masks_a_secret() -> None:
    secret = "Kq7-mask-me-in-a-trigger"
    assert redact(f"password={secret}") == f"password={secret}"
    asyncio.run(mask_secret_async(secret))
    assert redact(f"password={secret}") == "password=***"


def test_a_trigger_reads_the_extras_of_a_connection() -> None:
    extra = {"sslmode": "require", "iam": False}
    connection = Connection(conn_id="source", conn_type="postgres", extra=json.dumps(extra))
    assert asyncio.run(extra_of(connection)) == extra


async def running_loop() -> asyncio.AbstractEventLoop:
    """As Airflow's connection to its supervisor, this belongs to one event loop."""
    return asyncio.get_running_loop()


def test_a_thread_of_a_trigger_asks_the_loop_of_the_trigger() -> None:
    async def scenario() -> None:
        assert await in_thread(async_to_sync(running_loop)) is asyncio.get_running_loop()

    asyncio.run(scenario())


def test_triggers_do_not_share_a_thread() -> None:
    both = threading.Barrier(2, timeout=10)

    async def scenario() -> None:
        await asyncio.gather(in_thread(both.wait), in_thread(both.wait))

    asyncio.run(scenario())
