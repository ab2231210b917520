"""Several connections on more cores than this machine has: a simulation from measured costs.

``python -m benchmarks.parallel`` measures on the workloads, in CPU seconds per MiB of WAL, what the server
spends on decoding, on moving a copy of the slot, on reading WAL again and on sending, and what we spend. Then
it plays the read of a long backlog through, cut as ``capture/stream/sql_parallel.py`` cuts it. It prints a
table.

Assumed: a core is as fast with all of them busy; no disk and no network is ever waited for; our three
threads (fetch, decode, write) never wait for Python's lock and share our CPU time as they did for W1 when
that was profiled; the WAL costs the same everywhere.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.stream.sql_parallel import Cutting
from benchmarks.staging import Measurement, read_with_pipeline
from benchmarks.workloads import WORKLOADS, Backlog, Source, backlog, copied_slot

if TYPE_CHECKING:
    from collections.abc import Callable

_MIB = 1 << 20
#: Of our CPU time the thread with the most to do, which decodes, has this share
#: (docs/internals/measurements.md).
BUSIEST_SHARE = 0.5
#: What the simulation reads.
BACKLOG_MIB = 4096
#: How far behind a part the server begins to read: it notes every 15 s from where it could.
RESTART_MIB = (0, 128)
CONNECTIONS = (1, 2, 3, 4, 6, 8)
_STEP_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds per MiB of WAL."""

    #: The server makes an answer.
    decode: float
    #: The server moves a copy past it.
    advance: float
    #: The server reads it for a part that starts later.
    again: float
    #: The server sends its answer.
    send: float
    #: We fetch, decode and write it.
    ours: float


@dataclass(frozen=True, slots=True)
class Machine:
    """Who may use how many cores."""

    name: str
    server: int
    #: None: the reader is on the server's machine.
    reader: int | None = None

    def shares(self, server: float, reader: float) -> tuple[float, float]:
        """How much of a core each thread of the server and of the reader gets, when so many would run."""
        if self.reader is None:
            both = min(1.0, self.server / max(1.0, server + reader))
            return both, both
        return min(1.0, self.server / max(1.0, server)), min(1.0, self.reader / max(1.0, reader))


MACHINES = (
    Machine("1 each", 1, 1),
    *(Machine(f"{cores} for both", cores) for cores in (2, 4, 8, 16)),
)


@dataclass(slots=True)
class _Part:
    #: CPU seconds of the server until the first row, and MiB that we have not taken yet.
    server: float
    left: float


@dataclass(slots=True)
class _Read:
    """One read in small steps of time."""

    costs: Costs
    machine: Machine
    connections: int
    restart: float
    #: Where the next part starts, in MiB.
    cursor: float = 0
    #: Parts in order; each connection is at work on one of them.
    parts: list[_Part] = field(default_factory=list)
    #: Where the copies stand.
    copies: list[float] = field(default_factory=list)

    def seconds(self) -> float:
        """How long it takes."""
        self.copies = [0.0] * self.connections
        cutting = Cutting(0, BACKLOG_MIB * _MIB, self.connections)
        seconds = 0.0
        while True:
            while len(self.parts) < self.connections and self.cursor < BACKLOG_MIB:
                self._claim(cutting)
            if not self.parts:
                return seconds
            self._step()
            seconds += _STEP_SECONDS

    def _claim(self, cutting: Cutting) -> None:
        low = self.cursor
        restart = max(0.0, low - self.restart)
        high = cutting.end(int(low * _MIB), int(restart * _MIB)) / _MIB
        copy = self.copies.index(min(self.copies))
        server = (
            (low - self.copies[copy]) * self.costs.advance
            + (low - restart) * self.costs.again
            + (high - low) * self.costs.decode
        )
        self.copies[copy], self.cursor = low, high
        self.parts.append(_Part(server, high - low))

    def _step(self) -> None:
        """All that could run shares the cores."""
        waiting = [part for part in self.parts if part.server > 0]
        first = self.parts[0]
        #: MiB that we take in a second, as fast as our busiest thread can.
        taken = 0.0 if first.server > 0 else 1 / (BUSIEST_SHARE * self.costs.ours)
        of_server, of_reader = self.machine.shares(
            len(waiting) + taken * self.costs.send, taken * self.costs.ours
        )
        for part in waiting:
            part.server -= of_server * _STEP_SECONDS
        first.left -= min(of_server, of_reader) * taken * _STEP_SECONDS
        if first.left <= 0:
            self.parts.pop(0)


def simulate(costs: Costs, machine: Machine, connections: int, restart_mib: float) -> float:
    """Seconds from the first question to the last row, staged."""
    return _Read(costs, machine, connections, restart_mib).seconds()


def measure(source: Source, waiting: Backlog) -> Costs:
    """Decode a backlog on the server, stage it, and begin once more from its middle."""
    end = waiting.end_lsn
    with copied_slot(source, waiting) as slot:
        start = _position(source, slot, "confirmed_flush_lsn")
        size = (Lsn.parse(end) - start) / _MIB
        decode = _server_seconds(source, lambda: source.count_messages(slot, end))
        staged: list[Measurement] = []
        with_sending = _server_seconds(
            source,
            lambda: staged.append(
                read_with_pipeline(source.conninfo, slot, "sql", {}, parallelism=1)
            ),
        )
    with copied_slot(source, waiting) as slot:
        middle = Lsn(start + (Lsn.parse(end) - start) // 2)
        move = "SELECT pg_replication_slot_advance(%s, %s)::text"
        advance = _server_seconds(source, lambda: source.scalar(move, slot, str(middle)))
        behind = (middle - _position(source, slot, "restart_lsn")) / _MIB
        rest = _server_seconds(source, lambda: source.count_messages(slot, end))
    return Costs(
        decode=decode / size,
        advance=advance / (size / 2),
        again=max(0.0, rest - decode / 2) / behind if behind > 1 else 0.0,
        send=max(0.0, with_sending - decode) / size,
        ours=(staged[0].cpu_seconds or 0.0) / size,
    )


def _position(source: Source, slot: str, column: str) -> Lsn:
    found = source.scalar(
        "SELECT to_jsonb(s) ->> %s FROM pg_replication_slots s WHERE slot_name = %s", column, slot
    )
    return Lsn.parse(str(found))


def _server_seconds(source: Source, work: Callable[[], object]) -> float:
    """CPU time of the server for some work."""
    before = source.cpu_seconds()
    work()
    after = source.cpu_seconds()
    if before is None or after is None:
        raise RuntimeError("This system does not say what the server's processes use.")
    return after - before


def table(name: str, costs: Costs) -> list[str]:
    """The costs and the simulated reads of one workload, as lines of Markdown."""
    said = ", ".join(f"{each} {1000 * cost:.1f}" for each, cost in asdict(costs).items())
    lines = [f"{name}, CPU ms per MiB of WAL: {said}", ""]
    lines.append("| cores | restarts behind | " + " | ".join(map(str, CONNECTIONS)) + " |")
    lines.append("|---" * (2 + len(CONNECTIONS)) + "|")
    for machine in MACHINES:
        for restart in RESTART_MIB:
            one = simulate(costs, machine, 1, restart)
            times = [one / simulate(costs, machine, each, restart) for each in CONNECTIONS]
            row = " | ".join(f"{each:.2f}" for each in times)
            lines.append(f"| {machine.name} | {restart} MiB | {row} |")
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--workloads", nargs="+", default=["W1", "W2", "W3"], choices=WORKLOADS)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pgoutput-bench-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        with Source(folder / "postgres", 10) as source:
            for name in options.workloads:
                with backlog(source, WORKLOADS[name], options.scale) as waiting:
                    print("\n".join(table(name, measure(source, waiting))), end="\n\n", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
