"""Memory of staging while one huge transaction passes: ``python -m benchmarks.large_transaction``.

Writes one transaction of so many GB of row data, stages it with streaming on through each transport, and
prints rows, seconds and the highest resident set of the staging process. It needs room for the WAL, for
the server's temporary file, for the spilled transaction and for the staged files: about four times the
size. What is not here: a comparison; see run.py.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from benchmarks.staging import TRANSPORTS, read_with_pipeline
from benchmarks.workloads import Source, copied_slot, huge_backlog

PEAK_TARGET_MIB = 512


def main() -> int:
    """Write, stage, print; 1 when a process grew past the target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_transaction")
    parser.add_argument("--gigabytes", type=float, default=5.0, help="of row data (default: 5)")
    parser.add_argument("--transports", nargs="+", default=list(TRANSPORTS), choices=TRANSPORTS)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pgoutput-bench-", dir="/var/tmp"))
    folder.chmod(0o755)
    (folder / "staged").mkdir()
    worst = 0.0
    try:
        with (
            Source(folder / "postgres", 1) as source,
            huge_backlog(source, arguments.gigabytes) as waiting,
        ):
            print(
                f"one transaction of {waiting.rows:,} rows, {arguments.gigabytes:g} GB", flush=True
            )
            for transport in arguments.transports:
                with copied_slot(source, waiting) as slot:
                    one = read_with_pipeline(
                        source.conninfo, slot, transport, {"streaming": "on"}, folder / "staged"
                    )
                worst = max(worst, one.peak_mib or 0)
                print(
                    f"{transport}: {one.rows:,} rows in {one.seconds:.0f} s, peak {one.peak_mib:.0f} MiB"
                    f" (target: {PEAK_TARGET_MIB} at most)",
                    flush=True,
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(worst > PEAK_TARGET_MIB)


if __name__ == "__main__":
    raise SystemExit(main())
