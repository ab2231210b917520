"""Runs seeds of the simulation: ``python -m tests.simulation --seeds 10000 --seed 1``."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.simulate import run_seeds


def main() -> int:
    """Run the seeds; 1 when one of them breaks an invariant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    arguments = parser.parse_args()
    began = time.monotonic(), time.process_time()
    counts, failures = run_seeds(range(arguments.seed, arguments.seed + arguments.seeds))
    for failure in failures:
        print(f"{failure}\n")
    seconds, used = time.monotonic() - began[0], time.process_time() - began[1]
    for what, count in sorted(counts.items()):
        print(f"{count:>10,}  {what}")
    print(
        f"{counts['seeds']:,} seeds, {len(failures)} violations, {seconds:.0f} s ({used:.0f} s CPU)"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
