"""The rows of a table of the lake as they were at one LSN, read file by file."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.batch.applied import find_at
from airflow_provider_pgoutput.batch.changes import IS_CURRENT_COLUMN
from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG, HISTORY
from airflow_provider_pgoutput.batch.lake_types import lake_type_in
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeUnavailable,
    PgoutputError,
    SparkFailed,
    TableDamaged,
)
from airflow_provider_pgoutput.lake.failures import lake_failure
from airflow_provider_pgoutput.lake.state import SlotTable, history_of
from airflow_provider_pgoutput.log_rows import LogRows
from airflow_provider_pgoutput.masks import masks_from
from airflow_provider_pgoutput.proof.digest import ROWS_AT_ONCE, Digest
from airflow_provider_pgoutput.proof.files.file_hash import (
    OP_COLUMN,
    FileHash,
    FileNotRead,
    HashJob,
    without_past,
)
from airflow_provider_pgoutput.proof.files.lake_damage import DataFileFailure, check_lengths, damage
from airflow_provider_pgoutput.proof.key_texts import text_maker
from airflow_provider_pgoutput.proof.ranges import Ranges, count_hashes, range_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyiceberg.table import FileScanTask, Table

    from airflow_provider_pgoutput.batch.applied import StandsAt
    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.masks import MaskedColumn
    from airflow_provider_pgoutput.proof.digest import RowHash
    from airflow_provider_pgoutput.proof.files.file_hash import HashedFiles, HashEngine
    from airflow_provider_pgoutput.proof.files.lake_files import LakeFiles
    from airflow_provider_pgoutput.proof.key_ranges import KeyRanges, Part
    from airflow_provider_pgoutput.proof.ranges import HashCounts
    from airflow_provider_pgoutput.proof.server_hashes import Hashes
    from airflow_provider_pgoutput.proof.share import HashPart

#: Columns of a change log, see ``log_entries.py``.
_OF_LOGS = ("_pgoutput_old_key", "_pgoutput_unchanged")


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A field of the lake's table."""

    name: str
    lake_type: str


@dataclass(frozen=True)
class LakeRows:
    """A table of the lake, as it was at an LSN."""

    #: ``namespace.table``.
    target: str
    stands: StandsAt
    #: Somebody rolled main back: it does not end with what was published last.
    was_rolled_back: bool
    #: Where the newest batch that it has ends; None: it has none.
    applied_lsn: Lsn | None
    #: Whether the table is a change log. Then its rows are the current ones that its entries lead to.
    is_log: bool
    #: What tells the rows of a change log apart; None: it does not say so.
    log_rows: LogRows | None
    #: The fields in use by ``attnum``, and all fields by name.
    fields: Mapping[int, LakeColumn]
    by_name: Mapping[str, LakeColumn]
    #: The columns whose values are masked: they are not those of the source.
    masks: tuple[MaskedColumn, ...]
    #: The filter that its rows passed, see ``filters.py``; empty: they passed none.
    row_filter: str
    _table: Table
    #: Hashes the files of a large table; None: this process does.
    engine: HashEngine | None = None
    #: Names and texts of the constant columns by which its rows are known in a shared table; empty: it is not
    #: shared.
    own: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls,
        table: Table,
        target: str,
        slot_name: str,
        relation_oid: int,
        system_identifier: str | None,
        lsn: Lsn,
        engine: HashEngine | None = None,
    ) -> LakeRows | None:
        """Read the table's metadata. No file of rows is opened.

        :param relation_oid: of the table at the source.
        :param system_identifier: of the source, as the checkpoint has it.
        :return: None: the table is shared, and has no rows of the source's table.
        """
        found = SlotTable.of(table, slot_name, relation_oid, system_identifier)
        if found is None:
            return None
        properties = found.properties
        applied = found.applied_to(slot_name)
        stands = find_at(slot_name, history_of(table, found.slice), lsn, applied.marker)
        schema = table.schema()
        if stands.snapshot_id is not None:
            snapshot = table.snapshot_by_id(stands.snapshot_id)
            if snapshot is not None and snapshot.schema_id is not None:
                schema = table.schemas()[snapshot.schema_id]
        body = json.loads(schema.model_dump_json())
        by_id = {
            each["id"]: LakeColumn(each["name"], lake_type_in(each["type"]))
            for each in body["fields"]
        }
        return cls(
            target,
            stands,
            applied.was_rolled_back or applied.lacks_published,
            applied.marker.end_lsn if applied.marker else None,
            properties.get(lake_names.PROPERTY_MODE) == CHANGE_LOG,
            LogRows.of(properties),
            _numbered(properties, relation_oid, by_id),
            {each.name: each for each in by_id.values()},
            masks_from(json.loads(properties.get(lake_names.PROPERTY_MASKS, "[]"))),
            properties.get(lake_names.PROPERTY_ROW_FILTER, ""),
            table,
            engine,
            () if found.slice is None else found.slice.constants,
        )

    def digest(
        self, names: Sequence[str], row_hash: RowHash, part: HashPart | None = None
    ) -> Digest:
        """The digest of all rows, or of those of a part.

        :param names: of the fields, in the order of the hash's columns.
        """
        return self._digests(
            FileHash(tuple(names), row_hash, self._mark, hash_part=part, own=self.own)
        ).digest

    def digests_by_key(self, names: Sequence[str], row_hash: RowHash, ranges: KeyRanges) -> Ranges:
        """The digests of all rows by ranges of a column of the key."""
        return self._digests(
            FileHash(tuple(names), row_hash, self._mark, ranges=ranges, own=self.own)
        )

    def digests_by_file(
        self, names: Sequence[str], row_hash: RowHash, known: Mapping[str, Digest]
    ) -> dict[str, Digest]:
        """The digest of each file, by ``LakeFiles.named``.

        A file is not read if its digest is known. It has to be there with its length.
        """
        what = FileHash(tuple(names), row_hash, self._mark, own=self.own)
        if self.stands.snapshot_id is None:
            return {}
        with self._failures():
            files = self._lake_files(what)
            tasks = dict(files.named())
            check_lengths(self._table.io, (file for name, file in tasks.items() if name in known))
            unknown = {name: file for name, file in tasks.items() if name not in known}
            found = self._hashed_by_engine(what, unknown)
            digests = (
                {
                    name: what.of_rows(map(what.current, files.of_file(file))).digest
                    for name, file in unknown.items()
                }
                if found is None
                else found.files
            )
        return {name: known[name] if name in known else digests[name] for name in tasks}

    def _digests(self, what: FileHash) -> Ranges:
        """The digests of all rows."""
        if self.engine is not None and not self.is_log and self.stands.snapshot_id is not None:
            with self._failures():
                found = self._hashed_by_engine(what, dict(self._lake_files(what).named()))
            if found is not None:
                return found.ranges
        return what.of_rows(self._batches(what.names, what.part))

    def _hashed_by_engine(
        self, what: FileHash, files: Mapping[str, FileScanTask]
    ) -> HashedFiles | None:
        """The digests of files; None: they are not large enough for the engine, or there is none."""
        engine, snapshot_id = self.engine, self.stands.snapshot_id
        size = sum(each.file.file_size_in_bytes for each in files.values())
        if engine is None or snapshot_id is None or not files or size < engine.least_bytes:
            return None
        job = HashJob.of(self._table, self.target, snapshot_id, sorted(files), what)
        try:
            found = engine.hashed(job)
        except FileNotRead as error:
            raise DataFileFailure(files[error.file]) from error.__cause__
        # A file that was left out must not make a wrong digest.
        if found.files.keys() != files.keys() or found.ranges.digest != sum(
            found.files.values(), Digest()
        ):
            raise SparkFailed(
                "The job did not hash the files that it was asked to hash.", table=self.target
            )
        return found

    def _lake_files(self, what: FileHash) -> LakeFiles:
        from airflow_provider_pgoutput.proof.files.lake_files import LakeFiles  # noqa: PLC0415

        assert self.stands.snapshot_id is not None, "the table has rows"
        return LakeFiles(self._table, self.stands.snapshot_id, what.fields, what.part, what.own)

    def definition(self, names: Sequence[str]) -> tuple[str, ...]:
        """All on which the digest of a file depends, except for its rows. It is only good for comparing."""
        marks = () if self._mark is None else (self._mark,)
        fields = (*names, *marks)
        scan = self._table.scan(selected_fields=fields, snapshot_id=self.stands.snapshot_id)
        uuid = str(self._table.metadata.table_uuid)
        # Files that other programs added have no numbers of fields: a mapping names them.
        mapping = str(self._table.name_mapping())
        own = (json.dumps(self.own),) if self.own else ()
        return uuid, mapping, scan.projection().model_dump_json(), *own, *marks

    def ranges(
        self,
        names: Sequence[str],
        key_hash: RowHash,
        row_hash: RowHash,
        count: int,
        part: Part | None = None,
    ) -> Ranges:
        """The digests of rows by ranges of their keys' hashes."""
        found = Ranges.empty(count)
        for keys, rows in self._hashes(names, key_hash, row_hash, part):
            found.add(range_numbers(keys, count), rows)
        return found

    def hashes(
        self,
        names: Sequence[str],
        key_hash: RowHash,
        row_hash: RowHash,
        count: int,
        numbers: Sequence[int],
        part: Part | None = None,
    ) -> HashCounts:
        """How many rows have each pair of hashes, of key and row, in some of ``count`` ranges."""
        wanted = np.zeros(count, dtype=np.bool_)
        wanted[list(numbers)] = True
        found: HashCounts = Counter()
        for keys, rows in self._hashes(names, key_hash, row_hash, part):
            some = wanted[range_numbers(keys, count)]
            found.update(count_hashes(keys[some], rows[some]))
        return found

    def keys(
        self,
        names: Sequence[str],
        key_hash: RowHash,
        hashes: Sequence[int],
        part: Part | None = None,
    ) -> dict[int, str]:
        """The keys of rows as JSON, by the hashes of the keys.

        :param names: of the fields of the key.
        """
        wanted, found = np.array(sorted(hashes), dtype=np.uint64), {}
        for rows in self._batches(names, part):
            of_keys = key_hash.of_rows(rows.columns)
            positions = np.flatnonzero(np.isin(of_keys, wanted))
            for key, row in zip(
                of_keys[positions].tolist(), rows.take(pa.array(positions)).to_pylist(), strict=True
            ):
                named = dict(zip(key_hash.names, row.values(), strict=True))
                found[key] = json.dumps(named, default=str)
        return found

    def key_texts(
        self,
        names: Sequence[str],
        key_hash: RowHash,
        hashes: Sequence[int],
        part: Part | None = None,
    ) -> list[tuple[str | None, ...]]:
        """The keys of rows, by the hashes of the keys, as PostgreSQL prints the values.

        :param names: of the fields of the key.
        :raises ConfigurationError: a field has a type whose text is not known here.
        """
        wanted = np.array(sorted(hashes), dtype=np.uint64)
        makers = [text_maker(self.by_name[name].lake_type) for name in names]
        found: list[tuple[str | None, ...]] = []
        for rows in self._batches(names, part):
            positions = np.flatnonzero(np.isin(key_hash.of_rows(rows.columns), wanted))
            chosen = rows.take(pa.array(positions))
            texts = [make(each) for make, each in zip(makers, chosen.columns, strict=True)]
            found += zip(*texts, strict=True)
        return found

    def _hashes(
        self,
        names: Sequence[str],
        key_hash: RowHash,
        row_hash: RowHash,
        part: Part | None,
    ) -> Iterator[tuple[Hashes, Hashes]]:
        positions = [row_hash.names.index(name) for name in key_hash.names]
        for whole in self._batches(names, part):
            for begin in range(0, whole.num_rows, ROWS_AT_ONCE):
                rows = whole.slice(begin, ROWS_AT_ONCE)
                of_rows = row_hash.of_rows(rows.columns)
                is_whole = key_hash is row_hash
                yield (
                    of_rows if is_whole else key_hash.of_rows([rows.column(p) for p in positions]),
                    of_rows,
                )

    def _batches(self, names: Sequence[str], part: Part | None = None) -> Iterator[pa.RecordBatch]:
        """The rows that the source is said to have, with columns in the order of ``names``.

        Rows that soft delete marks as deleted are left out, and those of a history that are not current.

        :raises TableDamaged: a file of the table is missing or damaged.
        :raises LakeUnavailable: a file cannot be read now.
        """
        if self.stands.snapshot_id is None:
            return
        with self._failures():
            yield from self._current_rows(names, part) if self.is_log else self._rows(names, part)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn what fails while files are read into our errors."""
        assert self.stands.snapshot_id is not None, "the table has rows"
        try:
            yield
        except PgoutputError:
            raise
        except Exception as error:
            cause = error.__cause__ if isinstance(error, DataFileFailure) else error
            assert isinstance(cause, Exception)
            failure = (
                cause
                if isinstance(cause, PgoutputError)
                else lake_failure(cause, "A table cannot be read", self.target)
            )
            if isinstance(failure, LakeUnavailable):
                found = damage(self._table, self.stands.snapshot_id, self.target, error)
                failure = failure if found is None else found
            raise failure from None
        finally:
            # Arrow's memory pool keeps freed memory. Other tables follow, so it gives it back here.
            pa.default_memory_pool().release_unused()

    def _rows(self, names: Sequence[str], part: Part | None) -> Iterator[pa.RecordBatch]:
        mark = self._mark
        for rows in self._files(names if mark is None else (*names, mark), part):
            yield without_past(rows, mark).select(list(names))

    @property
    def _mark(self) -> str | None:
        """The column that says which rows the source has no more; None: the source has all of them."""
        properties = self._table.properties
        if properties.get(lake_names.PROPERTY_SOFT_DELETE) == "true":
            return OP_COLUMN
        return IS_CURRENT_COLUMN if properties.get(lake_names.PROPERTY_MODE) == HISTORY else None

    def _current_rows(self, names: Sequence[str], part: Part | None) -> Iterator[pa.RecordBatch]:
        """The rows of the source that the entries of a change log lead to."""
        from airflow_provider_pgoutput.proof.log_entries import (  # noqa: PLC0415
            CurrentRows,
            DoubledEntries,
            UnknownRows,
        )

        assert self.log_rows is not None, "``why_no_rows`` was asked before"
        try:
            current = CurrentRows.of(self._entries, self.log_rows, names)
        except DoubledEntries as why:
            raise TableDamaged(
                f"The change log has entries more than once. {why}",
                table=self.target,
                advice="look for what wrote to it beside the pipeline, and delete the second ones. Or copy"
                " the table again (copy_tables): a copy ends all entries before it.",
            ) from why
        except UnknownRows as why:
            raise ConfigurationError(
                f"Its current rows cannot be told. {why}", table=self.target
            ) from why
        for rows in current.batches(self._entries, names):
            yield rows if part is None else rows.filter(pa.array(part.mask(rows)))

    def _entries(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for rows in self._files(names, None):
            yield rows.select(list(names))

    def _files(self, names: Sequence[str], part: Part | None) -> Iterator[pa.RecordBatch]:
        from airflow_provider_pgoutput.proof.files.lake_files import LakeFiles  # noqa: PLC0415

        assert self.stands.snapshot_id is not None, "the table has rows"
        snapshot_id = self.stands.snapshot_id
        return LakeFiles(self._table, snapshot_id, names, part, self.own).batches()

    @property
    def why_no_rows(self) -> str | None:
        """Why the rows that a change log leads to are not known; None: they are, or it is none."""
        if not self.is_log:
            return None
        if self.log_rows is None:
            return "it got no batch since the pipeline notes its key"
        if not self.by_name.keys() >= {*self.log_rows.key, *_OF_LOGS}:
            return "it did not have the columns of its key then"
        return self.log_rows.why_unknown


def _numbered(
    properties: Mapping[str, str], relation_oid: int, by_id: Mapping[int, LakeColumn]
) -> dict[int, LakeColumn]:
    fields = lake_names.recorded_columns(properties, relation_oid).get("fields", {})
    return {
        int(number): by_id[field_id] for number, field_id in fields.items() if field_id in by_id
    }
