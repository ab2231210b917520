"""What a pipeline leaves in the lake and in the staging area, as the tests of the command line write it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch import checkpoint as words
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest, Table
from airflow_provider_pgoutput.batch.table_version import Counts, StagedFile, TableVersion
from tests.airflow.command_line import run

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg
    import pytest
    from pyiceberg.table import Table as IcebergTable

    from tests.airflow.conftest import TestLake

    Session = psycopg.Connection[tuple[Any, ...]]

TARGET = "shop.public__t"
ROWS = pa.table({"id": pa.array([1, 2], pa.int32())})


def position(session: Session) -> Lsn:
    row = session.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def write(session: Session) -> Lsn:
    """Write something to the WAL and return the position after it."""
    session.execute("SELECT pg_logical_emit_message(true, 'test', 'x')")
    return position(session)


def published(
    lake: TestLake, slot: str, start: Lsn, end: Lsn, target: str = TARGET
) -> IcebergTable:
    """Write to a table what the publish of a batch leaves there."""
    catalog = load_catalog(lake.catalog_name, **lake.properties)
    properties = {
        words.PROPERTY_SLOT: slot,
        words.PROPERTY_SOURCE_TABLE: "public.t",
        words.PROPERTY_RELATION_OID: "77",
        words.PROPERTY_SYSTEM_IDENTIFIER: lake.system_identifier,
    }
    table = catalog.create_table_if_not_exists(target, ROWS.schema, properties=properties)
    batch_id = end.sortable * 4
    marker = {
        words.SUMMARY_SLOT: slot,
        words.SUMMARY_SYSTEM_IDENTIFIER: lake.system_identifier,
        words.SUMMARY_TIMELINE: "1",
        words.SUMMARY_BATCH_ID: batch_id,
        words.SUMMARY_START_LSN: str(start),
        words.SUMMARY_END_LSN: str(end),
    }
    table.append(ROWS, snapshot_properties=marker)
    applied = f"{lake.system_identifier} {batch_id} {end}"
    with table.transaction() as change:
        change.set_properties({words.PROPERTY_APPLIED + slot: applied})
    return table


def drop_checkpoint(lake: TestLake) -> None:
    catalog = load_catalog(lake.catalog_name, **lake.properties)
    catalog.drop_table(f"shop.{words.CHECKPOINT_TABLE}")


def manifest(
    lake: TestLake, slot: str, start: Lsn, end: Lsn, *, changes: int = 0, path: str = ""
) -> Manifest:
    version = TableVersion(1, "public", "t", "d", (), ())
    if path:
        file = StagedFile("changes", path, 1, 5, "0" * 64, ())
        version = dataclasses.replace(version, files=(file,))
    table = Table(77, "public", "t", (version,), Counts(inserts=changes))
    tables = (table,) if changes else ()
    return Manifest(slot, lake.system_identifier, 1, "db", ("p",), start, end, tables)


def seal(staging: Path, sealed: Manifest) -> None:
    folder = staging / sealed.slot_name / "manifests"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{sealed.start_lsn.sortable}-{sealed.end_lsn.sortable}-{sealed.batch_id[:16]}.json"
    (folder / name).write_text(sealed.to_json())


def doctor(
    capsys: pytest.CaptureFixture[str], slot: str, *arguments: str
) -> tuple[int, list[dict[str, str]]]:
    return run(capsys, "doctor", "--slot-name", slot, "--namespace", "shop", *arguments)
