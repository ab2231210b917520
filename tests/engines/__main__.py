"""``python -m tests.engines``: which engines read the pipeline's tables exactly."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.engines.environments import read_with
from tests.engines.lake import KINDS, Kind, make
from tests.engines.page import write_page
from tests.engines.reader import PACKAGES
from tests.engines.tables import TABLES

#: Environments, the lake of the last run and what its readers must find stay here.
HOME = Path(__file__).parents[2] / ".engines"


@dataclass(frozen=True)
class Result:
    """What one engine made of one table of one kind, at one moment."""

    engine: str
    kind: Kind
    moment: str
    table: str
    #: Empty: every row is right.
    fault: str


def main() -> int:
    """Make the tables, read them and write the page; 1 when an engine reads another kind better."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="*", choices=PACKAGES, default=list(PACKAGES))
    names = [each.name for each in TABLES]
    parser.add_argument("--tables", nargs="*", choices=names, default=names)
    parser.add_argument("--page", type=Path, help="write the results into this page")
    parser.add_argument("--again", action="store_true", help="read what the last run made")
    arguments = parser.parse_args()
    if arguments.page and arguments.tables != names:
        parser.error("the page has all tables")
    HOME.mkdir(exist_ok=True)
    description = HOME / "made.json"
    if not arguments.again:
        shutil.rmtree(HOME / "lake", ignore_errors=True)
        tables = [each for each in TABLES if each.name in arguments.tables]
        description.write_text(json.dumps(make(HOME / "lake", tables)))
    made = json.loads(description.read_text())
    versions = {"spark": made["spark_version"]}
    answers = {"spark": made["spark"]}
    for engine in arguments.engines:
        versions[engine], answers[engine] = read_with(engine, made["request"], HOME)
    kinds = {each.name: each for each in KINDS}
    results = []
    for engine, found in answers.items():
        for name, wanted in made["wanted"].items():
            moment, kind, table = name.split("/")
            fault = compare(found.get(name), Counter(wanted))
            results.append(Result(engine, kinds[kind], moment, table, fault))
            if fault:
                print(f"{engine}, {name}: {fault}", flush=True)
    if arguments.page:
        write_page(arguments.page, versions, results, datetime.now(UTC).date())
    return 1 if faults_of_the_default(results) else 0


def faults_of_the_default(results: list[Result]) -> set[tuple[str, str, str]]:
    """Engine, moment and table of what is right in another kind and not in the default one."""
    faults: list[set[tuple[str, str, str]]] = [
        {
            (each.engine, each.moment, each.table)
            for each in results
            if each.fault and each.kind == kind
        }
        for kind in KINDS
    ]
    return faults[0] - (faults[1] & faults[2] & faults[3])


def compare(answer: dict[str, Any] | None, wanted: Counter[str]) -> str:
    """What is wrong with an engine's rows; empty when nothing is."""
    if answer is None:
        return "died: the engine ended without a word"
    if "error" in answer:
        return f"refused: {' '.join(answer['error'].split())[:300]}"
    found = Counter(map(json.dumps, answer["rows"]))
    missing, surplus = wanted - found, found - wanted
    if not missing and not surplus:
        return ""
    samples = [*list(missing)[:1], *list(surplus)[:1]]
    return (
        f"wrong: {found.total()} rows for {wanted.total()}, {missing.total()} missing,"
        f" {surplus.total()} too many, e.g. {' | '.join(samples)[:600]}"
    )


if __name__ == "__main__":
    sys.exit(main())
