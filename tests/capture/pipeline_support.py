"""What the tests of the capture pipeline share: run a batch, and read what it staged."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from pyarrow import parquet

from airflow_provider_pgoutput.batch.shape import Shape
from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import AFTER_STAGE, CaptureRequest
from airflow_provider_pgoutput.capture.schema.history import SchemaHistory
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.capture.stream.options import PluginOptions
from airflow_provider_pgoutput.capture.stream.transport import SlotRead
from airflow_provider_pgoutput.crash_points import VARIABLE
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
from tests import setting
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.source.attributes import Attribute
    from airflow_provider_pgoutput.capture.source.catalog import Server

#: A program that stages one batch; its request comes as JSON on standard input.
PROGRAM = """
import json, sys
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
body = json.load(sys.stdin)
body["options"] = StreamOptions(**body["options"])
body["schema_policy"] = SchemaPolicy(**body["schema_policy"])
if body["checkpoint"]:
    body["checkpoint"] = Checkpoint(Lsn.parse(body["checkpoint"][0]), body["checkpoint"][1])
stage_batch(CaptureRequest(**body))
# Of this program alone: what getrusage says begins with the size of the process that it was made from.
(peak,) = (each for each in open("/proc/self/status") if each.startswith("VmHWM"))
print(peak.split()[1])
"""


@dataclasses.dataclass(frozen=True)
class Source:
    """A database, a slot name of its own and a staging area."""

    #: Of a superuser, who changes what is to be captured; the pipeline is ``reader``.
    conninfo: str
    slot_name: str
    staging: Path

    @property
    def reader(self) -> str:
        """What the pipeline connects with."""
        return reader_conninfo(self.conninfo)

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each in a transaction of its own; the rows of the last one."""
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            for statement in statements:
                cursor = session.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def server(self) -> Server:
        """The server as it is now."""
        with sessions.connect(self.reader) as session:
            return read_server(session, self.reader)

    def make_slot(self, plugin: str = "pgoutput") -> None:
        self.execute(f"SELECT pg_create_logical_replication_slot('{self.slot_name}', '{plugin}')")

    def drop_slot(self, slot_name: str) -> None:
        """Drop a slot once its last reader is gone. The server may notice that a moment later."""
        deadline = time.monotonic() + 30
        while True:
            try:
                self.execute(f"SELECT pg_drop_replication_slot('{slot_name}')")
                return
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def wait_until_free(self) -> None:
        """Until the server has noticed that the last reader is gone, as a retry does by its delay."""
        deadline = time.monotonic() + 30
        while self.execute(
            f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{self.slot_name}' AND active"
        ):
            assert time.monotonic() < deadline, "the slot of a reader that is gone stays busy"
            time.sleep(0.05)

    def confirmed(self) -> str | None:
        rows = self.execute(
            f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{self.slot_name}'"
        )
        return rows[0][0] if rows else None

    def is_left_at(self, start: Lsn, sealed: Manifest) -> bool:
        """Whether the slot is where a run has to leave it: where it was, or at the end of what it sealed."""
        moves = setting.advance == AFTER_STAGE
        return self.confirmed() == str(sealed.end_lsn if moves else start)

    def request(self, **options: Any) -> CaptureRequest:
        return CaptureRequest(
            **{
                "conninfo": self.reader,
                "slot_name": self.slot_name,
                "publication_names": ("p",),
                "staging_uri": str(self.staging),
                "advance": setting.advance,
                **options,
            }
        )

    def read(self, start: Lsn, target: Lsn, **options: Any) -> SlotRead:
        """A read of the slot; ``conninfo`` and ``slot_name`` among the options win over ours."""
        named: dict[str, Any] = {"conninfo": self.reader, "slot_name": self.slot_name}
        for name in named.keys() & options.keys():
            named[name] = options.pop(name)
        return SlotRead(
            **named, options=PluginOptions(("p",), **options), start=start, target=target
        )

    def stage(self, **options: Any) -> Manifest:
        manifest, uri, *_ = stage_batch(self.request(**options))
        assert uri.endswith(".json")
        return manifest

    def stage_in_process(self, crash_at: str | None = None, **options: Any) -> int:
        """Stage in another process; its exit status."""
        return self._in_process(crash_at, options).returncode

    def stage_measured(self, **options: Any) -> int:
        """Stage in another process; the most memory that it had, in KiB."""
        done = self._in_process(None, options)
        assert done.returncode == 0, done.stderr[-2000:]
        return int(done.stdout.split()[-1])

    def _in_process(
        self, crash_at: str | None, options: dict[str, Any]
    ) -> subprocess.CompletedProcess[str]:
        body = process_body(self.request(**options))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input=json.dumps(body),
            env={**os.environ, **({VARIABLE: crash_at} if crash_at else {})},
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode in {0, -9}, done.stderr[-2000:]
        self.wait_until_free()
        return done

    def manifests(self) -> list[str]:
        return sorted(each.name for each in (self.staging / self.slot_name / "manifests").glob("*"))

    def changes(self, manifest: Manifest, name: str) -> list[dict[str, Any]]:
        """All staged changes of a table, in stream order, columns by their source names."""
        rows = [row for table in self._tables(manifest, name, "changes") for row in table]
        return sorted(rows, key=lambda row: (row["commit_lsn"], row["seq"]))

    def copied(self, manifest: Manifest, name: str) -> list[dict[str, Any]]:
        return [row for table in self._tables(manifest, name, "copy") for row in table]

    def messages(self, manifest: Manifest) -> list[dict[str, Any]]:
        """All staged logical messages, in stream order."""
        tables = [parquet.read_table(self.staging / each.path) for each in manifest.message_files]
        return [row for table in tables for row in table.to_pylist()]

    def _tables(self, manifest: Manifest, name: str, kind: str) -> list[list[dict[str, Any]]]:
        (table,) = [each for each in manifest.tables if each.name == name]
        found = []
        for version in table.versions:
            names = {f"n{place}": each.name for place, each in enumerate(version.columns)}
            for file in version.files:
                if file.kind == kind:
                    rows = parquet.read_table(self.staging / file.path)
                    assert rows.num_rows == file.rows
                    assert tuple(rows.schema.names) == file.columns
                    found.append(_renamed(rows, names).to_pylist())
        return found


def process_body(request: CaptureRequest) -> dict[str, Any]:
    """What ``PROGRAM`` reads."""
    checkpoint = request.checkpoint
    return {
        **{each.name: getattr(request, each.name) for each in dataclasses.fields(CaptureRequest)},
        "options": dataclasses.asdict(request.options),
        "schema_policy": dataclasses.asdict(request.schema_policy),
        "checkpoint": checkpoint and [str(checkpoint.end_lsn), checkpoint.system_identifier],
    }


def _renamed(rows: pa.Table, names: dict[str, str]) -> pa.Table:
    return rows.rename_columns([names.get(each, each) for each in rows.schema.names])


def history_of(
    *columns: Attribute, policy: SchemaPolicy | None = None, before: Shape | None = None
) -> SchemaHistory:
    """What is known of the table with OID 1; without columns it is gone.

    :param before: its columns at the end of the last batch; None: no batch held it yet.
    """
    return SchemaHistory(
        policy=policy or SchemaPolicy(),
        before={} if before is None else {1: before},
        attributes={1: columns} if columns else {},
        published={},
        type_name=lambda _oid, _modifier: "integer",
        showing=lambda _table, column, text: dataclasses.replace(column, missing_value=text),
        constant_default=lambda _oid, _number: None,
    )


def checkpoint_of(manifest: Manifest) -> Checkpoint:
    """The checkpoint that the lake would have once this batch is applied."""
    return Checkpoint(manifest.end_lsn, manifest.system_identifier)


def checkpoint_with_shapes(manifest: Manifest) -> Checkpoint:
    """The same, with the columns of the batch's tables, as the lake keeps them."""
    shapes = {each.relation_oid: Shape.from_json(each.shape.to_json()) for each in manifest.tables}
    return dataclasses.replace(
        checkpoint_of(manifest),
        tables={each.relation_oid: each.name for each in manifest.tables},
        shapes={oid: shape for oid, shape in shapes.items() if shape is not None},
    )
