"""Run one task of the pipeline in a process of its own that a crash point can kill.

A killed process leaves behind what ``kill -9`` leaves: nothing is closed, nothing is removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.crash_points import VARIABLE
from airflow_provider_pgoutput.spark_submit.files import spark_files
from quickstart.spark import LocalLake, local_conf, spark_environment
from tests.capture.pipeline_support import Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider_pgoutput.batch.jobs import ErasureJob, ReplayJob, WriteJob
    from tests.conformance.pipeline import Batch, Pipeline

ROOT = Path(__file__).resolve().parents[2]
_TIME_LIMIT_S = 180
#: The class that an executor's process begins with.
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def stage_in_process(
    pipeline: Pipeline, crash_at: str, *, after_seconds: float | None = None, **options: Any
) -> bool:
    """Stage one batch in a process; return whether the crash point, or the time, killed it."""
    return _run_capture("stage", pipeline, crash_at, options, after_seconds)


def advance_in_process(pipeline: Pipeline, crash_at: str) -> bool:
    """Advance the slot in a process; return whether the crash point killed it."""
    return _run_capture("advance", pipeline, crash_at, {})


def prune_in_process(pipeline: Pipeline, crash_at: str) -> bool:
    """Prune the staging area in a process, with a retention that is over; whether the point killed it."""
    return _run_capture("prune", pipeline, crash_at, {})


def apply_in_process(pipeline: Pipeline, batch: Batch, crash_at: str, lake: LocalLake) -> bool:
    """Apply a batch as the operator does; return whether the crash point killed the driver."""
    with _submit(pipeline, batch, crash_at, lake) as (command, environment):
        return _killed(command, environment, "")


def erase_in_process(pipeline: Pipeline, job: ErasureJob, lake: LocalLake) -> dict[str, Any]:
    """Erase rows as the operator does; return what the driver says."""
    uri = pipeline.staging / "erase.json"
    uri.write_text(job.to_json(), encoding="utf-8")
    with _driver(uri, "", lake) as (command, environment):
        assert not _killed(command, environment, "")
    found: dict[str, Any] = json.loads(uri.with_suffix(".result.json").read_text())
    uri.unlink()
    return found


class CancelledApply(enum.Enum):
    """How an apply ended that may have been cancelled."""

    CANCELLED = enum.auto()
    FINISHED = enum.auto()


def cancelled_apply(
    pipeline: Pipeline, batch: Batch, after_seconds: float | None, lake: LocalLake
) -> CancelledApply:
    """Apply a batch as the operator does; nothing of it runs any more when this returns.

    :param after_seconds: spark-submit gets SIGTERM then, and nobody else does; None: never.
    """
    log = pipeline.staging / "cancelled.log"
    with _submit(pipeline, batch, "", lake) as (command, environment), log.open("w") as output:
        started = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            try:
                status = started.wait(after_seconds or _TIME_LIMIT_S)
            except subprocess.TimeoutExpired:
                assert after_seconds is not None, "the apply does not end"
                started.terminate()
                status = started.wait(_TIME_LIMIT_S)
            _wait_until_gone(started.pid)
        finally:
            for each in _session(started.pid):
                each.kill()
    printed = log.read_text(errors="replace")[-4000:]
    assert status in {0, -signal.SIGTERM, 128 + signal.SIGTERM}, printed
    return CancelledApply.CANCELLED if status else CancelledApply.FINISHED


def _wait_until_gone(session: int) -> None:
    """Wait for the end of every process of a program's session."""
    deadline = time.monotonic() + _TIME_LIMIT_S
    while left := _session(session):
        assert time.monotonic() < deadline, f"these live on: {left}"
        time.sleep(0.1)


def _session(leader: int) -> list[psutil.Process]:
    """The processes of a session that run; those of pyspark have a group of their own."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(each.pid) == leader and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found


@contextmanager
def stopped_driver(
    pipeline: Pipeline,
    batch: Batch,
    stop_at: str,
    lake: LocalLake,
    conf: Mapping[str, str] | None = None,
) -> Iterator[StoppedApply]:
    """An apply whose driver was stopped with SIGSTOP at a point, below a process that plays the worker.

    :param conf: Spark settings over those of a local session.
    """
    with _submit(pipeline, batch, f"{stop_at}:1:SIGSTOP", lake, conf) as (command, environment):
        # The shell waits for spark-submit, as the task's process does.
        shell = ["sh", "-c", '"$@" & wait', "worker", *command]
        with _stopped(shell, environment, "", pipeline.staging / "driver.log") as stopped:
            yield stopped


@contextmanager
def stopped_attached(pipeline: Pipeline, batch: Batch, stop_at: str) -> Iterator[StoppedApply]:
    """An apply in a Python process that borrows this one's JVM, stopped with SIGSTOP at a point."""
    command, environment, text = _attached(pipeline, pipeline.plan(batch), f"{stop_at}:1:SIGSTOP")
    log = pipeline.staging / f"{stop_at}.log"
    with _stopped(command, environment, text, log) as stopped:
        yield stopped


@dataclass(frozen=True, slots=True)
class StoppedApply:
    """An apply that was stopped, and can go on."""

    #: Who started it, or the apply itself.
    started: subprocess.Popen[str]
    #: Its Python half.
    python: psutil.Process
    log: Path

    def executors(self) -> list[psutil.Process]:
        """The executors of a driver whose master is ``local-cluster``, the oldest first."""
        found = []
        for each in psutil.Process(self.started.pid).children(recursive=True):
            # One that ended meanwhile is no executor: those wait for their driver.
            with contextlib.suppress(psutil.NoSuchProcess):
                if _EXECUTOR in each.cmdline():
                    found.append(each)
        return sorted(found, key=lambda each: each.create_time())

    def go_on(self) -> None:
        """Let it go on."""
        self.python.send_signal(signal.SIGCONT)

    def resume(self) -> str:
        """Let it go on to its end; return what it printed."""
        self.go_on()
        self.started.wait(_TIME_LIMIT_S)
        # The JVM, too: it copies the last lines of its Python half after that has ended.
        _wait_until_gone(self.started.pid)
        return self.log.read_text(errors="replace")


@contextmanager
def _stopped(
    command: list[str], environment: dict[str, str], text: str, log: Path
) -> Iterator[StoppedApply]:
    with log.open("w") as output:
        started = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        assert started.stdin is not None
        started.stdin.write(text)
        started.stdin.close()
        yield StoppedApply(started, wait_until_stopped(started, log), log)
    finally:
        kill_group(started.pid)
        started.wait(_TIME_LIMIT_S)


def wait_until_stopped(started: subprocess.Popen[str], log: Path) -> psutil.Process:
    """Wait until a crash point stopped a program or one below it; which.

    :param log: what the program printed, for the error when it ends in place of that.
    """
    deadline = time.monotonic() + _TIME_LIMIT_S
    while time.monotonic() < deadline and started.poll() is None:
        top = psutil.Process(started.pid)
        for process in (top, *top.children(recursive=True)):
            try:
                if process.status() == psutil.STATUS_STOPPED:
                    return process
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.05)
    raise AssertionError(f"the apply was not stopped:\n{log.read_text(errors='replace')[-4000:]}")


@contextmanager
def _submit(
    pipeline: Pipeline,
    batch: Batch,
    crash_at: str,
    lake: LocalLake,
    conf: Mapping[str, str] | None = None,
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Command and environment of a spark-submit that applies a batch as the operator does."""
    plan = pipeline.staging / f"plan-{crash_at.replace(':', '-')}.json"
    plan.write_text(pipeline.plan(batch).to_json(), encoding="utf-8")
    with _driver(plan, crash_at, lake, conf) as started:
        yield started


@contextmanager
def _driver(
    job: Path, crash_at: str, lake: LocalLake, conf: Mapping[str, str] | None = None
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Command and environment of a spark-submit that does a job as the operators do."""
    environment = {**os.environ, **spark_environment(), VARIABLE: crash_at}
    program = Path(environment["SPARK_HOME"]) / "bin" / "spark-submit"
    command = [str(program)]
    local = {"spark.master": "local[2]", **local_conf(driver_memory="1g"), **lake.spark_conf()}
    for name, value in {**local, **(conf or {})}.items():
        command += ["--conf", f"{name}={value}"]
    with spark_files({}, None) as files:
        command += ["--py-files", files.package_zip, "--properties-file", files.properties_file]
        command += [files.application, "--job-uri", job.as_uri()]
        yield command, environment


def apply_attached(
    pipeline: Pipeline, batch: Batch, crash_at: str, *, after_seconds: float | None = None
) -> bool:
    """Apply in a Python process that borrows this one's JVM; return whether it was killed, as a task is.

    Much faster than ``apply_in_process``. The JVM lives on, and ends what the other tables' threads began.
    """
    return _killed(*_attached(pipeline, pipeline.plan(batch), crash_at), after_seconds)


def replay_attached(pipeline: Pipeline, job: ReplayJob, crash_at: str) -> bool:
    """Replay in a Python process that borrows this one's JVM; return whether the crash point killed it."""
    return _killed(*_attached(pipeline, job, crash_at))


def _attached(
    pipeline: Pipeline, job: WriteJob, crash_at: str
) -> tuple[list[str], dict[str, str], str]:
    """Command, environment and input of a job that borrows this process's JVM."""
    gateway = pipeline.spark.sparkContext._gateway
    assert gateway is not None
    environment = {
        **os.environ,
        VARIABLE: crash_at,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_GATEWAY_PORT": str(gateway.gateway_parameters.port),
        "PYSPARK_GATEWAY_SECRET": str(gateway.gateway_parameters.auth_token),
    }
    script = Path(__file__).with_name("attached_apply.py")
    body = {"job": job.to_json()}
    return [sys.executable, str(script)], environment, json.dumps(body)


def run_program(script: Path, body: dict[str, Any], crash_at: str) -> bool:
    """Run a program of the tests, which reads its order as JSON; return whether the crash point killed it."""
    environment = {**os.environ, VARIABLE: crash_at, "PYTHONPATH": str(ROOT)}
    return _killed([sys.executable, str(script)], environment, json.dumps(body))


def _run_capture(
    task: str,
    pipeline: Pipeline,
    crash_at: str,
    options: dict[str, Any],
    after_seconds: float | None = None,
) -> bool:
    options = {**pipeline.capture_options, **options}
    stream = options.pop("options", StreamOptions())
    if "mask_secret" in options:
        options["mask_secret"] = options["mask_secret"].decode()
    body = {
        "task": task,
        "conninfo": pipeline.reader,
        "slot_name": pipeline.slot_name,
        "publication_names": pipeline.publication_names,
        "namespace": pipeline.namespace,
        "staging_uri": pipeline.staging.as_uri(),
        "catalog_properties": pipeline.catalog_properties,
        "options": options,
        "stream_options": dataclasses.asdict(stream),
    }
    environment = {**os.environ, VARIABLE: crash_at, "PYTHONPATH": str(ROOT)}
    script = Path(__file__).with_name("capture_task.py")
    killed = _killed([sys.executable, str(script)], environment, json.dumps(body), after_seconds)
    Source(pipeline.conninfo, pipeline.slot_name, pipeline.staging).wait_until_free()
    return killed


def _killed(
    command: list[str],
    environment: dict[str, str],
    text: str,
    after_seconds: float | None = None,
) -> bool:
    """Run a command in a process group of its own; true: SIGKILL; false: it went to its end.

    :param after_seconds: kill it then; None: its crash point does.
    """
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(text, timeout=after_seconds or _TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            if after_seconds is None:
                raise
            return True
        finally:
            # A driver is two processes, and the machine would take both.
            kill_group(process.pid)
    if process.returncode == 0:
        return False
    # spark-submit reports the end of its Python half as an exit status of its own.
    if process.returncode in {-signal.SIGKILL, 128 + signal.SIGKILL} or "exited with 137" in output:
        return True
    raise AssertionError(f"the task failed before its crash point:\n{output[-4000:]}")


def kill_group(group: int) -> None:
    """End what is left of a process group."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
