"""The asset event of an apply task: its ``extra`` says which batch the lake holds now.

The ``extra`` has at most 2 KB, because Airflow keeps every event in its database. If there is more to tell,
tables are left out, those with the fewest changes first. When five tables are left, the changes of schemas
are left out, then the other tables, the names of tables that are set aside, and at last the warnings about
the slot.
``docs/reference/events.md`` is the schema for users.

Source: https://airflow.apache.org/docs/apache-airflow/stable/authoring-and-scheduling/asset-scheduling.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias

from airflow_provider_pgoutput.batch.xcom import MOST_TABLES, totals
from airflow_provider_pgoutput.hooks.connections import ASSET_SCHEME

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgoutput.tasks.received_batch import ReceivedBatch

SCHEMA_VERSION = 1
#: The key in ``extra``.
KEY = "pgoutput"
#: Name of an asset alias that each apply task has among its outlets. When the task runs, it adds the assets
#: whose names are not known when the DAG file is parsed.
ALIAS = "pgoutput"
MOST_BYTES = 2048
_MOST_TABLES_OF_AN_EVENT = 20
#: More tables than this are left out before the changes of schemas are.
_FEWEST_TABLES = 5
_MOST_SCHEMA_CHANGES = 5
_MOST_SET_ASIDE = 5


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the apply task knows of a run."""

    batch: ReceivedBatch
    namespace: str
    #: Counts of all tables. None: an earlier try applied the batch, and the stage task did not name all.
    tables: Mapping[str, Mapping[str, int]] | None
    #: Number of row changes; None: not known.
    changes: int | None
    staged_bytes: int | None = None
    #: None: an earlier try applied the batch.
    apply_seconds: float | None = None
    #: How many of ``apply_seconds`` it took to make the prepared tables visible; None: not known.
    publish_seconds: float | None = None
    #: Snapshots of the tables of the lake that this try published, by ``namespace.table``.
    snapshots: Mapping[str, int] = field(default_factory=dict)
    #: Tables of the lake that have the batch, as ``namespace.table``. Empty without ``table_assets``.
    targets: tuple[str, ...] = ()
    #: Tables of the source that are set aside, as ``schema.table``.
    set_aside: tuple[str, ...] = ()
    #: Number of tables with rows in the quarantine.
    incomplete: int = 0


def tell_assets(context: Context, outlets: list[Any], facts: RunFacts, *, catalog: str) -> None:
    """Write the facts of a run into the events of the task's assets.

    :param outlets: the task's outlets. Each asset among them gets the facts. To the alias, this adds the
        pipeline's asset, and an asset ``iceberg://catalog/namespace/table`` for each of at most 200 targets.
    :param catalog: name of the lake's catalog.
    """
    extra: dict[str, Any] = {KEY: run_extra(facts)}
    events = context["outlet_events"]
    for outlet in outlets:
        if isinstance(outlet, Asset):
            events[outlet].extra = extra
    uri = facts.batch.xcom.get("asset_uri")
    if not any(isinstance(outlet, AssetAlias) and outlet.name == ALIAS for outlet in outlets):
        return
    alias = events[AssetAlias(ALIAS)]
    if isinstance(uri, str) and uri.startswith(ASSET_SCHEME):
        alias.add(Asset(name=uri, uri=uri), extra=extra)
    for name in sorted(facts.targets)[:MOST_TABLES]:
        # Some databases of Airflow take ASCII only, and a URI ends at a question mark.
        table = f"iceberg://{quote(catalog)}/{quote(name.replace('.', '/'))}"
        alias.add(Asset(name=table, uri=table), extra={KEY: _table_extra(facts, name)})


def run_extra(facts: RunFacts) -> dict[str, Any]:
    """The facts of a run as JSON, in at most ``MOST_BYTES`` bytes."""
    xcom = facts.batch.xcom
    counts = facts.tables if facts.tables is not None else facts.batch.tables or {}
    ordered = sorted(counts.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    shown = {name: _above_zero(each) for name, each in ordered[:_MOST_TABLES_OF_AN_EVENT]}
    unnamed = facts.batch.tables_left_out if facts.tables is None else 0
    body: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "slot_name": facts.batch.slot_name,
        "namespace": facts.namespace,
        "batch_id": facts.batch.batch_id[:16],
        "start_lsn": str(facts.batch.start_lsn),
        "end_lsn": str(facts.batch.end_lsn),
        "complete_until": xcom.get("complete_until"),
        "changes": facts.changes,
        "staged_bytes": facts.staged_bytes,
        "stage_seconds": xcom.get("stage_seconds"),
        "apply_seconds": facts.apply_seconds,
        "publish_seconds": facts.publish_seconds,
        # A copy, because its warnings may be left out.
        "slot": dict(xcom["slot"]) if isinstance(xcom.get("slot"), Mapping) else None,
        "totals": None if facts.tables is None else _above_zero(totals(facts.tables.values())),
        "schema_changes": _schema_changes(xcom.get("schema_changes")),
        "set_aside": len(facts.set_aside) or None,
        "set_aside_tables": sorted(facts.set_aside)[:_MOST_SET_ASIDE] or None,
        "incomplete": facts.incomplete or None,
        "tables": shown,
        "tables_left_out": len(counts) - len(shown) + unnamed,
    }
    body = {name: value for name, value in body.items() if value is not None}
    while len(json.dumps(body).encode()) > MOST_BYTES and _left_something_out(body):
        pass
    return body


def _left_something_out(body: dict[str, Any]) -> bool:
    """Leave out what users miss least; return whether there was anything to leave out."""
    if len(body["tables"]) <= _FEWEST_TABLES and body.pop("schema_changes", None) is not None:
        return True
    if not body["tables"]:
        if body.pop("set_aside_tables", None) is not None:
            return True
        return isinstance(slot := body.get("slot"), dict) and slot.pop("warnings", None) is not None
    body["tables"].popitem()
    body["tables_left_out"] += 1
    return True


def _schema_changes(found: Any) -> dict[str, list[str]] | None:
    """Some schema changes of some tables."""
    if not isinstance(found, Mapping) or not found:
        return None
    return {
        name: list(words)[:_MOST_SCHEMA_CHANGES]
        for name, words in list(found.items())[:_MOST_SCHEMA_CHANGES]
    }


def _table_extra(facts: RunFacts, name: str) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "slot_name": facts.batch.slot_name,
        "end_lsn": str(facts.batch.end_lsn),
    } | ({"snapshot_id": facts.snapshots[name]} if name in facts.snapshots else {})


def _above_zero(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}
