"""How many cores the other processes of this machine leave free, measured over a moment.

The load average covers the last minute. So a task that starts every minute would find its own last run in it.
Instead, the idle time of the cores is read twice. What this process used in between counts as idle.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/stat")

#: The system counts in steps of a hundredth of a second, so a shorter time would give no useful number.
_SHORTEST_SECONDS: Final = 0.1


def allowed_cores() -> set[int]:
    """The cores that this process may use, by number."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used up to a moment, in seconds."""

    #: When it was read, on the monotonic clock.
    at: float
    #: Idle time of all cores that this process may use.
    idle: float
    #: Time of all cores that this process used.
    own: float

    @classmethod
    def now(cls) -> Usage | None:
        """Read what was used up to now; None: this system does not count it."""
        if not _STAT.is_file():
            return None
        idle = idle_seconds(_STAT.read_text(), allowed_cores(), os.sysconf("SC_CLK_TCK"))
        return None if idle is None else cls(time.monotonic(), idle, time.process_time())


def idle_seconds(stat: str, cores: set[int], ticks_per_second: int) -> float | None:
    """Seconds that some cores were idle or waited for a disk, by the content of ``/proc/stat``.

    None: it has no counts, as in some sandboxes.

    Source: https://man7.org/linux/man-pages/man5/proc_stat.5.html
    """
    names = {f"cpu{number}" for number in cores}
    lines = [line.split() for line in stat.splitlines()]
    counts = [list(map(int, line[1:])) for line in lines if line and line[0] in names]
    if not any(sum(each) for each in counts):
        return None
    return sum(each[3] + each[4] for each in counts) / ticks_per_second


def free_between(before: Usage, after: Usage) -> int:
    """How many cores this process could have used on average."""
    free = (after.idle - before.idle) + (after.own - before.own)
    return round(free / (after.at - before.at))


class FreeCores:
    """Measures how many cores are free, from the moment when it is made."""

    def __init__(self) -> None:
        self._before = Usage.now()

    def count(self) -> int:
        """How many cores were free since then. This waits until at least 0.1 s have passed."""
        if self._before is None:
            return round(len(allowed_cores()) - os.getloadavg()[0])
        time.sleep(max(0.0, _SHORTEST_SECONDS - (time.monotonic() - self._before.at)))
        after = Usage.now()
        assert after is not None, "the system told before"
        return free_between(self._before, after)
