"""Random sessions with changes of shape, from the source into the lake: it then holds what the source does.

The statements are those of ``tests/capture/random_sessions.py``: rows and ALTER TABLE in open, rolled
back and prepared transactions. Where the stream does not tell what the source holds, the table is
copied, so that nothing is left open; ``tests/capture/torture.py`` judges what is staged when nothing is
copied. Every table is read with Spark and with pyiceberg. Of the table that changes, every column of the
source must have the Iceberg type of its own and the field that it had before, under whatever name, and the
history in the checkpoint must lead from the first columns to the source's, change by change.
``PGOUTPUT_SCHEMA_SEEDS=3,8`` runs these seeds.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch import shape
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from tests.capture.random_sessions import RandomSessions
from tests.conformance.many_tables import Tables
from tests.conformance.pipeline import CATALOG
from tests.faults.workload import LOG_TABLE, SETUP, UPSERT_TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.batch.manifest import Table
    from tests.conformance.pipeline import Batch, Pipeline


#: ``make torture LAKE=1 SEED=1 RUNS=100`` does more.
SEEDS = [int(seed) for seed in os.environ.get("PGOUTPUT_SCHEMA_SEEDS", "1").split(",")]
_ROUNDS, _STEPS = 4, 60
#: The server tells of a shape when the next row of the table changes.
_TABLE = "account"
#: Columns that the sessions find, so that what they rename, retype and drop was in batches before.
_OLDER = "ALTER TABLE account ADD x1 int DEFAULT 1, ADD x2 text, ADD x3 numeric(8,2), ADD x4 int"
_ANNOUNCED = ("INSERT INTO account(id) VALUES (0)", "DELETE FROM account WHERE id = 0")


#: The types that the sessions give to columns.
_LAKE_TYPES = {
    "integer": "int",
    "bigint": "long",
    "text": "string",
    "numeric(8,2)": "decimal(8, 2)",
    "numeric(12,2)": "decimal(12, 2)",
}
_PROMOTED = {("integer", "bigint"), ("numeric(8,2)", "numeric(12,2)")}
#: Name and type of a column of the source, by ``attnum``.
Columns = dict[int, tuple[str, str]]


@pytest.mark.further
@pytest.mark.parametrize("seed", SEEDS)
def test_random_changes_of_shape_reach_the_lake(pipeline: Pipeline, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test has to repeat itself
    pipeline.capture_options.update(
        schema_policy=SchemaPolicy("copy", "copy", "copy"),
        options=StreamOptions(binary=chance.random() < 0.5),
        transport=chance.choice(("sql", "walsender")),
    )
    pipeline.plan_options.update(
        format_version=chance.choice((2, 3)),
        write_mode=chance.choice(("merge-on-read", "copy-on-write")),
        drop_columns=chance.random() < 0.5,
    )
    tables = Tables(pipeline, logs=(f"public.{LOG_TABLE}",))
    tables.run(*SETUP, _OLDER)
    fields = _Fields(pipeline, tables)
    with RandomSessions(pipeline.conninfo, seed) as sessions:
        for _ in range(_ROUNDS):
            sessions.run(_STEPS)
            tables.execute(*fields.rename(chance), *_ANNOUNCED)
            limits = {"max_changes": chance.choice((1, 20, None))}
            tables.batches += pipeline.drain(pipeline.flush_lsn(), **limits)
            if chance.random() < 0.5:
                pipeline.advance()
            tables.assert_equal(*UPSERT_TABLES, LOG_TABLE, key="id")
            fields.assert_followed()
    _assert_history(pipeline, tables.batches, _source_columns(tables))
    print(f"seed {seed}: {sessions.done}, {len(tables.batches)} batches, {fields.kept} fields kept")
    assert sessions.done.keys() & {"add", "drop", "rename", "retype"}, "nothing changed its shape"
    assert fields.kept > 0, "no column of a batch before was renamed"


class _Fields:
    """The fields of the table that changes, as they were when they were looked at last."""

    def __init__(self, pipeline: Pipeline, tables: Tables) -> None:
        self._pipeline, self._tables = pipeline, tables
        self._columns = _source_columns(tables)
        self._ids = self._ids_of(self._columns)
        self._numbers = itertools.count(1)
        #: Columns that had another name or another type of the same field since.
        self.kept = 0

    def rename(self, chance: random.Random) -> list[str]:
        """A statement that renames a column of the batch before, if the sessions left one."""
        now = _source_columns(self._tables)
        older = [now[number][0] for number in now if number in self._columns and number > 4]
        fresh = f"y{next(self._numbers)}"
        return [f"ALTER TABLE {_TABLE} RENAME {chance.choice(older)} TO {fresh}"] if older else []

    def assert_followed(self) -> None:
        """Every column has its type, and the field that it had; a new one has a new field."""
        columns = _source_columns(self._tables)
        ids = self._ids_of(columns)
        for number, (name, kind) in columns.items():
            if number not in self._ids:
                assert ids[number] not in self._ids.values(), f"{name} has a former field"
                continue
            _, former = self._columns[number]
            if kind == former or (former, kind) in _PROMOTED:
                assert ids[number] == self._ids[number], f"{name} has another field"
                self.kept += self._columns[number] != columns[number]
        self._columns, self._ids = columns, ids

    def _ids_of(self, columns: Columns) -> dict[int, int]:
        catalog = load_catalog(CATALOG, **self._pipeline.catalog_properties)
        schema = catalog.load_table((self._pipeline.namespace, _TABLE)).schema()
        fields = {each.name: each for each in schema.fields}
        found = {name: str(fields[name].field_type) for name, _ in columns.values()}
        assert found == {name: _LAKE_TYPES[kind] for name, kind in columns.values()}
        return {number: fields[name].field_id for number, (name, _) in columns.items()}


def _source_columns(tables: Tables) -> Columns:
    rows = tables.execute(
        "SELECT attnum, attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        f" WHERE attrelid = '{_TABLE}'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    return {number: (name, kind) for number, name, kind in rows}


def _assert_history(pipeline: Pipeline, batches: Sequence[Batch], wanted: Columns) -> None:
    """The changes of all batches lead to the source's columns, and the checkpoint has them all."""
    name = f"public.{_TABLE}"
    held = {
        batch.manifest.end_lsn.sortable: table
        for batch in batches
        for table in batch.manifest.tables
        if table.name == name
    }
    catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
    rows = catalog.load_table((pipeline.namespace, "pgoutput_checkpoint")).scan().to_arrow()
    of_table = [row for row in rows.to_pylist() if row["table_name"] == name]
    of_table.sort(key=lambda row: row["end_lsn"])
    assert [row["end_lsn"] for row in of_table] == sorted(held)
    for row in of_table:
        changes = [str(each) for each in held[row["end_lsn"]].schema_changes]
        assert json.loads(row["schema_changes"] or "[]") == changes
    newest = [row["columns"] for row in of_table if row["columns"]][-1]
    columns = json.loads(newest)["columns"]
    assert {number: (label, kind) for number, label, kind, _ in columns} == wanted
    assert _replayed([held[row["end_lsn"]] for row in of_table]) == wanted


def _replayed(tables: Sequence[Table]) -> Columns:
    """The first table's columns after the changes of the others."""
    first, *others = tables
    found: dict[int | str, tuple[str, str]] = {
        each.attribute_number or each.name: (each.name, each.type_name)
        for each in first.versions[-1].columns
    }
    for change in (each for table in others for each in table.schema_changes):
        number = change.attribute_number or change.column
        if change.kind == shape.ADDED:
            assert number not in found
            found[number] = (change.column, change.after)
        elif change.kind == shape.DROPPED:
            assert found.pop(number)[0] == change.column
        elif change.kind == shape.RENAMED:
            name, kind = found[number]
            assert name == change.before
            found[number] = (change.after, kind)
        elif change.kind == shape.RETYPED:
            name, kind = found[number]
            assert kind == change.before
            found[number] = (name, change.after)
        else:
            pytest.fail(f"nobody did this: {change}")
    return {int(number): column for number, column in found.items()}
