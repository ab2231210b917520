"""What the processes of a DAG run use, sampled ten times a second: CPU time, memory, files, connections.

The worker is the process of ``airflow dags test``, in which the tasks run. The driver is all that a task
starts: Java and Python of spark-submit. Needs ``/proc``. Measures nothing of the server but its sessions.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER, DRIVER = "worker", "driver"
_PERIOD_SECONDS = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")
_MIB_OF_A_PAGE = os.sysconf("SC_PAGE_SIZE") / 2**20
#: Sessions that clients opened in one database.
_CONNECTIONS = """
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = %s AND backend_type IN ('client backend', 'walsender')
"""


class Process(NamedTuple):
    """A process as ``/proc/<pid>/stat`` shows it.

    https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """

    parent: int
    cpu_seconds: float
    mib: float


@dataclass(slots=True)
class Usage:
    """What the processes of one role use at a moment."""

    #: Of all of them since the watch began, the ended ones too.
    cpu_seconds: float = 0.0
    #: The resident memory of all of them together.
    mib: float = 0.0
    #: Open files of the one that has the most: the limit is one for each process.
    files: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything at a moment."""

    time: float
    usage: dict[str, Usage]
    connections: int


@dataclass
class TaskWatch:
    """Samples while the ``with`` block runs.

    :ivar command: a part of the worker's command line, as ``/proc/<pid>/cmdline`` has it.
    :ivar conninfo: of another database of the server, so that the watch does not count itself.
    :ivar database: whose sessions are counted.
    """

    command: bytes
    conninfo: str
    database: str
    samples: list[Sample] = field(default_factory=list)

    def __enter__(self) -> TaskWatch:
        self._cpu: dict[str, dict[int, float]] = {WORKER: {}, DRIVER: {}}
        self._ended = threading.Event()
        self._session = psycopg.connect(self.conninfo, autocommit=True)
        self._thread = threading.Thread(target=self._sample_on)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._session.close()

    def figures(self, began: float, ended: float) -> dict[str, float]:
        """What was used between two moments: CPU seconds, and the most of everything else."""
        inside = [each for each in self.samples if began <= each.time <= ended]
        # A task of a few milliseconds may have no sample of its own.
        last = max((each for each in self.samples if each.time <= ended), key=_time, default=None)
        inside = inside or [each for each in (last,) if each is not None]
        found: dict[str, float] = {"connections": max((e.connections for e in inside), default=0)}
        for role in (WORKER, DRIVER):
            usage = [each.usage[role] for each in inside]
            if role == DRIVER and not any(each.files for each in usage):
                continue
            used = self._cpu_until(role, ended) - self._cpu_until(role, began)
            found[f"{role}_cpu_seconds"] = round(used, 2)
            found[f"{role}_peak_mib"] = round(max((each.mib for each in usage), default=0))
            found[f"{role}_open_files"] = max((each.files for each in usage), default=0)
        return found

    def _cpu_until(self, role: str, moment: float) -> float:
        return max((e.usage[role].cpu_seconds for e in self.samples if e.time <= moment), default=0)

    def _sample_on(self) -> None:
        while not self._ended.wait(_PERIOD_SECONDS):
            self.samples.append(self._sample())

    def _sample(self) -> Sample:
        usage = {WORKER: Usage(), DRIVER: Usage()}
        for role, pid, process in self._processes():
            self._cpu[role][pid] = process.cpu_seconds
            usage[role].mib += process.mib
            usage[role].files = max(usage[role].files, _open_files(pid))
        for role, found in usage.items():
            found.cpu_seconds = sum(self._cpu[role].values())
        row = self._session.execute(_CONNECTIONS, (self.database,)).fetchone()
        return Sample(time.time(), usage, row[0] if row else 0)

    def _processes(self) -> Iterator[tuple[str, int, Process]]:
        """The worker and all below it."""
        processes = _all_processes()
        children: dict[int, list[int]] = {}
        for pid, process in processes.items():
            children.setdefault(process.parent, []).append(pid)
        workers = [
            pid for pid in children.get(os.getpid(), ()) if self.command in _command_line(pid)
        ]
        for worker in workers:
            yield WORKER, worker, processes[worker]
            below = list(children.get(worker, ()))
            while below:
                pid = below.pop()
                yield DRIVER, pid, processes[pid]
                below += children.get(pid, ())


def _time(sample: Sample) -> float:
    return sample.time


def _all_processes() -> dict[int, Process]:
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path("/proc", name, "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # Ended meanwhile.
            continue
        # The name in field 2 may hold blanks and parentheses. What follows the last one may not.
        fields = text.rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        found[int(name)] = Process(int(fields[1]), ticks / _TICKS, int(fields[21]) * _MIB_OF_A_PAGE)
    return found


def _command_line(pid: int) -> bytes:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError):
        return 0
