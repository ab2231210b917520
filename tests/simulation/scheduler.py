"""Processes that take turns, one step at a time, and can be killed between any two steps.

A process is a greenlet that runs the product's own code. Every call of a double that reaches outside, and
every crash point of the product, is a step: control goes back to the scheduler, which lets the same process
go on, another one, or kills it. Nothing runs at the same time, so a run follows from its schedule alone.
What is not here: what the processes do, and who is chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from greenlet import greenlet

if TYPE_CHECKING:
    from collections.abc import Callable


class Killed(BaseException):
    """SIGKILL: the process does nothing any more; what it does on its way out has no effect."""


class Process:
    """One attempt at a task."""

    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        self.name = name
        self._work = work
        self._greenlet = greenlet(self._run)
        self.is_dead = False
        self.finished = False
        self.error: Exception | None = None
        self.result: Any = None
        #: What the next write of this process meets: see ``World.write``.
        self.fault: str | None = None
        #: Which task of which DAG run it is.
        self.task = ""
        self.dag_run = 0

    def _run(self) -> None:
        try:
            self.result = self._work()
        except Killed:
            pass
        except Exception as error:
            self.error = error
        self.finished = True

    @property
    def lives(self) -> bool:
        """Whether it may still do something."""
        return not self.finished and not self.is_dead


class Scheduler:
    """Hands the one turn that there is around."""

    def __init__(self) -> None:
        self._main = greenlet.getcurrent()
        self.current: Process | None = None
        #: What each step was, for the history.
        self.steps: list[tuple[str, str]] = []

    def step(self, what: str) -> None:
        """Give the turn back; called in a process before it does something that others can see.

        :raises Killed: when the process was killed meanwhile.
        """
        process = self.current
        if process is None:
            return  # The judge looks around.
        if not process.is_dead:
            self.steps.append((process.name, what))
            self._main.switch()
        if process.is_dead:
            raise Killed

    def go(self, process: Process) -> None:
        """Let a process do one step."""
        if process.finished:
            return
        self.current = process
        process._greenlet.switch()
        self.current = None

    def kill(self, process: Process) -> None:
        """Kill a process; it unwinds without any effect."""
        if process.finished:
            return
        process.is_dead = True
        self.current = process
        if process._greenlet:
            process._greenlet.switch()
        process.finished = True
        self.current = None
