r"""The initial copy against psql's own ``\copy ... TO '/dev/null'``, in turns, with as many connections.

Ours reads, casts, writes typed Parquet, syncs, hashes and seals; psql receives and drops. psql reads one
table over one connection, so with several connections each of its processes gets ranges of blocks as ours
do. What is not here: changes (``staging.py``).
"""

from __future__ import annotations

import os
import resource
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.staging import Measurement, median, run_stage_once
from benchmarks.workloads import DATABASE

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.workloads import Source

TABLES = ("trips", "mixed")
ROWS = 20_000_000
CONTENDERS = ("copy", "psql_text", "psql_binary")
SCHEMA = Path(__file__).with_name("copy.sql")
_SLOT = "bench_copy"


def make_tables(source: Source, rows: int) -> dict[str, int]:
    """Make both tables and their publications; rows by table."""
    for statement in SCHEMA.read_text().split(";\n"):
        if statement.strip():
            source.connection.execute(statement.replace(":rows", str(rows)).encode())
    found = {}
    for name in TABLES:
        source.connection.execute(f"VACUUM (FREEZE, ANALYZE) {name}".encode())
        source.connection.execute(f"CREATE PUBLICATION copy_{name} FOR TABLE {name}".encode())
        found[name] = int(str(source.scalar(f"SELECT count(*) FROM {name}")))
    source.connection.execute("CHECKPOINT")
    return found


def measure_copies(
    source: Source,
    rows: int,
    repetitions: int,
    connections: int,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """The figures of every table by contender."""
    cases: dict[str, Any] = {}
    for name, count in make_tables(source, rows).items():
        found: dict[str, list[Measurement]] = {each: [] for each in CONTENDERS}
        for repetition in range(repetitions):
            for each in CONTENDERS if repetition % 2 == 0 else reversed(CONTENDERS):
                one = _measure(source, name, each, count, connections)
                found[each].append(one)
                report(f"copy of {name}, {each}: {one.seconds:.2f} s")
        cases[name] = _case(
            count, connections, {each: median(all_of) for each, all_of in found.items()}
        )
    return cases


def _case(rows: int, connections: int, measured: dict[str, Measurement]) -> dict[str, Any]:
    case: dict[str, Any] = {"rows": rows, "connections": connections}
    ours = measured["copy"].seconds
    for name, one in measured.items():
        case[name] = {
            "seconds": one.seconds,
            "rows_per_s": rows / one.seconds,
            "rows_per_cpu_s": rows / one.cpu_seconds if one.cpu_seconds else None,
            "peak_mib_per_connection": one.peak_mib and one.peak_mib / connections,
            "times_as_slow_as_ours": one.seconds / ours,
        }
    return case


def _measure(
    source: Source, table: str, contender: str, rows: int, connections: int
) -> Measurement:
    if contender == "copy":
        return _copy(source, table, rows, connections)
    return _psql(source, table, contender.removeprefix("psql_"), connections)


def _copy(source: Source, table: str, rows: int, connections: int) -> Measurement:
    """The first run of a pipeline, which makes its slot, in a process that does nothing else."""
    order = {
        "slot": _SLOT,
        "publication": f"copy_{table}",
        "transport": "sql",
        "options": {},
        "copy_connections": connections,
    }
    try:
        one = run_stage_once(source.conninfo, order)
    finally:
        source.scalar("SELECT pg_drop_replication_slot(%s)", _SLOT)
    if one.rows != rows:
        raise RuntimeError(f"{one.rows} rows of {table} were copied, it has {rows}.")
    return one


def _psql(source: Source, table: str, form: str, connections: int) -> Measurement:
    """Receive and drop, in as many processes, each with its share of the blocks."""
    blocks = int(
        str(
            source.scalar(
                f"SELECT pg_relation_size('{table}') / current_setting('block_size')::int"
            )
        )
    )
    bounds = [blocks * number // connections for number in range(connections)]
    environment = {**os.environ, "PGPASSWORD": source.server.password}
    place = ["--host=127.0.0.1", f"--port={source.server.port}", "--username=postgres"]
    program = str(source.server.installation.program("psql"))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    processes = []
    for first, end in zip(bounds, [*bounds[1:], 2**32 - 1], strict=True):
        query = f"SELECT * FROM {table} WHERE ctid >= '({first},0)' AND ctid < '({end},0)'"
        command = f"\\copy ({query}) TO '/dev/null' WITH (FORMAT {form})"
        processes.append(
            subprocess.Popen([program, *place, "-qXc", command, DATABASE], env=environment)
        )
    failed = [each for each in processes if each.wait()]
    seconds = time.perf_counter() - started
    if failed:
        raise RuntimeError(f"psql ended with {failed[0].returncode}.")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measurement(seconds, cpu)
