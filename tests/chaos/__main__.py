"""``python -m tests.chaos --seed 1 --runs 20``: random programs against whole pipelines."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation
from quickstart.spark import LocalLake, spark_environment
from tests.chaos.driver import ROOT, Driver
from tests.chaos.run import Place, Result, Run
from tests.chaos.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = ROOT / ".chaos" / "results.jsonl"
_SETTINGS = {
    "fsync": "off",
    "max_prepared_transactions": "20",
    "max_connections": "60",
    "autovacuum_naptime": "1s",
    "max_wal_size": "256MB",
}
#: A driver keeps something of each plan that it ran.
_RUNS_OF_A_DRIVER = 25


def main() -> int:
    """Run; 1 when something is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--postgres-version", type=int, default=18, choices=(15, 16, 17, 18))
    parser.add_argument("--no-java", action="store_true", help="kill neither JVM nor server")
    parser.add_argument("--keep", action="store_true", help="keep the files of good runs, too")
    parser.add_argument("--folder", type=Path, help="where files of failed runs stay")
    arguments = parser.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    folder = arguments.folder or RESULTS.parent / "failed"
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    failed = 0
    for result in runs(
        arguments.postgres_version,
        list(seeds),
        folder,
        java=not arguments.no_java,
        keep=arguments.keep,
    ):
        print(line(result), flush=True)
        for fault in result.faults:
            print(f"  FAULT: {fault}", flush=True)
        failed += bool(result.faults)
        with RESULTS.open("a") as results:
            results.write(result.to_json() + "\n")
    print_sum()
    return 1 if failed else 0


def runs(version: int, seeds: list[int], folder: Path, **options: bool) -> Iterator[Result]:
    """The results of runs, one after the other, on one server and in one lake.

    :param options: the last fields of ``Place``.
    """
    os.environ.update(spark_environment())
    home = Path(tempfile.mkdtemp(prefix="pgoutput-chaos-"))
    server_home = Path(tempfile.mkdtemp(prefix="pgoutput-chaos-server-"))
    folder.mkdir(parents=True, exist_ok=True)
    lake = LocalLake(home / "lake").create()
    installation = find_or_fetch_installation(version)
    server = EmbeddedPostgres(server_home, installation=installation, settings=_SETTINGS)
    try:
        server.start()
        with (
            Tasks(folder / "tasks.log") as tasks,
            Tasks(folder / "verifier.log") as verifier,
            Driver(lake, folder / "driver.log") as driver,
        ):
            for count, seed in enumerate(seeds):
                if count and count % _RUNS_OF_A_DRIVER == 0:
                    driver.kill()
                place = Place(server, lake, tasks, verifier, driver, folder, **options)
                yield Run(place, seed).go()
    finally:
        server.destroy()
        shutil.rmtree(home, ignore_errors=True)


def line(result: Result) -> str:
    """A run in a line."""
    return (
        f"{time.strftime('%H:%M:%S')} PostgreSQL {result.version}, seed {result.seed}: {result.seconds} s,"
        f" {result.transactions} transactions, {result.batches} batches, {result.changes} changes,"
        f" {result.tables} tables with {result.rows} rows compared, kills {dict(result.kills)},"
        f" refusals {dict(result.refusals)}, excused {dict(result.excused)},"
        f" on the way {dict(Counter(result.on_the_way))}, verified {dict(result.verified)}"
        f"{', NOT AS IT MUST BE' if result.faults else ''}"
    )


def print_sum() -> None:
    """What all sittings add up to, by version."""
    total: dict[int, Counter[str]] = defaultdict(Counter)
    refusals: dict[int, Counter[str]] = defaultdict(Counter)
    for text in RESULTS.read_text().splitlines():
        each = json.loads(text)
        version = each["version"]
        total[version].update(
            {
                "runs": 1,
                "bad": bool(each["faults"]),
                **{
                    name: each[name]
                    for name in ("transactions", "batches", "changes", "tables", "rows")
                },
                **{f"kills of {name}": count for name, count in each["kills"].items()},
                "excused": sum(each["excused"].values()),
                # Results of earlier versions lack these two.
                **{f"runs with {name}": 1 for name in set(each.get("on_the_way", ()))},
            }
        )
        for name, count in each.get("verified", {}).items():
            total[version][f"verified {name.partition(':')[0]}"] += count
        refusals[version].update(each["refusals"])
    for version in sorted(total):
        print(f"PostgreSQL {version}: {dict(total[version])}; refusals: {dict(refusals[version])}")


if __name__ == "__main__":
    sys.exit(main())
