"""``python -m benchmarks.run``: all figures of docs/explanation/performance.md in one run.

It starts a PostgreSQL server of its own, measures staging and apply, prints a table and writes
``benchmarks/results/latest.json``. ``--scale`` (or ``BENCH_SCALE``) shrinks everything; the targets
are meant for scale 1. A missed target is shown, it is not a failure of the run.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.copy import ROWS as COPY_ROWS
from benchmarks.copy import measure_copies
from benchmarks.decoder import measure_decoder
from benchmarks.large_transaction import GIGABYTES, measure_large
from benchmarks.report import finish, staging_case, table
from benchmarks.staging import CONTENDERS, PARALLEL, measure
from benchmarks.workloads import WORKLOADS, Source, backlog

RESULTS = Path(__file__).with_name("results") / "latest.json"
#: Below it nothing is a figure; a run only shows that everything runs.
SMOKE_SCALE = 0.05
APPLY_TABLE_ROWS = 100_000_000
APPLY_SIZES = {"10k": 10_000, "10k recent": 10_000, "1M": 1_000_000}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    scale = float(os.environ.get("BENCH_SCALE", "1"))
    parser.add_argument("--scale", type=float, default=scale, help="1: the full size (default)")
    parser.add_argument(
        "--repetitions", type=int, default=3, help="medians of so many (default: 3)"
    )
    parser.add_argument(
        "--workloads", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS), metavar="W"
    )
    parser.add_argument(
        "--contenders",
        nargs="+",
        default=list(CONTENDERS),
        choices=(*CONTENDERS, *PARALLEL),
        metavar="NAME",
    )
    parser.add_argument("--no-apply", action="store_true", help="leave apply out")
    parser.add_argument("--no-decoder", action="store_true", help="leave the decoder alone out")
    parser.add_argument("--no-large", action="store_true", help="leave the transaction of 5 GB out")
    parser.add_argument("--no-copy", action="store_true", help="leave the initial copy out")
    parser.add_argument(
        "--connections", type=int, default=2, help="connections of the copy (default: 2)"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file")
    return parser.parse_args(arguments)


def run_staging(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All contenders on all chosen workloads."""
    if not options.workloads:
        return {}
    cases: dict[str, Any] = {}
    with Source(folder / "postgres", 10 if options.scale >= SMOKE_SCALE else 1) as source:
        say(f"PostgreSQL {source.server.version}, scale {options.scale:g}")
        for name in options.workloads:
            say(f"{name}: writing {WORKLOADS[name].description} x {options.scale:g}")
            with backlog(source, WORKLOADS[name], options.scale) as waiting:
                measured = measure(
                    source, waiting, tuple(options.contenders), options.repetitions, say
                )
                cases[name] = staging_case(waiting.rows, measured)
    return cases


def run_decoder(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The decoder alone."""
    with Source(folder / "postgres", 1) as source:
        return measure_decoder(source, options.scale, options.repetitions, say)


def run_large(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Memory while one huge transaction passes."""
    with Source(folder / "postgres", 1) as source:
        return measure_large(source, GIGABYTES * options.scale, folder, say)


def run_copy(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The initial copy against psql."""
    rows = max(4_000, round(COPY_ROWS * options.scale))
    with Source(folder / "postgres", 1) as source:
        say(f"copy: making tables of {rows:,} rows")
        return measure_copies(source, rows, options.repetitions, options.connections, say)


def run_apply(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Apply against the bare MERGE, in a process of its own: Spark stays until its process ends."""
    order = {
        "folder": str(folder / "apply"),
        "table_rows": max(20_000, round(APPLY_TABLE_ROWS * options.scale)),
        "sizes": {name: max(100, round(n * options.scale)) for name, n in APPLY_SIZES.items()},
        "repetitions": options.repetitions,
    }
    say(f"apply: writing a table of {order['table_rows']} rows")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.apply_once"],
        input=json.dumps(order),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    if not found["tables_equal"]:
        raise RuntimeError(
            "apply and the bare MERGE left different rows: the figures mean nothing."
        )
    say(f"apply: both tables hold the same rows (initial copy: {found['copy_seconds']:.1f} s)")
    return {
        name: {
            "seconds": sides["apply"],
            "merge_seconds": sides["merge"],
            "ratio_to_merge": sides["merge"] / sides["apply"],
        }
        for name, sides in found["seconds"].items()
    }


def main(arguments: list[str] | None = None) -> int:
    """Run everything that the command line asks for."""
    options = parse_arguments(arguments)
    # Below a folder that the server's account may enter; a tmpfs would flatter the figures.
    folder = Path(tempfile.mkdtemp(prefix="pgoutput-bench-", dir="/var/tmp"))
    folder.chmod(0o755)
    load = os.getloadavg()
    try:
        result: dict[str, Any] = {
            "measured_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "scale": options.scale,
            "repetitions": options.repetitions,
            "cores": os.cpu_count(),
            "load_before": load[0],
            "staging": run_staging(options, folder),
            "decoder": {} if options.no_decoder else run_decoder(options, folder),
            "large": {} if options.no_large else run_large(options, folder),
            "copy": {} if options.no_copy else run_copy(options, folder),
            "apply": {} if options.no_apply else run_apply(options, folder),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    complete = finish(result, options.output)
    print(table(complete))
    missed = [each for each in complete["targets"] if not each["met"]]
    print(f"\n{len(complete['targets']) - len(missed)} targets met, {len(missed)} missed")
    print(f"figures: {options.output}")
    return 0


def say(text: str) -> None:
    """Progress goes to standard error, so that the table can be redirected."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
