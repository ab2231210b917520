"""A PostgreSQL in miniature for the tests of apply: it runs row changes, and stages what pgoutput sends.

``Source`` holds tables and gives commit LSNs; each change emits what a real server sends for the table's
replica identity (old keys, old rows, unchanged TOAST). ``Source.stage`` writes a batch as capture does.
The tables' own rows are what the lake must hold afterwards.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_pgoutput.apply.rows.staged_files import StagedBatch, open_batch
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.jobs import ApplyJob, ReplayJob, WriteJob
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest, Table
from airflow_provider_pgoutput.batch.table_version import Column, Counts, StagedFile, TableVersion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

_ARROW = {
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "float": pa.float32(),
    "string": pa.string(),
    "uuid": pa.string(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "list<string>": pa.list_(pa.string()),
    "map<string, string>": pa.map_(pa.string(), pa.string()),
    "decimal(12, 2)": pa.decimal128(12, 2),
    "decimal(14, 2)": pa.decimal128(14, 2),
}
#: Where the stream of every test begins, past the first 4 GiB as on any real server.
FIRST_LSN = 0x1_0000_1000
COMMIT_TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
COMPLETE_UNTIL = datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC)

Row = dict[str, Any]


@dataclass
class Change:
    """One row message of the stream."""

    version: TableVersion
    op: str
    new: Row | None = None
    old: Row | None = None
    old_kind: str | None = None
    unchanged: frozenset[str] = frozenset()


@dataclass
class Relation:
    """A table of the source.

    :param toast: columns whose values are stored out of line, so that an update leaves them out.
    """

    source: Source
    name: str
    oid: int
    versions: list[TableVersion]
    toast: frozenset[str]
    schema_name: str = "public"
    rows: list[Row] = field(default_factory=list)
    #: Read-only tables publish inserts only.
    publishes: str = "IUDT"

    @property
    def version(self) -> TableVersion:
        return self.versions[-1]

    @property
    def full_name(self) -> str:
        return f"{self.schema_name}.{self.name}"

    def insert(self, *values: Any) -> None:
        row = dict(zip((each.name for each in self.version.columns), values, strict=True))
        self.rows.append(row)
        self._emit(Change(self.version, "I", new=dict(row)))

    def update(self, where: Any, changes: Any) -> None:
        """Update the first row that ``where`` picks; ``changes`` is a dict or makes one of the row."""
        row = next(each for each in self.rows if where(each))
        old = dict(row)
        row.update(changes(row) if callable(changes) else changes)
        left_out = frozenset(
            name for name in self.toast if old[name] is not None and row[name] == old[name]
        )
        kind, old_tuple = self._old_tuple(old, row)
        new = {name: None if name in left_out else row[name] for name in row}
        self._emit(Change(self.version, "U", new, old_tuple, kind, left_out))

    def update_all(self, changes: Any) -> None:
        for row in list(self.rows):
            self.update(lambda each, row=row: each is row, changes)

    def delete(self, where: Any) -> None:
        row = next(each for each in self.rows if where(each))
        self.rows = [each for each in self.rows if each is not row]
        kind = "O" if self.version.replica_identity == "f" else "K"
        self._emit(Change(self.version, "D", old=self._image(row, kind), old_kind=kind))

    def truncate(self) -> None:
        self.rows = []
        self._emit(Change(self.version, "T"))

    def alter(
        self,
        columns: tuple[Column, ...] | None = None,
        key: tuple[str, ...] | None = None,
        identity: str | None = None,
    ) -> None:
        """Begin a new version; rows get the new columns' missing values."""
        version = replace(
            self.version,
            version=len(self.versions),
            columns=columns or self.version.columns,
            key_columns=self.version.key_columns if key is None else key,
            replica_identity=identity or self.version.replica_identity,
            files=(),
        )
        self.versions.append(version)
        names = {each.name: each for each in version.columns}
        self.rows = [
            {name: row.get(name, _missing(column)) for name, column in names.items()}
            for row in self.rows
        ]

    def _old_tuple(self, old: Row, new: Row) -> tuple[str | None, Row | None]:
        key = self.version.key_columns
        if self.version.replica_identity == "f":
            return "O", old
        if any(old[name] != new[name] for name in key) or self.toast & set(key):
            return "K", self._image(old, "K")
        return None, None

    def _image(self, row: Row, kind: str) -> Row:
        kept = self.version.key_columns if kind == "K" else tuple(row)
        return {name: row[name] for name in kept}

    def _emit(self, change: Change) -> None:
        if change.op in self.publishes:
            self.source.emit(self, change)


def _missing(column: Column) -> Any:
    text = column.missing_value
    if text is None or column.lake_type == "string":
        return text
    return {"boolean": lambda t: t == "t"}.get(column.lake_type, int)(text)


def column(name: str, lake_type: str = "int", missing: str | None = None) -> Column:
    return Column(name, 25, -1, lake_type, lake_type, missing_value=missing)


def numbered(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """The columns of a table with their ``attnum``, as capture finds it out."""
    return tuple(replace(each, attribute_number=i) for i, each in enumerate(columns, start=1))


class Source:
    """A database with one slot. Every change outside ``transaction`` is one of its own."""

    def __init__(self, staging: Path, slot_name: str, system_identifier: str = "7301") -> None:
        self.staging = staging
        self.slot_name = slot_name
        self.system_identifier = system_identifier
        self.relations: dict[str, Relation] = {}
        #: Commit LSN and changes of each transaction that was not staged yet.
        self.pending: list[tuple[int, list[tuple[Relation, Change]]]] = []
        self.lsn = FIRST_LSN
        self.staged_to = FIRST_LSN
        self._open: list[tuple[Relation, Change]] | None = None
        self._copies: dict[str, tuple[int, list[Row]]] = {}
        self._attempts = 0
        #: LSN, commit LSN and content of all logical messages.
        self.messages: list[tuple[int, int | None, bytes]] = []

    def table(
        self,
        name: str,
        columns: tuple[Column, ...],
        key: tuple[str, ...] = (),
        identity: str = "d",
        toast: tuple[str, ...] = (),
        oid: int | None = None,
        schema_name: str = "public",
    ) -> Relation:
        oid = oid or 16384 + len(self.relations)
        version = TableVersion(0, schema_name, name, identity, columns, key)
        relation = Relation(self, name, oid, [version], frozenset(toast), schema_name)
        self.relations[relation.full_name] = relation
        return relation

    def emit(self, relation: Relation, change: Change) -> None:
        if self._open is None:
            with self.transaction():
                self.emit(relation, change)
        else:
            self._open.append((relation, change))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._open = []
        yield
        self.lsn += 0x100
        self.pending.append((self.lsn, self._open))
        self.lsn += 0x30
        self._open = None

    def message(self, content: bytes, *, transactional: bool) -> None:
        """Emit a logical message, in a transaction of its own or in none."""
        self.lsn += 0x40
        lsn, commit_lsn = self.lsn, None
        if transactional:
            commit_lsn = self.lsn
            self.lsn += 0x30
        self.messages.append((lsn, commit_lsn, content))

    def copy(self, relation: Relation) -> None:
        """Let the next batch hold a copy of the table as it is now."""
        self._copies[relation.full_name] = (self.lsn, [dict(row) for row in relation.rows])

    def stage(self, transactions: int | None = None, end: int | None = None) -> ApplyJob:
        """Stage a batch: the next ``transactions`` (default: all) or all before LSN ``end``."""
        taken = self.pending[:transactions]
        if end is not None:
            taken = [each for each in self.pending if each[0] < end]
        self.pending = self.pending[len(taken) :]
        end = end or (taken[-1][0] + 0x30 if self.pending and taken else self.lsn)
        manifest = self._manifest(taken, Lsn(self.staged_to), Lsn(end))
        self.staged_to = end
        self._copies = {}
        return self.write(manifest)

    def write(self, manifest: Manifest) -> ApplyJob:
        uri = manifest.uri(self.staging.as_uri())
        file = self.staging / uri.removeprefix(f"{self.staging.as_uri()}/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(manifest.to_json())
        return ApplyJob(
            manifest_uri=uri,
            staging_uri=self.staging.as_uri(),
            catalog_name="lake",
            namespace=self.slot_name,
            run_id="run",
            dag_id="dag",
        )

    def _manifest(self, taken: list[Any], start: Lsn, end: Lsn) -> Manifest:
        self._attempts += 1
        root = layout.attempt_folder(self.slot_name, start, f"a{self._attempts}")
        found = []
        for relation in self.relations.values():
            rows = [
                (lsn, seq, change)
                for lsn, changes in taken
                for seq, (owner, change) in enumerate(changes)
                if owner is relation
            ]
            copy = self._copies.get(relation.full_name)
            if rows or copy:
                found.append(self._stage_table(relation, rows, copy, root))
        return Manifest(
            self.slot_name, self.system_identifier, 1, "db", ("p",), start, end, tuple(found),
            transactions=len(taken), last_commit_time=COMMIT_TIME.isoformat() if taken else None,
            complete_until=COMPLETE_UNTIL.isoformat(),
            message_files=self._stage_messages(start, end, root),
        )  # fmt: skip

    def _stage_messages(self, start: Lsn, end: Lsn, root: str) -> tuple[StagedFile, ...]:
        """The messages of a range, in a file when there are any."""
        rows = [
            {
                staged.LSN: lsn,
                staged.COMMIT_LSN: commit_lsn,
                "transactional": commit_lsn is not None,
                staged.PREFIX: "app",
                "content": content,
            }
            for lsn, commit_lsn, content in self.messages
            if (start < lsn <= end if commit_lsn is None else start <= commit_lsn < end)
        ]
        if not rows:
            return ()
        schema = pa.schema([(name, _ARROW[kind]) for name, kind in staged.MESSAGES])
        path = f"{root}/messages/{layout.file_name('messages', 0)}"
        return (self._write_file(path, "messages", pa.Table.from_pylist(rows, schema)),)

    def _stage_table(self, relation: Relation, rows: Any, copy: Any, root: str) -> Table:
        counts, versions = Counts(), []
        for version in relation.versions:
            files = []
            folder = layout.table_folder(root, relation.oid, version.version)
            mine = [each for each in rows if each[2].version.version == version.version]
            if mine:
                path = f"{folder}/{layout.file_name('changes', 0)}"
                files.append(self._write_file(path, "changes", _changes_table(version, mine)))
            if copy and version is relation.version:
                columns = {
                    staged.new(i): pa.array([row[c.name] for row in copy[1]], _ARROW[c.lake_type])
                    for i, c in enumerate(version.columns)
                }
                path = f"{folder}/{layout.file_name('copy', 0)}"
                files.append(self._write_file(path, "copy", pa.table(columns)))
            if files:
                versions.append(replace(version, files=tuple(files)))
            counts += _count([change for _, _, change in mine])
        if copy:
            counts += Counts(copied=len(copy[1]))
        lsn = str(Lsn(copy[0])) if copy else None
        return Table(
            relation.oid, relation.schema_name, relation.name, tuple(versions), counts, lsn
        )

    def _write_file(self, path: str, kind: str, table: pa.Table) -> StagedFile:
        file = self.staging / path
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, file, compression="zstd")
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        names = tuple(table.column_names)
        return StagedFile(kind, path, table.num_rows, len(content), digest, names)


def _count(changes: list[Change]) -> Counts:
    ops = [change.op for change in changes]
    return Counts(
        inserts=ops.count("I"),
        updates=ops.count("U"),
        deletes=ops.count("D"),
        truncates=ops.count("T"),
        old_tuples=sum(change.op == "U" and change.old is not None for change in changes),
        unchanged_toast=sum(len(change.unchanged) for change in changes),
    )


def _changes_table(version: TableVersion, rows: list[tuple[int, int, Change]]) -> pa.Table:
    changes = [change for _, _, change in rows]
    columns: dict[str, pa.Array] = {
        staged.COMMIT_LSN: pa.array([lsn for lsn, _, _ in rows], pa.int64()),
        staged.SEQ: pa.array([seq for _, seq, _ in rows], pa.int64()),
        staged.OP: pa.array([change.op for change in changes]),
        staged.XID: pa.array([700 + lsn % 1000 for lsn, _, _ in rows], pa.int64()),
        staged.COMMIT_TS: pa.array([COMMIT_TIME] * len(rows), pa.timestamp("us", tz="UTC")),
        staged.OLD_KIND: pa.array([change.old_kind for change in changes], pa.string()),
    }
    for i, each in enumerate(version.columns):
        kind = _ARROW[each.lake_type]
        columns[staged.new(i)] = pa.array([(c.new or {}).get(each.name) for c in changes], kind)
        old = [(change.old or {}).get(each.name) for change in changes]
        # As capture stages them: nothing is written of a column that is NULL in every old tuple.
        if any(value is not None for value in old):
            columns[staged.old(i)] = pa.array(old, kind)
        if any(each.name in change.unchanged for change in changes):
            columns[staged.unchanged(i)] = pa.array([each.name in c.unchanged for c in changes])
    return pa.table(columns)


def replay_of(job: WriteJob, manifest_uris: Sequence[str], **changed: Any) -> ReplayJob:
    """The replay of batches with the options of another job."""
    options = {each.name: getattr(job, each.name) for each in fields(WriteJob)}
    return ReplayJob(**{**options, "manifest_uris": tuple(manifest_uris), **changed})


def opened(spark: SparkSession, job: ApplyJob) -> StagedBatch:
    """The batch of a job, verified."""
    return open_batch(spark, job, job.manifest_uri)
