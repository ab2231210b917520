"""``python -m tests.lakes [LAKE ...]``: what ``make lakes`` runs. It prints a row when a lake is done."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from datetime import UTC, datetime

from tests.lakes.lakes import LAKES, live_in
from tests.lakes.programs import Unavailable
from tests.matrix.life import say


def main() -> int:
    """Try lakes one after the other; 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.lakes")
    parser.add_argument("lakes", nargs="*", metavar="LAKE", help=f"one of {', '.join(LAKES)}")
    asked_for = parser.parse_args().lakes or list(LAKES)
    if unknown := set(asked_for) - set(LAKES):
        parser.error(f"there is no lake {', '.join(sorted(unknown))}: {', '.join(LAKES)}")
    failed = False
    for name in asked_for:
        began, outcome = time.monotonic(), "equal"
        say(f"lakes: {name}")
        try:
            live_in(name)
        except Unavailable as error:
            outcome = f"not run: {error}"
        # Whatever ended this lake, the next one is still tried.
        except Exception:
            say(f"lakes: {name} FAILED: {traceback.format_exc()}")
            outcome, failed = "FAILED", True
        seconds = time.monotonic() - began
        say(f"| `{name}` | {outcome}, {seconds:.0f} s | {datetime.now(UTC).date()} |")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
