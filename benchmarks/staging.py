"""Reads one backlog with every contender, in turns, and takes medians. Knows no target.

The contenders, all over TCP on 127.0.0.1 and to the same end LSN:

``sql``, ``walsender``  our pipeline from slot to sealed batch, in a process of its own
``sql_parallel_N``      the same by N connections that decode at the same time
``..._whole``           the same without streaming, for the workload of one large transaction
``sql_binary``          the same with values in binary form, for the workload of wide rows
``sql_masked``          the same with two hashed columns, for narrow and for wide rows
``pg_recvlogical``      PostgreSQL's own client, which drops what it receives: ``--file=/dev/null``
``server``              ``SELECT count(*)`` over the peek function: decoding without any transfer
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmarks.workloads import DATABASE, PUBLICATION, Backlog, Source, copied_slot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TRANSPORTS = ("sql", "walsender")
CONTENDERS = ("server", "sql", "pg_recvlogical", "walsender")
#: By name: the connections of a read that several share.
PARALLEL = {f"sql_parallel_{number}": number for number in (1, 2, 3, 4, 6, 8)}
#: Ways of ours that one workload is about: transport and options of the read.
VARIANTS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "W1": {"sql_masked": ("sql", {})},
    "W2": {"sql_binary": ("sql", {"binary": True}), "sql_masked": ("sql", {})},
    "W4": {
        "sql_whole": ("sql", {"streaming": "off"}),
        "walsender_whole": ("walsender", {"streaming": "off"}),
    },
}
#: By workload: the masks of ``sql_masked``. Nearly every value of these columns is another one.
MASKS = {
    "W1": {"public.bench_narrow.b": "hash", "public.bench_narrow.d": "hash"},
    "W2": {"public.bench_wide.t1": "hash", "public.bench_wide.u1": "hash"},
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One contender's way through one backlog."""

    seconds: float
    #: User and system time of the reading process; None: there is none beside the server's.
    cpu_seconds: float | None = None
    #: Highest resident set of the reading process.
    peak_mib: float | None = None
    #: Row changes staged; None: the contender does not say.
    rows: int | None = None
    #: User and system time of all processes of the server; None: not known on this system.
    server_cpu_seconds: float | None = None


def measure(
    source: Source,
    backlog: Backlog,
    contenders: tuple[str, ...],
    repetitions: int,
    report: Callable[[str], None],
) -> dict[str, Measurement]:
    """Median of each contender; the order is turned round every time, so that drift hits all alike."""
    variants = VARIANTS.get(backlog.workload.name, {}) if {*TRANSPORTS} <= {*contenders} else {}
    contenders = (*contenders, *variants)
    found: dict[str, list[Measurement]] = {name: [] for name in contenders}
    for repetition in range(repetitions):
        for name in contenders if repetition % 2 == 0 else reversed(contenders):
            with copied_slot(source, backlog) as slot:
                before = source.cpu_seconds()
                if name == "server":
                    one = read_with_server(source, slot, backlog)
                elif name == "pg_recvlogical":
                    one = read_with_pg_recvlogical(source, slot, backlog)
                else:
                    transport, options = variants.get(name, (name.split("_")[0], {}))
                    one = read_with_pipeline(
                        source.conninfo,
                        slot,
                        transport,
                        options,
                        parallelism=PARALLEL.get(name),
                        masks=MASKS[backlog.workload.name] if name == "sql_masked" else None,
                    )
                    check_rows(name, one, backlog)
                after = source.cpu_seconds()
            if before is not None and after is not None:
                one = replace(one, server_cpu_seconds=after - before)
            found[name].append(one)
            report(f"{backlog.workload.name} {name}: {one.seconds:.2f} s")
    return {name: median(measurements) for name, measurements in found.items()}


def median(measurements: list[Measurement]) -> Measurement:
    """The run with the median time; memory is the worst of all runs."""
    middle = statistics.median_low(each.seconds for each in measurements)
    chosen = next(each for each in measurements if each.seconds == middle)
    peaks = [each.peak_mib for each in measurements if each.peak_mib is not None]
    return replace(chosen, peak_mib=max(peaks, default=None))


def check_rows(name: str, one: Measurement, backlog: Backlog) -> None:
    """A fast reader that loses rows has no speed: the tail row is the only one on top."""
    if one.rows not in {backlog.rows, backlog.rows + 1}:
        raise RuntimeError(f"{name} staged {one.rows} changes, the server has {backlog.rows}.")


def read_with_server(source: Source, slot: str, backlog: Backlog) -> Measurement:
    """Decode on the server and count there."""
    started = time.perf_counter()
    source.count_messages(slot, backlog.end_lsn)
    return Measurement(time.perf_counter() - started)


def read_with_pg_recvlogical(source: Source, slot: str, backlog: Backlog) -> Measurement:
    """Receive and drop. The tail row, past the end LSN, makes it end without waiting."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    source.run_program(
        "pg_recvlogical",
        "--start",
        f"--slot={slot}",
        f"--endpos={backlog.end_lsn}",
        "--file=/dev/null",
        "--no-loop",
        "--option=proto_version=1",
        f"--option=publication_names={PUBLICATION}",
        f"--dbname={DATABASE}",
    )
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measurement(seconds, cpu)


def read_with_pipeline(
    conninfo: str,
    slot: str,
    transport: str,
    options: dict[str, Any],
    parent: Path | None = None,
    parallelism: int | None = None,
    masks: dict[str, str] | None = None,
) -> Measurement:
    """Stage one batch in a process that does nothing else; see stage_once.py."""
    order = {
        "slot": slot,
        "publication": PUBLICATION,
        "transport": transport,
        "options": options,
        "decode_parallelism": parallelism,
        "columns": masks or {},
    }
    return run_stage_once(conninfo, order, parent)


def run_stage_once(conninfo: str, order: dict[str, Any], parent: Path | None = None) -> Measurement:
    """Run an order of stage_once.py in a process of its own and a folder that is deleted then."""
    with tempfile.TemporaryDirectory(prefix="pgoutput-bench-", dir=parent) as folder:
        return stage_once(conninfo, folder, order)


def python_of(checkout: Path) -> str:
    """The interpreter of the environment that ``make setup`` makes in a checkout."""
    return str(checkout / ".venv" / "bin" / "python")


def stage_once(
    conninfo: str, staging: Path | str, order: dict[str, Any], checkout: Path | None = None
) -> Measurement:
    """Run an order of stage_once.py in a process of its own.

    :param checkout: whose code runs, if it is not this one's.
    """
    done = subprocess.run(
        [
            sys.executable if checkout is None else python_of(checkout),
            "-m",
            "benchmarks.stage_once",
        ],
        cwd=checkout,
        input=json.dumps({**order, "conninfo": conninfo, "staging_uri": str(staging)}),
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"staging failed:\n{done.stderr[-4000:]}")
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))
