"""The gauges, sent by Airflow's own client for StatsD over a real socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tests.lakes.programs import Unavailable, python_with

_OURS = "airflow.pgoutput."
_PROGRAM = """
from datetime import UTC, datetime, timedelta

from airflow_provider_pgoutput.tasks import metrics

batch = {"slot_name": "shop", "changes": 42, "stage_seconds": 1.5, "slot": {"retained_bytes": 4096}}
tables = {"public.a": {"inserts": 40, "rejected": 2}, "public.b": {"updates": 2, "rejected": 1}}
metrics.of_staged(batch, tables)
metrics.of_staged({"slot_name": "bare", "changes": 0}, {})
metrics.of_applied("shop", datetime.now(UTC) - timedelta(seconds=90), 7.25)
metrics.of_applied("bare", None, 0.5)
metrics.send("shop", {metrics.PROOF_AGE_SECONDS: 3600, metrics.RETAINED_BYTES: None})
"""


@pytest.mark.slow
def test_the_gauges_reach_a_server_of_statsd() -> None:
    try:
        folder = python_with("statsd", "statsd==4.0.1")
    except Unavailable as error:
        pytest.skip(str(error))
    (client,) = folder.parent.glob("lib/python*/site-packages")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        environment = {
            **os.environ,
            "PYTHONPATH": str(client),
            "AIRFLOW__METRICS__STATSD_ON": "True",
            "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__STATSD_PORT": str(server.getsockname()[1]),
            "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",
        }
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        told: list[str] = []
        while len(told) < 10:
            lines = server.recv(65536).decode().splitlines()
            told += [each for each in lines if each.startswith(_OURS)]
    found = dict(each.removeprefix(_OURS).removesuffix("|g").split(":") for each in told)
    assert 90 <= float(found.pop("freshness_seconds,slot=shop")) < 150
    assert {name: float(value) for name, value in found.items()} == {
        "batch_changes,slot=shop": 42,
        "rejected_values,slot=shop": 3,
        "stage_seconds,slot=shop": 1.5,
        "retained_bytes,slot=shop": 4096,
        "batch_changes,slot=bare": 0,
        "rejected_values,slot=bare": 0,
        "apply_seconds,slot=shop": 7.25,
        "apply_seconds,slot=bare": 0.5,
        "proof_age_seconds,slot=shop": 3600,
    }
