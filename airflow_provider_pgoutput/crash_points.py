"""Named points between two durable steps. A test can kill the process there, as ``kill -9`` would.

Capture and apply call ``reach`` with a name. In production that compares one environment variable and
returns. A simulation of many processes in one watches the points instead. There is no clean-up, because a
killed process would not clean up either.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Environment variable that names the point. After it may stand the occurrence that counts, from 1
#: (``publish.after_table:2``), and then another signal than SIGKILL (``apply.after_prepare:1:SIGSTOP``).
VARIABLE = "PGOUTPUT_CRASH_AT"

_reached: Counter[str] = Counter()
_watchers: list[Callable[[str], None]] = []


@contextlib.contextmanager
def watched(watcher: Callable[[str], None]) -> Iterator[None]:
    """Call ``watcher`` with the name of each point that is reached. If it raises, the work ends there."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def reach(name: str) -> None:
    """Send this process the signal if the environment names this point; otherwise do nothing."""
    for watcher in _watchers:
        watcher(name)
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    point, occurrence, signal_name = (*wanted.split(":"), "", "")[:3]
    if point != name:
        return
    _reached[name] += 1
    if _reached[name] == int(occurrence or 1):
        os.kill(os.getpid(), signal.Signals[signal_name or "SIGKILL"])
