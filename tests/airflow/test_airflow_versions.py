"""What a trigger awaits: Airflow's functions that would block the event loop."""

from __future__ import annotations

import asyncio
import json

from airflow.sdk import Connection
from airflow.sdk.log import redact

from airflow_provider_pgoutput.airflow_versions import extra_of, mask_secret_async


def test_a_trigger_masks_a_secret() -> None:
    secret = "Kq7-mask-me-in-a-trigger"
    assert redact(f"password={secret}") == f"password={secret}"
    asyncio.run(mask_secret_async(secret))
    assert redact(f"password={secret}") == "password=***"


def test_a_trigger_reads_the_extras_of_a_connection() -> None:
    extra = {"sslmode": "require", "iam": False}
    connection = Connection(conn_id="source", conn_type="postgres", extra=json.dumps(extra))
    assert asyncio.run(extra_of(connection)) == extra
