"""A standalone Spark cluster on this machine: a master and two workers of one core each, as processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quickstart.spark import spark_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = 2
#: For Java that lives for seconds: see ``quickstart/spark.py``.
SHORT_JOB = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SECONDS_TO_START = 60


@dataclass(frozen=True)
class SparkCluster:
    """A cluster that runs."""

    #: ``spark://host``, without its port.
    host: str
    port: int
    #: Logs of master and workers, and below it those of the executors.
    folder: Path

    def texts(self) -> Iterator[tuple[str, str]]:
        """Name and content of every log, and of every other text that the cluster keeps."""
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path.suffix not in {".zip", ".jar", ".crc"}:
                yield str(path), path.read_text(errors="replace")

    def conf(self) -> dict[str, str]:
        """Settings of a small job whose record Spark keeps for ``tasks_by_executor``."""
        return {
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": SHORT_JOB,
            "spark.executor.extraJavaOptions": SHORT_JOB,
            "spark.executor.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self._events.as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
            # Both executors are there before the first task.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        }

    def tasks_by_executor(self) -> list[Counter[str]]:
        """Tasks that ended well, by the executor's id, of every application: Spark's own record."""
        found = []
        for log in sorted(self._events.iterdir()):
            events = [json.loads(line) for line in log.read_text().splitlines()]
            found.append(
                Counter(
                    each["Task Info"]["Executor ID"]
                    for each in events
                    if each["Event"] == "SparkListenerTaskEnd"
                    and each["Task End Reason"]["Reason"] == "Success"
                )
            )
        return found

    @property
    def _events(self) -> Path:
        found = self.folder / "events"
        found.mkdir(exist_ok=True)
        return found


@contextlib.contextmanager
def standalone_cluster() -> Iterator[SparkCluster]:
    """Start a cluster in a folder of its own, and end it after the block."""
    with contextlib.ExitStack() as stack:
        # Not below pytest's own folder, which another user's processes may not enter.
        made = tempfile.TemporaryDirectory(prefix="pgoutput-tests-cluster-")
        folder = Path(stack.enter_context(made))
        log = _start(stack, folder, "master", "master.Master")
        match = _wait_for(log, re.compile(r"Starting Spark master at (spark://[\d.]+):(\d+)"))
        host, port = match[1], int(match[2])
        logs = []
        for number in range(WORKERS):
            work = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}")]
            name = f"worker-{number}"
            logs.append(_start(stack, folder, name, "worker.Worker", *work, f"{host}:{port}"))
        for log in logs:
            _wait_for(log, re.compile("Successfully registered with master"))
        yield SparkCluster(host, port, folder)


def _start(
    stack: contextlib.ExitStack, folder: Path, name: str, program: str, *arguments: str
) -> Path:
    memory = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": SHORT_JOB}
    environment = {**os.environ, **spark_environment(), **memory}
    # What the executors import has to come with the job.
    environment.pop("PYTHONPATH", None)
    command = [
        f"{environment['SPARK_HOME']}/bin/spark-class",
        f"org.apache.spark.deploy.{program}",
        *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
        *arguments,
    ]
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder
        )
    stack.callback(_end, process)
    return log


def _end(process: subprocess.Popen[bytes]) -> None:
    # A worker ends its executors when it is asked to end.
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for(log: Path, words: re.Pattern[str]) -> re.Match[str]:
    deadline = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < deadline:
        if match := words.search(log.read_text(errors="replace")):
            return match
        time.sleep(0.1)
    raise AssertionError(log.read_text(errors="replace")[-3000:])
