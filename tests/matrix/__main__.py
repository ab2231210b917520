"""``python -m tests.matrix [CELL ...]``: what ``make matrix`` runs. It prints a row for each cell."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime

from airflow_provider_pgoutput.errors import PgoutputError
from tests.matrix.cells import CELLS
from tests.matrix.environments import Environments
from tests.matrix.life import live, say


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
    rows, failed = [], False
    for cell in (cell for cell in CELLS if cell.name in asked_for):
        began = time.monotonic()
        say(f"matrix: {cell.name}: making its environments")
        outcome = "equal"
        try:
            environments = Environments.make(cell)
            say(f"  {', '.join(f'{name} {v}' for name, v in environments.versions().items())}")
            live(environments)
        except (PgoutputError, AssertionError) as error:
            say(f"matrix: {cell.name} FAILED: {error}")
            outcome, failed = "FAILED", True
        seconds = time.monotonic() - began
        today = datetime.now(UTC).date()
        rows.append(
            f"| `{cell.name}` | {cell.airflow} | {cell.python} | {cell.postgres} | {cell.spark} |"
            f" {outcome}, {seconds:.0f} s | {today} |"
        )
    print("\n" + "\n".join(rows))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
