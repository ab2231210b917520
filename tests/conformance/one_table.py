"""One table of a source and what a pipeline makes of it: for tests of changes of its schema.

The rows are read with Spark and with pyiceberg; what became of the fields is read with pyiceberg.
"""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.xcom import batch_xcom
from tests.conformance.compare import quoted
from tests.conformance.pipeline import CATALOG, Batch, Pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_pgoutput.batch.manifest import Manifest


class Lake:
    """One table of a source, and what a pipeline makes of it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def run(self, *statements: str, **options: Any) -> Manifest:
        """Run statements at the source, each by itself, then one batch."""
        if statements:
            self.execute(*statements)
        batch = self.pipeline.stage(**options)
        self.pipeline.apply(batch)
        return batch.manifest

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.pipeline.conninfo, autocommit=True) as session:
            for statement in statements:
                cursor = session.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """Rows of the target, sorted, in these columns; read with Spark, and the same for pyiceberg."""
        spark = self.pipeline.spark.newSession()
        # Names that differ only in case are different columns.
        spark.conf.set("spark.sql.caseSensitive", "true")
        frame = spark.table(quoted(CATALOG, self.pipeline.namespace, "t"))
        names = columns or tuple(frame.columns)
        rows = frame.select(*map(quoted, names)).collect()
        found = sorted(map(_exactly, map(_of_spark, rows)))
        others = sorted(map(_exactly, self.rows_without_spark(*names)))
        assert found == others, f"Spark reads {found}, pyiceberg {others}"
        return sorted((tuple(row) for row in rows), key=repr)

    def rows_without_spark(self, *columns: str) -> list[tuple[Any, ...]]:
        """The same, read with pyiceberg."""
        found = self.table().scan(selected_fields=columns).to_arrow()
        values = [found.column(each).to_pylist() for each in columns]
        return sorted(zip(*values, strict=True), key=repr)

    def source_rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """Rows of the source, sorted, in these columns."""
        with psycopg.connect(self.pipeline.conninfo) as session:
            names = sql.SQL(", ").join(sql.Identifier(each) for each in columns)
            rows = session.execute(sql.SQL("SELECT {} FROM t").format(names)).fetchall()
        return sorted(rows, key=repr)

    def agrees(self, *columns: str) -> bool:
        """Whether the target has, in all columns of the source, what the source has."""
        names = columns or tuple(
            name
            for (name,) in self.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0"
                " AND NOT attisdropped ORDER BY attnum"
            )
        )
        assert self.rows(*names) == self.source_rows(*names)
        return True

    def differs(self, *columns: str) -> bool:
        """Whether the target has something else in these columns than the source."""
        return self.rows(*columns) != self.source_rows(*columns)

    def forget_numbers(self) -> None:
        """Take from the target what the version before did not know."""
        name = quoted(CATALOG, self.pipeline.namespace, "t")
        self.pipeline.spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('pgoutput.columns')")

    def fields(self) -> dict[str, int]:
        """Names and ids of the target's fields."""
        return {each.name: each.field_id for each in self.table().schema().fields}

    def data_files(self) -> set[str]:
        """Where the target's files of rows are."""
        return {each.file.file_path for each in self.table().scan().plan_files()}

    def table(self, name: str = "t") -> Any:
        catalog = load_catalog(CATALOG, **self.pipeline.catalog_properties)
        return catalog.load_table((self.pipeline.namespace, name))

    def said(self, manifest: Manifest) -> list[str]:
        """What changed of the schema, as it is said in XCom."""
        return batch_xcom(manifest, "uri").get("schema_changes", {}).get("public.t", [])


def begun(pipeline: Pipeline) -> Lake:
    """A table of three rows, which the first batch has copied."""
    lake = Lake(pipeline)
    lake.execute(
        "CREATE TABLE t(id int PRIMARY KEY, a int, b int)",
        "CREATE PUBLICATION p FOR TABLE t",
        "INSERT INTO t SELECT g, g * 10, g * 100 FROM generate_series(1, 3) g",
    )
    lake.run()
    return lake


def _of_spark(value: Any) -> Any:
    """A value of Spark as pyiceberg gives it: pairs for a map, and only the values of a struct."""
    if isinstance(value, dict):
        return [(key, _of_spark(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [_of_spark(each) for each in value]
    return bytes(value) if isinstance(value, bytearray) else value


def _exactly(value: Any) -> str:
    """A text that two values of the lake share when they are the same to the bit, whoever read them."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    if isinstance(value, datetime) and value.tzinfo is not None:
        # As Spark gives it: without a zone, in that of the process.
        return repr(value.astimezone().replace(tzinfo=None))
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list) and all(isinstance(each, tuple) for each in value):
        # The pairs of a map, which each reader has in an order of its own.
        value = sorted(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_exactly, value))})"
    return repr(value)


def as_before(batch: Batch, staging: Path) -> Batch:
    """A sealed batch as the version before column numbers would have sealed it."""
    tables = tuple(
        dataclasses.replace(
            table,
            schema_changes=(),
            records_columns=False,
            versions=tuple(
                dataclasses.replace(
                    version,
                    columns=tuple(
                        dataclasses.replace(column, attribute_number=None)
                        for column in version.columns
                    ),
                )
                for version in table.versions
            ),
        )
        for table in batch.manifest.tables
    )
    manifest = dataclasses.replace(batch.manifest, tables=tables)
    body = json.loads(manifest.to_json())
    for table in body["tables"]:
        del table["schema_changes"], table["records_columns"]
        for version in table["versions"]:
            for column in version["columns"]:
                del column["attribute_number"]
    path = staging / layout.manifest_path(
        manifest.slot_name, manifest.start_lsn, manifest.end_lsn, manifest.batch_id
    )
    path.write_text(json.dumps(body), encoding="ascii")
    return Batch(manifest, path.as_uri())
