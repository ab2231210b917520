"""A program that keeps a warm Spark driver for the applies of many runs.

It prints where its JVM listens, and ends when its standard input ends. An apply borrows the JVM, as
``tests/faults/attached_apply.py`` does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quickstart.spark import LocalLake, local_conf, spark_environment

if TYPE_CHECKING:
    from typing import Self

#: Each table has columns of its own, so compiling a plan costs far more than running it.
_QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}
ROOT = Path(__file__).resolve().parents[2]


class Driver:
    """A Spark driver in two processes of its own, Python and Java; both can be killed.

    It starts on first use and after each kill.
    """

    def __init__(self, lake: LocalLake, log: Path) -> None:
        self._lake, self._log = lake, log
        self._process: subprocess.Popen[str] | None = None
        self._told: dict[str, Any] = {}
        self.starts = 0

    def address(self) -> dict[str, str]:
        """Where the JVM listens, as pyspark reads it from the environment."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        return {
            "PYSPARK_GATEWAY_PORT": str(self._told["port"]),
            "PYSPARK_GATEWAY_SECRET": self._told["secret"],
        }

    def cpu(self) -> float:
        """Seconds of the processor that the JVM took so far."""
        if self._process is None:
            return 0.0
        fields = Path(f"/proc/{self._told['jvm']}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Kill both halves, as a machine that fails would."""
        if self._process is None:
            return
        for pid in (self._told["jvm"], self._process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        self._process = None

    def _start(self) -> None:
        self.starts += 1
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.driver", str(self._lake.home)],
                cwd=ROOT,
                env={**os.environ, **spark_environment(), "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"no Spark driver, see {self._log}"
        self._told = json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def main() -> None:
    """Start a session and wait."""
    from pyspark.sql import SparkSession

    lake = LocalLake(Path(sys.argv[1]))
    builder = SparkSession.builder.master("local[2]").appName("pgoutput-chaos")
    conf = {**local_conf(driver_memory="1500m"), **lake.spark_conf(), **_QUICK}
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    from tests.conftest import write_files_without_processes

    write_files_without_processes(session)
    gateway = session.sparkContext._gateway
    assert gateway is not None
    parameters = gateway.gateway_parameters
    jvm = gateway.proc.pid
    print(
        json.dumps({"port": parameters.port, "secret": parameters.auth_token, "jvm": jvm}),
        flush=True,
    )
    sys.stdin.read()
    os.kill(jvm, signal.SIGKILL)


if __name__ == "__main__":
    main()
