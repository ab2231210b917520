"""Ends a Spark driver when the process that started it is gone. Both Spark applications use it.

``spark_submit/job.py`` kills a driver on request.
"""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path

_PARENT_CHECK_MS = 1000


def die_with_parent(exit_status: int) -> None:
    """End this process with ``exit_status`` when the one that started it is gone.

    A killed Airflow worker leaves spark-submit running, and a killed JVM leaves its Python driver. Neither
    does harm: what they write counts only if the worker publishes it. But they use memory and cores.
    """
    watched = _ancestors()

    def watch() -> None:
        ends = _ends_of(watched)
        # The process ids are compared, too: not every system tells of a process's end.
        while not ends.poll(_PARENT_CHECK_MS) and _ancestors()[: len(watched)] == watched:
            pass
        print("The process that started this driver is gone; ending.", flush=True)
        os._exit(exit_status)

    if watched:
        threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _ends_of(processes: list[int]) -> select.poll:
    """A poll that returns at once when one of ``processes`` ends. It watches nothing without ``pidfd_open``.

    Linux has it: https://man7.org/linux/man-pages/man2/pidfd_open.2.html
    """
    ends = select.poll()
    if not hasattr(os, "pidfd_open"):
        return ends
    for process in processes:
        try:
            ends.register(os.pidfd_open(process), select.POLLIN)
        except OSError:
            # It is gone already, or this system forbids the call: the numbers tell.
            continue
    return ends


def _ancestors() -> list[int]:
    """The JVM that started this driver, and its parent. What cannot be seen is left out.

    Process 1 is not watched. Example: in a container of a cluster it is the driver's parent, and no Airflow.
    """
    parent = os.getppid()
    found = [parent] if parent > 1 else []
    try:
        # The fields after the command's name, which may contain blanks and parentheses.
        grandparent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return found
    return [*found, grandparent] if grandparent > 1 else found
