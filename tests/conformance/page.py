"""Writes ``docs/conformance.md`` from the scenarios: ``python -m tests.conformance.page``.

The test beside it fails while the page is not what this would write.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.conformance import passed
from tests.conformance.groups import VARIANTS
from tests.conformance.scenarios import SCENARIOS

if TYPE_CHECKING:
    from tests.conformance.scenario import Scenario

PAGE = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
_FOLDER = "tests/conformance"

#: Scenarios that have to stop, or that need other options, are tests of their own.
APART = (
    (
        "C26",
        "a partial update of a row that the target does not hold",
        "`RowMissing`; nothing is published, the checkpoint stays",
        "test_refusals.py::test_c26_a_partial_update_of_a_missing_row_is_refused",
    ),
    (
        "C85",
        "logical messages, transactional or not, and one that is rolled back",
        "each is in `pgoutput_messages` once, over both transports; none that was rolled back",
        "test_messages_and_origins.py::test_c85_logical_messages_reach_their_table_once",
    ),
    (
        "C86",
        "logical messages that nobody asked for",
        "no table `pgoutput_messages`",
        "test_messages_and_origins.py::test_c86_without_messages_there_are_none",
    ),
    (
        "C87",
        "transactions that the source replicated from another server",
        "a change log names their origin, over both transports; `origin` `none` leaves them out",
        "test_messages_and_origins.py::test_c87_origins_are_named_or_left_out",
    ),
    (
        "C88",
        "two origins in turn, then none",
        "each change log row has the origin of its own transaction or none",
        "test_messages_and_origins.py::test_c88_an_origin_is_that_of_its_transaction_alone",
    ),
    (
        "C92",
        "a publication that was dropped, or made too late",
        "`PublicationMissing`, over both transports; slot, checkpoint and lake stay",
        "test_refusals.py::test_c92_a_dropped_publication_stops_the_run",
    ),
)

_HEAD = """# Conformance

What PostgreSQL sends in each case, and what the lake must hold afterwards. Every scenario runs from a real
PostgreSQL through staging and apply into Iceberg tables, and the tables are compared with the source itself,
value by value, as multisets of rows; where the lake must not equal the source, the second table says why.
`make test` runs them, and `pytest tests/conformance --postgres-version 16` runs them on another version. The
versions in the table are those on which a test passed when that was last noted, see
`tests/conformance/passed.json`.

Each scenario runs twice from the same WAL: with one batch for all transactions (`one_batch`), and with one
batch for each (`per_transaction`). Then every batch is applied a second time, the initial copy first: no
table may get a snapshot from that (`test_applied_twice`). Every row change must be counted in its batch
(`test_every_change_is_counted`). Ids that are missing belong to scenarios that do not run end to end yet.

| scenario | PostgreSQL | test |
|---|---|---|
"""
_DEMANDS = """
## What each one is about

| scenario | what happens | what must hold besides equality |
|---|---|---|
"""


def page() -> str:
    """The text of the page."""
    tests = [
        (scenario.id, f"test_scenarios.py::test_scenario[{scenario.id}-{variant}]")
        for scenario in SCENARIOS
        for variant in VARIANTS
    ]
    tests += [(identifier, test) for identifier, _, _, test in APART]
    demands = [(scenario.id, scenario.title, _demands(scenario)) for scenario in SCENARIOS]
    demands += [(identifier, title, demand) for identifier, title, demand, _ in APART]
    record = passed.read()
    return (
        _HEAD
        + "".join(
            f"| {identifier} | {_servers(test, record)} | `{_FOLDER}/{test}` |\n"
            for identifier, test in sorted(tests)
        )
        + _DEMANDS
        + "".join(f"| {' | '.join(line)} |\n" for line in sorted(demands))
    )


def _servers(test: str, record: dict[str, list[int]]) -> str:
    return " ".join(str(version) for version in passed.versions_of(test, record)) or "none yet"


def _demands(scenario: Scenario) -> str:
    found = []
    if scenario.differs_because:
        found.append(f"not equal: {scenario.differs_because}")
    if scenario.surplus_columns:
        found.append("the target keeps " + ", ".join(f"`{n}`" for n in scenario.surplus_columns))
    if scenario.rejected:
        found.append(f"{len(scenario.rejected)} values in `pgoutput_rejected_values`")
    if scenario.dml_sqlstate:
        found.append(f"the source refuses with SQLSTATE {scenario.dml_sqlstate}")
    if scenario.warning:
        found.append(f"a warning names `{scenario.warning[0]}`")
    return "; ".join(found)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
