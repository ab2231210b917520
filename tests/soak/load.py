"""What the source does meanwhile: pgbench, and the fault tests' random transactions, until they are stopped.

What is not here: any knowledge of the pipeline.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

from tests.conformance.compare import connect
from tests.faults.workload import SETUP, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

_PUBLISHED = "CREATE PUBLICATION p FOR TABLE "
PGBENCH_TABLES = ("accounts", "branches", "tellers", "history")


def prepare(conninfo: str, pgbench: str) -> None:
    """Make the tables and the publication."""
    subprocess.run([pgbench, "-i", "-q", "-s", "1", conninfo], check=True, capture_output=True)
    with connect(conninfo) as session:
        for statement in SETUP:
            session.execute(statement)
        for each in PGBENCH_TABLES:
            session.execute(f"ALTER PUBLICATION p ADD TABLE pgbench_{each}")


class Load:
    """Two sources of transactions.

    :param rate: transactions of pgbench in a second.
    :param pause_seconds: between two random transactions.
    """

    def __init__(
        self, conninfo: str, pgbench: str, seed: int, rate: int, pause_seconds: float = 0.02
    ) -> None:
        self._conninfo, self._pause_seconds = conninfo, pause_seconds
        self.workload = Workload(seed)
        self._going, self._stopping = threading.Event(), threading.Event()
        self._between = threading.Lock()
        self._error: BaseException | None = None
        command = [pgbench, "-n", "-c", "2", "-T", "100000", f"--rate={rate}", conninfo]
        self._pgbench = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._thread = threading.Thread(target=self._work, name="random transactions", daemon=True)
        self._going.set()
        self._thread.start()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing commits; a transaction of pgbench may be open."""
        self._check()
        self._going.clear()
        self._pgbench.send_signal(signal.SIGSTOP)
        with self._between:
            yield
        self._pgbench.send_signal(signal.SIGCONT)
        self._going.set()

    def stop(self) -> None:
        """End both; raise what ended one of them before."""
        self._stopping.set()
        self._going.set()
        self._thread.join()
        try:
            self._check()
        finally:
            self._pgbench.kill()
            self._pgbench.wait()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._pgbench.poll() is not None:
            raise RuntimeError("pgbench ended")

    def _work(self) -> None:
        try:
            with connect(self._conninfo) as session:
                while not self._stopping.wait(self._pause_seconds):
                    self._going.wait()
                    with self._between:
                        self.workload.transactions(session, 1)
        except BaseException as error:
            self._error = error
