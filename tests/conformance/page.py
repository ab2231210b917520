"""Writes the two pages of conformance from the scenarios: ``python -m tests.conformance.page``.

``docs/internals/conformance.md`` says what each scenario is about, and ``conformance_tests.md`` which tests
run it on which versions. The test beside this fails while a page is not what this would write.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.conformance import passed
from tests.conformance.groups import VARIANTS
from tests.conformance.page_rows import NOT_RUN, OTHER_TESTS
from tests.conformance.scenario import GROUPS
from tests.conformance.scenarios import SCENARIOS
from tests.conformance.ways import ways_of

if TYPE_CHECKING:
    from tests.conformance.scenario import Scenario

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "conformance.md"
PAGE_OF_TESTS = PAGE.with_name("conformance_tests.md")
_FOLDER = "tests/conformance"

_HEAD = """# Conformance

This page lists what PostgreSQL can send, and what the lake must hold afterwards. Every scenario runs from a
real PostgreSQL through staging and apply into Iceberg tables. The tables are compared with the source itself,
value by value, as multisets of rows. If the lake must differ from the source, the table says why.
`make test` runs most of them in one way, `make slow` and `make further` the rest.
`pytest tests/conformance --postgres-version 16` runs them on another version.
[The tests of the scenarios](conformance_tests.md) names the tests, and the versions on which each passed.

Each scenario is read with the newest protocol version and streaming on, and goes to the lake twice from the
same WAL:

- `one_batch`: all transactions in one batch, into merge-on-read tables.
- `per_transaction`: one batch for each transaction, into copy-on-write tables, which must get no file of
  deletes. The publications are named in the other order. `make slow` does this, for
  some groups of scenarios only `make test ALL=1`.

pyiceberg and Spark must read the same from a table. Every batch is applied a second time, the initial copy
first: no table may get a snapshot from that (`test_applied_twice`). Every row change must be counted in its
batch (`test_every_change_is_counted`).

The WAL of the scenarios of `test_scenarios.py` is staged again in every way that the server has. The staged
batches have to be the same, to the last value and position (`test_every_way_stages_the_same`). The ways are:

- over SQL and over a walsender, each with protocol versions 1 to 4 (3 on PostgreSQL 15), each with streaming
  `off`, `on` (from 2 on) and `parallel` (4), while the server streams every transaction (15: every one past
  64 kB);
- with one batch for each transaction;
- by three connections that decode small parts at once;
- with the publications named in the other order;
- if the scenario is about them, each of these as text and in binary form, with and without `two_phase`.

That is {ways_16} ways for most scenarios and up to {most_16} (PostgreSQL 15: {ways_15} and up to {most_15}).

Scenarios in other files of tests have to stop, or need a server or a moment of their own. They are read with
the default options over SQL, into merge-on-read tables, and in no other way, unless the table says so.

## What each one is about

| scenario | what happens | what must hold besides equality |
|---|---|---|
"""
_TESTS = """# The tests of the scenarios

This page is for you if you want to run one of the [scenarios](conformance.md), or to know on which version of
PostgreSQL it passed. The versions are those on which the tests of the row passed when that was last noted:
`tests/conformance/passed.json` keeps it.

| scenario | PostgreSQL | tests |
|---|---|---|
"""
_NOT_RUN = """
## What does not run here

| scenario | what happens | why not |
|---|---|---|
"""


def pages() -> dict[Path, str]:
    """The texts of the pages."""
    return {PAGE: _scenarios(), PAGE_OF_TESTS: _tests()}


def _scenarios() -> str:
    demands = [(scenario.id, scenario.title, _demands(scenario)) for scenario in SCENARIOS]
    demands += [(identifier, title, demand) for identifier, title, demand, _ in OTHER_TESTS]
    return (
        _HEAD.format(**_numbers_of_ways())
        + "".join(_row(*line) for line in sorted(set(demands), key=_order))
        + _NOT_RUN
        + "".join(f"| {' | '.join(line)} |\n" for line in NOT_RUN)
    )


def _row(identifier: str, title: str, demand: str) -> str:
    """The line of a scenario. Other pages link to it by its anchor, ``#c01``."""
    anchor = f'<a id="{identifier.lower()}"></a>'
    return f"| {anchor}{identifier} | {title} | {demand} |\n"


def _tests() -> str:
    """A row for all tests of a scenario that passed on the same versions."""
    tests = [
        (scenario.id, f"test_scenarios.py::test_scenario[{scenario.id}-{variant}]")
        for scenario in SCENARIOS
        for variant in VARIANTS
    ]
    tests += [
        (scenario.id, f"test_scenarios.py::test_every_way_stages_the_same[{scenario.id}]")
        for scenario in SCENARIOS
    ]
    tests += [(identifier, test) for identifier, _, _, test in OTHER_TESTS]
    record = passed.read()
    rows: dict[tuple[str, str], list[str]] = {}
    for identifier, test in sorted(set(tests), key=_order):
        rows.setdefault((identifier, _servers(test, record)), []).append(f"`{_path(test)}`")
    return _TESTS + "".join(
        f"| {identifier} | {servers} | {', '.join(names)} |\n"
        for (identifier, servers), names in rows.items()
    )


def _numbers_of_ways() -> dict[str, int]:
    counted = {major: [len(ways_of(each, major)) for each in GROUPS.values()] for major in (15, 16)}
    return {f"ways_{major}": min(numbers) for major, numbers in counted.items()} | {
        f"most_{major}": max(numbers) for major, numbers in counted.items()
    }


def _path(test: str) -> str:
    return test if test.startswith("tests/") else f"{_FOLDER}/{test}"


def _order(line: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    return int(line[0][1:]), line


def _servers(test: str, record: dict[str, list[int]]) -> str:
    return (
        " ".join(str(version) for version in passed.versions_of(test.rpartition("/")[2], record))
        or "none yet"
    )


def _demands(scenario: Scenario) -> str:
    found = []
    if scenario.differs_because:
        found.append(f"not equal: {scenario.differs_because}")
    if scenario.surplus_columns:
        found.append("the target keeps " + ", ".join(f"`{n}`" for n in scenario.surplus_columns))
    if scenario.absent_columns:
        found.append("the target lacks " + ", ".join(f"`{n}`" for n in scenario.absent_columns))
    if scenario.absent_tables:
        found.append("no target " + ", ".join(f"`{n}`" for n in scenario.absent_tables))
    if scenario.least_version > 15:
        found.append(f"from PostgreSQL {scenario.least_version} on")
    if scenario.rejected:
        found.append(f"{len(scenario.rejected)} values in `pgoutput_rejected_values`")
    if scenario.dml_sqlstate:
        found.append(f"the source refuses with SQLSTATE {scenario.dml_sqlstate}")
    if scenario.warning:
        found.append(f"a warning names `{scenario.warning[0]}`")
    return "; ".join(found)


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
