"""Stage the WAL of a group in other ways than its pipeline does: what is staged has to be the same.

Each way reads a copy of the pipeline's slot, made before the DML. What is not here: the comparison.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.capture.checkpoint import Checkpoint
from airflow_provider_pgoutput.capture.source.plugin_options import StreamOptions
from tests.capture.pipeline_support import Source
from tests.conformance.compare import connect

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.pipeline import Batch, Pipeline
    from tests.conformance.scenario import Group, Scenario

WALSENDER = "walsender"
VERSION_1 = "version_1"
STREAMING_OFF = "streaming_off"
TEXT = "text"
EACH_TRANSACTION = "each_transaction"


def ways_of(group: Group) -> dict[str, dict[str, Any]]:
    """Options over those of the group's pipeline, by the name of the way."""
    if group.applies_each_transaction:
        return {}
    options = group.options
    ways: dict[str, dict[str, Any]] = {
        WALSENDER: {"transport": "walsender"},
        EACH_TRANSACTION: {"max_changes": 1},
        VERSION_1: {"options": StreamOptions(proto_version=1, binary=options.binary)},
    }
    if options.two_phase:
        ways[STREAMING_OFF] = {"options": dataclasses.replace(options, streaming="off")}
    if options.binary:
        ways[TEXT] = {"options": StreamOptions()}
    return ways


def copy_slots(pipeline: Pipeline, group: Group) -> None:
    """Make a slot for each way where the pipeline's slot is now."""
    with connect(pipeline.conninfo) as session:
        for way in ways_of(group):
            session.execute(
                "SELECT pg_copy_logical_replication_slot(%s, %s)",
                (pipeline.slot_name, _slot_of(pipeline, way)),
            )


def stage_other_ways(pipeline: Pipeline, group: Group, folder: Path) -> dict[str, list[Batch]]:
    """Stage in every way up to the end of the WAL, and drop the copies of the slot."""
    target = pipeline.flush_lsn()
    checkpoint = pipeline.checkpoint()
    staged = {}
    for way, options in ways_of(group).items():
        position, batches = checkpoint, []
        while not batches or batches[-1].manifest.end_lsn < target:
            named = {
                "slot_name": _slot_of(pipeline, way),
                "staging_uri": (folder / way).as_uri(),
                "checkpoint": position,
            }
            batches.append(pipeline.stage(**{**named, **options}))
            manifest = batches[-1].manifest
            position = Checkpoint(manifest.end_lsn, manifest.system_identifier)
        staged[way] = batches
        with connect(pipeline.conninfo) as session:
            session.execute("SELECT pg_drop_replication_slot(%s)", (_slot_of(pipeline, way),))
    return staged


def staged_rows(
    scenario: Scenario, batches: list[Batch], folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """All staged changes of a scenario's tables, in the order of the stream, without what is NULL."""
    found: dict[str, list[dict[str, Any]]] = {}
    source = Source("", "", folder)
    for batch in batches:
        for table in batch.manifest.tables:
            if table.schema_name == scenario.schema_of_tables:
                found.setdefault(table.table_name, []).extend(
                    {name: value for name, value in row.items() if value is not None}
                    for row in source.changes(batch.manifest, table.name)
                )
    return found


def _slot_of(pipeline: Pipeline, way: str) -> str:
    return f"{pipeline.slot_name}_{way}"
