"""``python -m tests.matrix [CELL ...]``: what ``make matrix`` runs. It prints a row when a cell is done."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from datetime import UTC, datetime

from tests.matrix.cells import CELLS
from tests.matrix.environments import ROOT, Environments
from tests.matrix.life import Place, live, say


def main() -> int:
    """Run cells one after the other; 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix")
    names = [cell.name for cell in CELLS]
    parser.add_argument("cells", nargs="*", metavar="CELL", help=f"one of {', '.join(names)}")
    asked_for = parser.parse_args().cells or names
    if unknown := set(asked_for) - set(names):
        parser.error(
            f"there is no cell {', '.join(sorted(unknown))}; the cells: {', '.join(names)}"
        )
    failed = False
    for cell in (cell for cell in CELLS if cell.name in asked_for):
        began = time.monotonic()
        say(f"matrix: {cell.name}: making its environments")
        airflow, outcome = cell.airflow, "equal"
        try:
            environments = Environments.make(cell)
            versions = environments.versions()
            airflow = versions["apache-airflow"]
            say(f"  {', '.join(f'{name} {version}' for name, version in versions.items())}")
            live(Place(ROOT, environments))
        # Whatever ended this cell, the next one still runs.
        except Exception:
            say(f"matrix: {cell.name} FAILED: {traceback.format_exc()}")
            outcome, failed = "FAILED", True
        seconds = time.monotonic() - began
        today = datetime.now(UTC).date()
        say(
            f"| `{cell.name}` | {airflow} | {cell.python} | {cell.postgres} | {cell.spark} |"
            f" {outcome}, {seconds:.0f} s | {today} |"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
