"""Memory of staging while one huge transaction passes, with streaming on, through each transport.

It needs room for the WAL, for the server's temporary file, for the spilled transaction and for the staged
files: about four times the size. What is not here: a comparison; see run.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.staging import TRANSPORTS, check_rows, read_with_pipeline
from benchmarks.workloads import Source, copied_slot, huge_backlog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Of row data, at scale 1.
GIGABYTES = 5.0


def measure_large(
    source: Source, gigabytes: float, folder: Path, report: Callable[[str], None]
) -> dict[str, Any]:
    """Write, stage; rows, seconds and the highest resident set of the staging process by transport."""
    found: dict[str, Any] = {}
    with huge_backlog(source, gigabytes) as waiting:
        report(f"one transaction of {waiting.rows:,} rows, {gigabytes:g} GB")
        for transport in TRANSPORTS:
            with copied_slot(source, waiting) as slot:
                one = read_with_pipeline(
                    source.conninfo, slot, transport, {"streaming": "on"}, folder
                )
            check_rows(transport, one, waiting)
            found[transport] = {"rows": one.rows, "seconds": one.seconds, "peak_mib": one.peak_mib}
            report(f"large transaction, {transport}: {one.seconds:.0f} s, {one.peak_mib:.0f} MiB")
    return found
