"""Tasks of a pipeline, each in a process of its own that can be killed at any time.

A server process imports what the tasks need, once, and makes a copy of itself (``fork``) for each task.
So a task costs no start of Python. What a task did stands in a report file; a killed one leaves none.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.crash_points import VARIABLE

if TYPE_CHECKING:
    from typing import Self

ROOT = Path(__file__).resolve().parents[2]
_TIME_LIMIT_S = 150
_HUNG = "Hung"


@dataclass(frozen=True)
class Refusal:
    """An error that ended a task."""

    #: Name of its class, and of the classes above it.
    kind: str
    bases: tuple[str, ...]
    message: str
    table: str | None = None
    column: str | None = None
    advice: str | None = None
    trace: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a task ended."""

    #: None: it was killed, or it failed.
    result: dict[str, Any] | None
    refusal: Refusal | None
    #: Warnings that it logged.
    warnings: tuple[str, ...]
    seconds: float
    #: Seconds of the processor, without those of a JVM.
    cpu: float = 0.0
    #: None: nobody killed it.
    killed: str | None = None


class Tasks:
    """Starts tasks, one after the other."""

    def __init__(self, log: Path) -> None:
        self._log_path, self._reports = log, log.with_suffix(".report.json")
        with log.open("a") as output:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.tasks"],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )

    def begin(
        self,
        task: str,
        body: dict[str, Any],
        environment: dict[str, str] | None = None,
        crash_at: str = "",
    ) -> RunningTask:
        """Start a task.

        :param crash_at: a crash point of ``crash_points.py``.
        """
        self._reports.unlink(missing_ok=True)
        variables = {**(environment or {}), VARIABLE: crash_at}
        told = self._ask(
            {"task": task, "body": body, "variables": variables, "report": str(self._reports)}
        )
        return RunningTask(self, int(told["pid"]), crash_at, self._reports)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """The next line of the server."""
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        assert line, f"the server of the tasks ended, see {self._log_path}"
        told: dict[str, Any] = json.loads(line)
        return told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(30)


@dataclass
class RunningTask:
    """A task that was started."""

    tasks: Tasks
    pid: int
    crash_at: str
    report: Path

    def kill(self) -> None:
        """Send SIGKILL; the task may have ended already."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def end(self) -> Outcome:
        """Wait for its end. A task that takes minutes is killed, and counts as a refusal."""
        began = time.monotonic()
        hung = threading.Event()

        def too_long() -> None:
            hung.set()
            os.kill(self.pid, signal.SIGABRT)
            time.sleep(1)
            self.kill()

        timer = threading.Timer(_TIME_LIMIT_S, too_long)
        timer.start()
        try:
            told = self.tasks.hear()
        finally:
            timer.cancel()
        seconds, status, cpu = time.monotonic() - began, int(told["status"]), float(told["cpu"])
        report: dict[str, Any] = json.loads(self.report.read_text()) if self.report.exists() else {}
        warnings = tuple(report.get("warnings", ()))
        if hung.is_set():
            refusal = Refusal(_HUNG, (), f"The task did not end in {_TIME_LIMIT_S} s.")
            return Outcome(None, refusal, warnings, seconds, cpu)
        if "result" in report:
            return Outcome(report["result"], None, warnings, seconds, cpu)
        if "refusal" in report:
            body = {**report["refusal"], "bases": tuple(report["refusal"]["bases"])}
            return Outcome(None, Refusal(**body), warnings, seconds, cpu)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return Outcome(None, None, warnings, seconds, cpu, killed=self.crash_at or "any time")
        # The driver of ADBC ends the process by SIGABRT when a connection breaks; Airflow tries again.
        signalled = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        refusal = Refusal("Ended", (), f"The process ended by itself: signal {signalled}.")
        return Outcome(None, refusal, warnings, seconds, cpu)


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def main() -> None:
    """Serve: a line of JSON for each task, answered by its process id, then by its status."""
    import faulthandler

    import adbc_driver_postgresql.dbapi
    import pyiceberg.catalog.sql
    import pyspark.sql

    from airflow_provider_pgoutput.capture import pipeline

    del adbc_driver_postgresql, pyiceberg, pyspark, pipeline
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            # A report that is cut off by a kill is none.
            sys.stdout = sys.stderr
            faulthandler.enable()
            os.setsid()
            os.environ.update(request["variables"])
            report = _run(request["task"], request["body"])
            path = Path(request["report"])
            path.with_suffix(".part").write_text(json.dumps(report))
            path.with_suffix(".part").rename(path)
            sys.stderr.flush()
            os._exit(0)
        print(json.dumps({"pid": pid}), flush=True)
        _, status, used = os.wait4(pid, 0)
        cpu = used.ru_utime + used.ru_stime
        print(json.dumps({"status": status, "cpu": cpu}), flush=True)


def _run(task: str, body: dict[str, Any]) -> dict[str, Any]:
    from tests.chaos import work

    kept = _Warnings()
    logging.getLogger("airflow_provider_pgoutput").addHandler(kept)
    try:
        result = getattr(work, task)(body)
    except BaseException as error:
        traceback.print_exc()
        refusal = {
            "kind": type(error).__name__,
            "bases": [each.__name__ for each in type(error).__mro__],
            "message": str(error),
            "trace": traceback.format_exc()[-6000:],
            **{name: getattr(error, name, None) for name in ("table", "column", "advice")},
        }
        return {"refusal": refusal, "warnings": kept.messages}
    return {"result": result, "warnings": kept.messages}


if __name__ == "__main__":
    main()
