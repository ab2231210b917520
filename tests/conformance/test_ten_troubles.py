"""Trouble of one table of many, or of all: the others equal the source, and the bad ones come back.

Each kind of trouble happens once for each way back (``troubles.py``), in one pipeline, one after the other.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import LakeDenied
from tests.conformance import troubles
from tests.conformance.many_tables import Tables
from tests.conformance.test_tables_set_aside import aside
from tests.faults.rest_catalog import RestCatalog

if TYPE_CHECKING:
    from quickstart.spark import LocalLake
    from tests.conformance.pipeline import Pipeline
    from tests.conformance.troubles import Case, Trouble

_ONE, _ALL = "one table", "all tables"
_MODES = ("upsert", "change log")
_TRANSPORTS = ("sql", "walsender")
#: How many tables there are: in every run of the tests, with ``ALL=1``, and where all have the trouble.
_FEW, _MANY, _OF_ALL = 4, 20, 3
_WHOLE = [
    pytest.param(mode, transport, extent, (), marks=pytest.mark.exhaustive)
    for mode in _MODES
    for transport in _TRANSPORTS
    for extent in (_ONE, _ALL)
]


@pytest.mark.further
@pytest.mark.parametrize(
    ("mode", "transport", "extent", "chosen"),
    [
        ("upsert", "sql", _ONE, ("rolled back", "made again")),
        ("change log", "walsender", _ALL, ("type",)),
        *_WHOLE,
    ],
    ids=lambda each: each if isinstance(each, str) else "some" if each else "every",
)
def test_trouble_of_tables_stops_no_other_and_ends(
    pipeline: Pipeline,
    local_lake: LocalLake,
    mode: str,
    transport: str,
    extent: str,
    chosen: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    kinds = troubles.UPSERT if mode == "upsert" else troubles.LOG
    count = _FEW if chosen else _MANY
    names = tuple(f"t{number}" for number in range(_OF_ALL if extent == _ALL else count))
    pipeline.capture_options.update(on_table_refused="set_aside", transport=transport)
    pipeline.plan_options.update(on_table_refused="set_aside")
    logs = [] if mode == "upsert" else [f"public.{name}" for name in names]
    tables = Tables(pipeline, logs=logs)
    tables.run(*troubles.created(names))
    rest = RestCatalog(pipeline.spark, local_lake)
    rest.attach(troubles.REST)
    numbers, turns = itertools.count(100), itertools.cycle(names)
    # A rolled back table goes back over a batch.
    tables.run(
        *troubles.Case(tables, names, names, rest, mode != "upsert", numbers, turns, {}).grow()
    )
    targets: dict[str, str] = {}
    try:
        for number, kind in enumerate(chosen or kinds):
            bad = names if extent == _ALL else (names[number % len(names)],)
            case = troubles.Case(
                tables, names, bad, rest, mode != "upsert", numbers, turns, targets
            )
            if kind == "permission":
                pipeline.plan_options["catalog_name"] = troubles.REST
            for way in kinds[kind].ways:
                _one_trouble(case, kinds[kind], way)
                with capsys.disabled():
                    print(f" {mode}, {transport}, {extent}: {kind}, back by {way}", flush=True)
            pipeline.plan_options.pop("catalog_name", None)
        tables.assert_equal(*names)
    finally:
        rest.stop()


def _one_trouble(case: Case, trouble: Trouble, way: str) -> None:
    """Make trouble, look, bring the tables back in one way, and look again."""
    tables, pipeline = case.tables, case.tables.pipeline
    others = [name for name in case.names if name not in case.bad]
    options = trouble.make(case)
    if trouble.is_of_the_lake and not others:
        # Nothing else tells the tables from a lake that lets nobody write. The run fails, and a retry helps.
        with pytest.raises(LakeDenied):
            tables.run(**options)
        case.rest.fail()
        tables.run()
        tables.assert_equal(*case.bad)
        return
    tables.run(**options)
    found = {name: each.refusal.error for name, each in aside(pipeline).items()}
    assert found == dict.fromkeys(case.bad, trouble.error)
    tables.assert_equal(*others)
    # The slot goes on, and so do the others.
    manifest = tables.run(*case.grow(), **options)
    assert pipeline.confirmed_flush_lsn() == manifest.end_lsn
    assert aside(pipeline).keys() == set(case.bad)
    trouble.ways[way](case)
    assert aside(pipeline) == {}, way
    tables.run(*case.grow())
    tables.assert_equal(*case.bad, *others[:1])
