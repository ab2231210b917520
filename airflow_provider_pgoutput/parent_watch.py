"""Ends a Spark driver when the process that started it is gone. Used by both Spark applications.

What is not here: killing a driver on request, which its operator does (``spark_submit/job.py``).
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_PARENT_CHECK_SECONDS = 1.0


def die_with_parent(exit_status: int) -> None:
    """End this process with ``exit_status`` when the one that started it is gone.

    A killed Airflow worker leaves spark-submit running, and a killed JVM its Python driver. Neither could
    do harm - what they write counts only when the worker, or a fence, says so - but they hold memory and
    cores.
    """
    watched = _ancestors()

    def watch() -> None:
        while _ancestors()[: len(watched)] == watched:
            time.sleep(_PARENT_CHECK_SECONDS)
        print("The process that started this driver is gone; ending.", flush=True)
        os._exit(exit_status)

    if watched:
        threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _ancestors() -> list[int]:
    """The JVM that started this driver, and who started that; empty where it cannot be seen.

    Process 1 is not watched: on a cluster the driver has no Airflow above it.
    """
    parent = os.getppid()
    found = [parent] if parent > 1 else []
    try:
        # The fields after the command name, which may hold spaces and parentheses.
        grandparent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return found
    return [*found, grandparent] if grandparent > 1 else found
