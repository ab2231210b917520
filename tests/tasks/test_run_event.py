"""The facts of a run in an asset's event: small, and complete while there is room."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import AssetAlias

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.hooks.connections import asset_uri
from airflow_provider_pgoutput.tasks.received_batch import ReceivedBatch
from airflow_provider_pgoutput.tasks.run_event import MOST_BYTES, RunFacts, run_extra, tell_assets

SLOT_STATE = {
    "retained_bytes": 10**12,
    "wal_status": "reserved",
    "safe_wal_size_bytes": 10**12,
    "wal_limit_bytes": 10**12,
}


def received(**told: Any) -> ReceivedBatch:
    return ReceivedBatch("shop", "b" * 64, Lsn(16), Lsn(32), "file:///shop/manifests/x", xcom=told)


def test_tables_without_changes_of_a_kind_tell_only_the_others() -> None:
    facts = RunFacts(received(), "lake", {"public.a": {"inserts": 2, "deletes": 0}}, 2)
    told = run_extra(facts)
    assert told["tables"] == {"public.a": {"inserts": 2}}
    assert told["tables_left_out"] == 0
    # What is not known has no name.
    assert "slot" not in told
    assert "apply_seconds" not in told


@pytest.mark.parametrize("length", [1, 20, 60])
@pytest.mark.parametrize("tables", [1, 19, 400])
def test_an_event_stays_small(tables: int, length: int) -> None:
    counts = {
        f"public.{'ü' * length}{number}": dict.fromkeys(
            ("inserts", "updates", "deletes", "truncates", "copied", "rejected"), 10**9 + number
        )
        for number in range(tables)
    }
    words = {name: ["column added: " + "x" * 60] * 100 for name in list(counts)[:50]}
    facts = RunFacts(
        received(slot=SLOT_STATE, schema_changes=words, stage_seconds=1.5), "lake", counts, 7
    )
    told = run_extra(facts)
    assert len(json.dumps(told).encode()) <= MOST_BYTES
    assert len(told["tables"]) + told["tables_left_out"] == tables
    assert told["slot"] == SLOT_STATE
    assert told["totals"]["inserts"] == sum(each["inserts"] for each in counts.values())
    # Those with the most changes stay.
    most = [f"public.{'ü' * length}{number}" for number in reversed(range(tables))]
    assert [*told["tables"]] == most[: len(told["tables"])]
    # A table with such a name and six counts has up to 600 bytes.
    assert len(told["tables"]) >= 1


def test_it_names_some_tables_that_are_set_aside() -> None:
    names = tuple(f"public.t{number}" for number in range(9, 0, -1))
    told = run_extra(RunFacts(received(), "lake", {}, 0, set_aside=names))
    assert told["set_aside"] == 9
    assert told["set_aside_tables"] == [f"public.t{number}" for number in range(1, 6)]
    long = tuple(f"{number}{'ü' * 62}.{'ü' * 63}" for number in range(9))
    told = run_extra(RunFacts(received(), "lake", {"public.a": {"inserts": 1}}, 1, set_aside=long))
    assert len(json.dumps(told).encode()) <= MOST_BYTES
    assert told["set_aside"] == 9


def test_warnings_about_the_slot_are_left_out_last() -> None:
    slot = {**SLOT_STATE, "warnings": ["short"]}
    assert run_extra(RunFacts(received(slot=slot), "lake", {}, 0))["slot"] == slot
    slot["warnings"] = ["ü" * 400]
    long = tuple(f"{number}{'ü' * 62}.{'ü' * 63}" for number in range(9))
    told = run_extra(RunFacts(received(slot=slot), "lake", {}, 0, set_aside=long))
    assert len(json.dumps(told).encode()) <= MOST_BYTES
    assert told["slot"] == SLOT_STATE
    assert "warnings" in slot, "the batch that the stage task told is as it was"


def test_names_of_tables_fit_into_every_database_of_airflow() -> None:
    added: list[str] = []

    def add(asset: Any, *, extra: dict[str, Any]) -> None:
        assert set(extra) == {"pgoutput"}
        added.append(asset.uri)

    alias = SimpleNamespace(add=add)
    context: Any = {"outlet_events": {AssetAlias("pgoutput"): alias}}
    facts = RunFacts(received(), "a", {}, 0, targets=("a.b.größe", "a.b.what?", "a.b.it's"))
    tell_assets(context, [AssetAlias("pgoutput")], facts, catalog="lake")
    assert added == [
        "iceberg://lake/a/b/gr%C3%B6%C3%9Fe",
        "iceberg://lake/a/b/it%27s",
        "iceberg://lake/a/b/what%3F",
    ]


@pytest.mark.parametrize(
    ("host", "port", "schema", "expected"),
    [
        ("db.example.com", 6432, "app", "db.example.com:6432/app"),
        ("a,b", None, "app", "a:5432/app"),
        ("/run/postgresql", None, None, "localhost:5432/postgres"),
        (None, None, "my app/x", "localhost:5432/my%20app%2Fx"),
        ("::1", 5432, "app", "[::1]:5432/app"),
        ("bücher.example", 5432, "app", "b%C3%BCcher.example:5432/app"),
    ],
)
def test_a_pipeline_has_a_name_as_an_asset(
    host: str | None, port: int | None, schema: str | None, expected: str
) -> None:
    connection: Any = SimpleNamespace(host=host, port=port, schema=schema, password="secret")
    assert asset_uri(connection, "shop") == f"pgoutput://{expected}/shop"
