"""Writes sealed batches without a database: the initial copy of a narrow table, then changes to it.

The rows are numbered, and ``synthetic_keys.py`` writes the numbers as keys. The files and manifests
obey ``batch/changes.py`` and ``batch/manifest.py`` as those of capture do; nothing of capture is used, so
that apply is measured alone. Beside each batch of changes lies the same batch already folded, which is
what the bare MERGE gets.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from airflow_provider_pgoutput.batch import changes, layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest, Table
from airflow_provider_pgoutput.batch.table_version import Column, Counts, StagedFile, TableVersion
from benchmarks.synthetic_keys import KEYS, key_arrays

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SLOT = "bench_apply"
RELATION_OID = 16384
TABLE_NAME = "bench_narrow"
#: Columns that are not of the key.
VALUES = (
    Column("a", 23, -1, "integer", "int"),
    Column("b", 25, -1, "text", "string"),
    Column("c", 1184, -1, "timestamp with time zone", "timestamptz"),
    Column("d", 1700, (12 << 16 | 2) + 4, "numeric(12,2)", "decimal(12, 2)"),
)
#: Rows that are made at once: those of a file of changes.
FILE_ROWS = 1_000_000
#: So many times as many are in a file of a copy, which has then about 192 MiB, as capture's have.
PIECES_OF_A_COPY = 10
#: About 16 MiB in memory, as capture writes them.
GROUP_ROWS = 200_000
TRANSACTION_ROWS = 1000
#: A batch deletes only keys of its own residue class and updates only keys of the upper half of the
#: classes, from which no batch deletes, so every change finds its row without bookkeeping.
BATCHES = 32
#: Rows from anywhere that a batch of recent changes updates.
OLD_ROWS = 10
_FIRST_LSN = 0x10000000
_EPOCH_US = 1_767_225_600_000_000  # 2026-01-01 UTC
_TIMESTAMP = pa.timestamp("us", tz="UTC")

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SyntheticBatch:
    """A sealed batch in the staging area."""

    manifest_path: Path
    changes: int
    #: One row per key with ``op`` ``D`` or ``U``; None for the initial copy.
    folded_path: Path | None


class BatchWriter:
    """Writes consecutive batches of one slot below ``staging``, the initial copy first."""

    def __init__(
        self,
        staging: Path,
        table_rows: int,
        seed: int = 1,
        *,
        key: str = "bigint",
        table: int = 0,
        most_batches: int = BATCHES,
    ) -> None:
        """``table`` tells the tables of one staging area apart; the copy is a batch, too."""
        self._key = key
        self._oid = RELATION_OID + table
        self._name = f"{TABLE_NAME}_{table}" if table else TABLE_NAME
        self._most_batches = most_batches
        self.columns = (*KEYS[key], *VALUES)
        self._staging = staging
        self._table_rows = table_rows
        self._next_id = table_rows
        self._number = 0
        self._lsn = _FIRST_LSN
        self._random = np.random.default_rng(seed)

    def write_copy(self) -> SyntheticBatch:
        """The initial copy: ids from 0 on, in order, as a table lies on PostgreSQL's disk."""
        folder = layout.attempt_folder(SLOT, Lsn(self._lsn), "copy")
        step = FILE_ROWS * PIECES_OF_A_COPY
        files = [
            self._write_file(folder, "copy", number, self._copied(start, start + step), None)
            for number, start in enumerate(range(0, self._table_rows, step))
        ]
        counts = Counts(copied=self._table_rows)
        return self._seal(files, counts, Lsn(self._lsn), transactions=0, folded_path=None)

    def _copied(self, start: int, end: int) -> Iterator[pa.Table]:
        """The rows of one file of the copy, in pieces."""
        end = min(end, self._table_rows)
        for begin in range(start, end, FILE_ROWS):
            ids = np.arange(begin, min(begin + FILE_ROWS, end), dtype=np.int64)
            yield self._values(ids, np.zeros_like(ids))

    def write_changes(self, count: int, *, recent: bool = False) -> SyntheticBatch:
        """60 % updates of random rows, some hit again, 30 % inserts, 10 % deletes, mixed.

        :param recent: of the newest hundredth of the table, but for ten rows.
        """
        self._number += 1
        if self._number >= self._most_batches:
            raise ValueError(f"at most {self._most_batches - 1} batches of changes")
        op, ids = self._draw(count, recent)
        commit_lsn = self._lsn + 256 * (1 + np.arange(count, dtype=np.int64) // TRANSACTION_ROWS)
        folder = layout.attempt_folder(SLOT, Lsn(self._lsn), "changes")
        files = []
        for number, start in enumerate(range(0, count, FILE_ROWS)):
            rows = slice(start, start + FILE_ROWS)
            table = self._changes_table(op[rows], ids[rows], commit_lsn[rows], start)
            lsns = commit_lsn[rows]
            span = (Lsn(int(lsns[0])), Lsn(int(lsns[-1])))
            files.append(self._write_file(folder, "changes", number, iter((table,)), span))
        counts = Counts(
            inserts=int((op == ord("I")).sum()),
            updates=int((op == ord("U")).sum()),
            deletes=int((op == ord("D")).sum()),
        )
        folded = self._write_folded(op, ids)
        transactions = -(-count // TRANSACTION_ROWS)
        return self._seal(files, counts, None, transactions, folded)

    def _draw(self, count: int, recent: bool) -> tuple[NDArray[np.uint8], Int64]:
        """Kinds and keys of a batch in stream order."""
        inserts, deletes = count * 3 // 10, count // 10
        fresh_updates = count // 10
        updates = count - inserts - deletes - fresh_updates
        most, residues = self._most_batches, 2 * self._most_batches
        groups = self._table_rows // residues
        first = groups - max(deletes, groups // 100) if recent else 0
        updated = self._random.integers(first, groups, updates)
        updated[:OLD_ROWS] = self._random.integers(0, groups, len(updated[:OLD_ROWS]))
        survivors = updated * residues + self._random.integers(most, residues, updates)
        doomed = first + self._random.choice(groups - first, deletes, replace=False)
        doomed = doomed * residues + self._number
        new = np.arange(self._next_id, self._next_id + inserts, dtype=np.int64)
        self._next_id += inserts
        op = np.repeat(np.frombuffer(b"UDI", dtype=np.uint8), (updates, deletes, inserts))
        ids = np.concatenate((survivors, doomed, new))
        order = self._random.permutation(len(op))
        # Updates of the rows that this very batch inserted come last.
        fresh = self._random.choice(new, fresh_updates)
        op = np.concatenate((op[order], np.full(fresh_updates, ord("U"), dtype=np.uint8)))
        return op, np.concatenate((ids[order], fresh))

    def _changes_table(
        self, op: NDArray[np.uint8], ids: Int64, commit_lsn: Int64, start: int
    ) -> pa.Table:
        rows = len(op)
        ordinal = start + np.arange(rows, dtype=np.int64)
        deleted = op == ord("D")
        columns: dict[str, pa.Array] = {
            changes.COMMIT_LSN: pa.array(commit_lsn),
            changes.SEQ: pa.array(ordinal % TRANSACTION_ROWS),
            changes.OP: pa.array(op.view("S1").astype("U1"), pa.string()),
            changes.XID: pa.array(1000 + ordinal // TRANSACTION_ROWS),
            changes.COMMIT_TS: pa.array(
                _EPOCH_US + 1_000_000 * (ordinal // TRANSACTION_ROWS), pa.int64()
            ).cast(_TIMESTAMP),
            changes.OLD_KIND: pa.array(np.where(deleted, "K", ""), pa.string(), mask=~deleted),
        }
        values = self._values(ids, ordinal)
        absent = pa.array(deleted)
        for name in values.column_names:
            column = values[name].combine_chunks()
            columns[name] = pc.if_else(absent, pa.nulls(rows, column.type), column)
        for i, key in enumerate(key_arrays(self._key, ids)):
            columns[changes.old(i)] = pc.if_else(absent, key, pa.nulls(rows, key.type))
        return pa.table(columns)

    def _values(self, ids: Int64, ordinal: Int64) -> pa.Table:
        """The whole rows, in the staged columns of their new values."""
        arrays = [*key_arrays(self._key, ids), *_values(ids, ordinal)]
        return pa.table({changes.new(i): each for i, each in enumerate(arrays)})

    def _write_folded(self, op: NDArray[np.uint8], ids: Int64) -> Path:
        """The last change of each key, by plain numpy: a second opinion on the fold as well."""
        last = len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]
        values = self._values(ids[last], last)
        table = values.rename_columns([each.name for each in self.columns]).append_column(
            "op", pa.array(op[last].view("S1").astype("U1"), pa.string())
        )
        path = self._staging / "folded" / f"{self._name}-{self._number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, compression="zstd")
        return path

    def _write_file(
        self,
        folder: str,
        kind: str,
        number: int,
        pieces: Iterator[pa.Table],
        span: tuple[Lsn, Lsn] | None,
    ) -> StagedFile:
        relative = f"{layout.table_folder(folder, self._oid, 0)}/{layout.file_name(kind, number)}"
        path = self._staging / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        first = next(pieces)
        rows = 0
        with pq.ParquetWriter(path, first.schema, compression="zstd") as output:
            for piece in itertools.chain((first,), pieces):
                output.write_table(piece, row_group_size=GROUP_ROWS)
                rows += len(piece)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return StagedFile(
            kind=kind,
            path=relative,
            rows=rows,
            size_bytes=path.stat().st_size,
            sha256=digest,
            columns=tuple(first.column_names),
            min_commit_lsn=str(span[0]) if span else None,
            max_commit_lsn=str(span[1]) if span else None,
        )

    def _seal(
        self,
        files: list[StagedFile],
        counts: Counts,
        copy_lsn: Lsn | None,
        transactions: int,
        folded_path: Path | None,
    ) -> SyntheticBatch:
        start = Lsn(self._lsn)
        end = start if copy_lsn is not None else Lsn(self._lsn + 256 * (transactions + 1))
        key = tuple(each.name for each in KEYS[self._key])
        version = TableVersion(0, "public", self._name, "d", self.columns, key, tuple(files))
        table = Table(
            self._oid,
            "public",
            self._name,
            (version,),
            counts,
            copy_lsn=None if copy_lsn is None else str(copy_lsn),
        )
        manifest = Manifest(
            slot_name=SLOT,
            system_identifier="7000000000000000001",
            timeline=1,
            database="bench",
            publication_names=("pub",),
            start_lsn=start,
            end_lsn=end,
            tables=(table,),
            transactions=transactions,
            created_by="benchmarks",
        )
        self._lsn = int(end)
        path = _write_manifest(self._staging, manifest)
        return SyntheticBatch(path, counts.changes or counts.copied, folded_path)


def joined(staging: Path, batches: Sequence[SyntheticBatch]) -> Path:
    """The manifest of one batch of all tables, of batches that have a table each and the same range."""
    manifests = [Manifest.from_json(each.manifest_path.read_text()) for each in batches]
    for each in batches:
        each.manifest_path.unlink(missing_ok=True)
    tables = tuple(table for each in manifests for table in each.tables)
    return _write_manifest(staging, dataclasses.replace(manifests[0], tables=tables))


def _write_manifest(staging: Path, manifest: Manifest) -> Path:
    start, end = manifest.start_lsn, manifest.end_lsn
    path = staging / layout.manifest_path(SLOT, start, end, manifest.batch_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(manifest.to_json())
    return path


def _values(ids: Int64, ordinal: Int64) -> list[pa.Array]:
    """What rows hold: as in workloads.sql, plus the change's ordinal, so that no change is idle."""
    digits = pc.utf8_lpad(pa.array(ids % 1_000_000).cast(pa.string()), 14, "0")
    cents = pa.array(ids % 10_000_000 + ordinal)
    moment = _EPOCH_US + (ids % 31_536_000 + ordinal) * 1_000_000 + ids % 1_000_000
    return [
        pa.array(((ids * 7919) % 1_000_003 + ordinal).astype(np.int32)),
        pc.binary_join_element_wise("value", digits, "-"),
        pa.array(moment).cast(_TIMESTAMP),
        pc.divide(
            cents.cast(pa.decimal128(19, 0)).cast(pa.decimal128(19, 2)),
            pa.scalar(100, pa.decimal128(3, 0)),
        ).cast(pa.decimal128(12, 2)),
    ]
