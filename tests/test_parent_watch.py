"""A driver ends when its worker or its JVM is gone; here three small processes play them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

_EXIT_STATUS = 17

#: The driver. It looks for the ends of processes in the one way that is named.
_DRIVER = f"""
import os, sys, time
from airflow_provider_pgoutput import parent_watch
if sys.argv[1] == "told":
    parent_watch._PARENT_CHECK_MS = 600_000
else:
    del os.pidfd_open
parent_watch.die_with_parent({_EXIT_STATUS})
print(os.getpid(), os.getppid(), flush=True)
time.sleep(60)
"""

#: Each waits for its child and prints how that ended.
_PARENT = """
import subprocess, sys
child = subprocess.run([sys.executable, "-c", *sys.argv[1:]])
print("ended", child.returncode, flush=True)
"""


@pytest.mark.parametrize("way", ["told", "asks"])
@pytest.mark.parametrize("killed", ["worker", "jvm"])
def test_a_driver_ends_when_a_process_above_it_is_gone(way: str, killed: str) -> None:
    command = [sys.executable, "-c", _PARENT, _PARENT, _DRIVER, way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        jvm = int(worker.stdout.readline().split()[1])
        os.kill(worker.pid if killed == "worker" else jvm, signal.SIGKILL)
        printed = worker.stdout.read()
    assert "The process that started this driver is gone" in printed
    # The process between the two is alive, and says how the driver ended.
    assert (f"ended {_EXIT_STATUS}" in printed) == (killed == "worker")
