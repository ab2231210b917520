"""The tables of a batch: their versions, and blocks of changes as rows of staged files.

A table is known by its OID. Its version changes when the stream announces other columns. The same columns
again are the same version. ``writers.py`` writes the files. A ``Describe`` function asks the source.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.batch import changes
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Table
from airflow_provider_pgoutput.batch.table_version import Counts, TableVersion
from airflow_provider_pgoutput.capture.staging.incomplete import old_kinds, refuse_incomplete
from airflow_provider_pgoutput.capture.staging.rejected import (
    NEW_TUPLE,
    OLD_TUPLE,
    Rejection,
    rejected_rows,
)
from airflow_provider_pgoutput.capture.staging.sent_values import SentCaster
from airflow_provider_pgoutput.errors import ProtocolError, ValueRefused
from airflow_provider_pgoutput.lake.arrow_types import arrow_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.batch.earlier_systems import EarlierTable
    from airflow_provider_pgoutput.batch.table_version import StagedFile
    from airflow_provider_pgoutput.batch.type_definition import TypeDefinition
    from airflow_provider_pgoutput.capture.describe import Described
    from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock, Forms
    from airflow_provider_pgoutput.capture.pgoutput.messages import PartitionIdentity, Relation
    from airflow_provider_pgoutput.capture.staging.sent_values import Casters
    from airflow_provider_pgoutput.capture.staging.writers import TableWriter
    from airflow_provider_pgoutput.capture.types.arrow_bytes import CastResult
    from airflow_provider_pgoutput.capture.types.cast import ColumnCaster, ValuePolicy

_LETTERS = pa.DictionaryArray.from_arrays(pa.array([], pa.int8()), pa.array([], pa.string())).type
_INSERT, _UPDATE, _DELETE, _TRUNCATE = b"IUDT"
_OPS = pa.array(["I", "U", "D", "T"])
_OLD_KINDS = pa.array(["K", "O"])
_TIMESTAMP = pa.timestamp("us", tz="UTC")


def _codes(letters: str) -> NDArray[np.int8]:
    """By byte: the position of the letter in ``letters``; -1: it is not among them."""
    codes = np.full(256, -1, dtype=np.int8)
    for code, letter in enumerate(letters):
        codes[ord(letter)] = code
    return codes


_OP_CODES = _codes("IUDT")
_OLD_KIND_CODES = _codes("KO")

_LEADING_FIELDS = (
    pa.field(changes.COMMIT_LSN, pa.int64()),
    pa.field(changes.SEQ, pa.int64()),
    pa.field(changes.OP, _LETTERS),
    pa.field(changes.XID, pa.int64()),
    pa.field(changes.COMMIT_TS, _TIMESTAMP),
    pa.field(changes.OLD_KIND, _LETTERS),
)
_ORIGIN_FIELDS = tuple(pa.field(name, arrow_type(kind)) for name, kind in changes.ORIGINS)


#: Ends the advice for a value that cannot be staged.
OR_LEAVE_OUT = " Or leave its transaction out, with skip_lsns=['{}']."


class Describe(Protocol):
    """Turns an announced relation into a table version, number 1 and without files."""

    def __call__(self, relation: Relation) -> Described:
        """Ask the catalog for what the announcement lacks: keys, type names, values of older rows."""
        ...


@dataclass(slots=True)
class StagedVersion:
    """One version of a table with its casters and its files."""

    relation_oid: int
    version: TableVersion
    #: For copied values, in the form in which each one is fetched.
    casters: tuple[ColumnCaster, ...]
    #: For changed values.
    change_casters: tuple[SentCaster, ...]
    changes_writer: TableWriter | None = None
    copy_writer: TableWriter | None = None
    #: Files of a copy that an earlier attempt sealed.
    adopted_files: tuple[StagedFile, ...] = ()
    #: The replica identities of the table's partitions, up to here in the stream.
    partitions: frozenset[PartitionIdentity] = frozenset()
    #: The oldest transaction with changes of this version; None: there is none.
    oldest_xid: int | None = None
    #: See ``Described.kept``.
    kept: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        relation_oid: int,
        version: TableVersion,
        policy: ValuePolicy,
        choose: Casters,
    ) -> StagedVersion:
        """Choose the casters of a version's columns."""
        name = f"{version.schema_name}.{version.table_name}"
        copied = tuple(choose.copied(each, policy, table=name) for each in version.columns)
        changed = tuple(SentCaster(each, policy, name, choose) for each in version.columns)
        return cls(relation_oid, version, copied, changed)

    def announced(self, described: Described) -> None:
        """Take what the newest announcement of the version says, except for its columns."""
        self.partitions, self.kept = described.partitions, described.kept

    def begin_changes(self, writer: TableWriter) -> TableWriter:
        """Take the writer of the version's changes."""
        self.changes_writer = writer
        return writer

    def begin_copy(self, writer: TableWriter) -> None:
        """Take the writer of the version's copied rows."""
        self.copy_writer = writer

    def adopt_copy(self, files: tuple[StagedFile, ...]) -> None:
        """Take the files of copied rows that an earlier attempt sealed."""
        self.adopted_files = files

    @property
    def new_fields(self) -> list[pa.Field]:
        """Fields of the new values."""
        return [
            pa.field(changes.new(position), arrow_type(column.lake_type))
            for position, column in enumerate(self.version.columns)
        ]

    @property
    def changes_schema(self) -> pa.Schema:
        """Every column that a changes file of this version can have."""
        columns = self.version.columns
        old = [
            pa.field(changes.old(position), arrow_type(each.lake_type))
            for position, each in enumerate(columns)
        ]
        flags = [
            pa.field(changes.unchanged(position), pa.bool_()) for position in range(len(columns))
        ]
        return pa.schema([*_LEADING_FIELDS, *_ORIGIN_FIELDS, *self.new_fields, *old, *flags])

    @property
    def changes_required(self) -> frozenset[str]:
        """Columns that every changes file has."""
        return frozenset(each.name for each in (*_LEADING_FIELDS, *self.new_fields))

    def reduced(self, block: ChangeBlock) -> ChangeBlock:
        """The block without the columns that a mask drops."""
        if self.kept is None:
            return block
        kept = self.kept

        def some(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(values[position] for position in kept)

        return dataclasses.replace(
            block,
            relation=dataclasses.replace(block.relation, columns=some(block.relation.columns)),
            new=some(block.new),
            old=some(block.old),
            new_binary=some(block.new_binary),
            old_binary=some(block.old_binary),
            unchanged=some(block.unchanged),
        )

    def note_xids(self, xids: NDArray[np.int64]) -> None:
        """Note the transactions of changes. Their IDs have 32 bits and wrap around."""
        first = int(xids[0]) if self.oldest_xid is None else self.oldest_xid
        # Compared as the server does: an ID less than half of all IDs away is older.
        distance = (xids - first).astype(np.int32)
        self.oldest_xid = (first + min(int(distance.min()), 0)) % (1 << 32)

    def finished(self) -> TableVersion:
        """The version with its files."""
        writers = [each for each in (self.copy_writer, self.changes_writer) if each is not None]
        written = tuple(file for writer in writers for file in writer.files)
        return dataclasses.replace(self.version, files=self.adopted_files + written)


@dataclass(slots=True)
class StagedTable:
    """A table of the batch."""

    relation_oid: int
    versions: list[StagedVersion] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    copy_lsn: str | None = None
    #: The users' types in its columns when it was copied; None: it was not copied.
    copied_types: tuple[TypeDefinition, ...] | None = None
    #: The last announcement; None: the copy came first.
    relation: Relation | None = None
    #: See ``Table``.
    is_difference: bool = False
    earlier: EarlierTable | None = None
    #: See ``Table``.
    copy_time: str | None = None

    def begin_copy(
        self, copy_lsn: str, types: tuple[TypeDefinition, ...], copy_time: str | None
    ) -> None:
        """Note where and when the table is copied, and how the users' types are defined there."""
        self.copy_lsn, self.copied_types, self.copy_time = copy_lsn, types, copy_time

    def announced(self, relation: Relation) -> None:
        """Note the last announcement."""
        self.relation = relation

    def begin_difference(self, earlier: EarlierTable | None) -> None:
        """Note that the rows in which the lake differs follow, if there are any.

        :param earlier: see ``Table``.
        """
        self.is_difference, self.earlier = True, earlier

    def count(self, counts: Counts) -> None:
        """Count rows that were staged."""
        self.counts += counts

    def adopt_copy(self, files: tuple[StagedFile, ...], counts: Counts) -> None:
        """Take the copied rows that an earlier attempt sealed."""
        self.versions[-1].adopt_copy(files)
        self.count(counts)

    @property
    def oldest_xids(self) -> tuple[int | None, ...]:
        """By version: the oldest transaction that changed the table in this batch; None: there is none."""
        return tuple(each.oldest_xid for each in self.versions)

    def finished(self, name: tuple[str, str] | None) -> Table:
        """The table as the manifest describes it.

        :param name: schema and name, if they are known better than from the last version.
        """
        last = self.versions[-1].version
        schema_name, table_name = name or (last.schema_name, last.table_name)
        return Table(
            relation_oid=self.relation_oid,
            schema_name=schema_name,
            table_name=table_name,
            versions=tuple(each.finished() for each in self.versions),
            counts=self.counts,
            copy_lsn=self.copy_lsn,
            types=self.copied_types,
            is_difference=self.is_difference,
            earlier=self.earlier,
            copy_time=self.copy_time,
        )


class StagedTables:
    """All tables of a batch by OID.

    :param casters: choose the casters of values.
    """

    def __init__(self, describe: Describe, policy: ValuePolicy, casters: Casters) -> None:
        self._describe = describe
        self._policy = policy
        self._casters = casters
        self.by_oid: dict[int, StagedTable] = {}

    def version_of(self, relation: Relation) -> tuple[StagedTable, StagedVersion]:
        """The table and version to which a block belongs. A new one is described and gets a number."""
        table = self.by_oid.get(relation.oid) or StagedTable(relation.oid)
        if table.relation is relation:
            return table, table.versions[-1]
        if table.relation != relation:
            described = self._describe(relation)
            self._append(table, described.version)
            table.versions[-1].announced(described)
        # Only now: a relation that is refused must not leave a table without versions.
        self.by_oid[relation.oid] = table
        table.announced(relation)
        return table, table.versions[-1]

    def version_of_repair(self, relation: Relation) -> tuple[StagedTable, StagedVersion]:
        """The table and version of rows that were read again.

        :param relation: as the catalog has it. If the stream announced the same columns, its announcement is
            used instead.
        """
        table = self.by_oid.get(relation.oid)
        if table is None or table.relation is None:
            return self.version_of(relation)
        known, wanted = (
            [(each.name, each.type_oid, each.type_modifier) for each in columns]
            for columns in (table.relation.columns, relation.columns)
        )
        return self.version_of(table.relation if known == wanted else relation)

    def copied(
        self,
        relation_oid: int,
        version: TableVersion,
        copy_lsn: str,
        types: tuple[TypeDefinition, ...],
        copy_time: str | None,
    ) -> StagedTable:
        """Add a table that is copied in this batch."""
        table = self.by_oid.get(relation_oid) or StagedTable(relation_oid)
        table.begin_copy(copy_lsn, types, copy_time)
        self._append(table, version)
        # Only now: a table whose columns are refused must not be left without versions.
        self.by_oid[relation_oid] = table
        return table

    def remove(self, relation_oid: int) -> None:
        """Forget a table, if it is known."""
        self.by_oid.pop(relation_oid, None)

    def _append(self, table: StagedTable, version: TableVersion) -> None:
        numbered = dataclasses.replace(version, version=len(table.versions))
        if table.versions and table.versions[-1].version == numbered:
            # Another partition was announced, and nothing else is new.
            return
        numbered = dataclasses.replace(version, version=len(table.versions) + 1)
        table.versions.append(
            StagedVersion.of(table.relation_oid, numbered, self._policy, self._casters)
        )


@dataclass(slots=True)
class StagedRows:
    """A block of changes, cast."""

    rows: pa.RecordBatch
    counts: Counts
    #: Rows of a rejected file.
    rejected: list[pa.RecordBatch]

    def without_key(self, version: TableVersion) -> NDArray[np.bool_]:
        """Which rows have NULL in a column of the key, on the side that says which row it is."""
        found = np.zeros(self.rows.num_rows, np.bool_)
        is_gone = pc.equal(self.rows.column(changes.OP).cast(pa.string()), changes.DELETE)
        for position, column in enumerate(version.columns):
            if column.name not in version.key_columns:
                continue
            of_row = self.rows.column(changes.new(position))
            if changes.old(position) in self.rows.schema.names:
                of_row = pc.if_else(is_gone, self.rows.column(changes.old(position)), of_row)
            if of_row.null_count:
                found |= of_row.is_null().to_numpy(zero_copy_only=False)
        return found


def stage_block(version: StagedVersion, block: ChangeBlock) -> StagedRows:
    """Cast a block into the rows of a changes file.

    :raises ValueRefused: a value does not fit its column, and the policy says ``fail``.
    :raises TableRefused: the server left out something that nothing else tells. Examples: which row an update
        means, or a large value of a row that enters the row filter.
    :raises TooMuchText: see ``in_parts``.
    """
    block = version.reduced(block)
    refuse_incomplete(version.version, version.partitions, block)
    return _cast_reduced(version, block)


def cast_block(version: StagedVersion, block: ChangeBlock) -> StagedRows:
    """Cast a block in which the server left nothing out; see ``stage_block``."""
    return _cast_reduced(version, version.reduced(block))


def _cast_reduced(version: StagedVersion, block: ChangeBlock) -> StagedRows:
    columns: list[pa.Array] = [
        pa.array(block.commit_lsn),
        pa.array(block.seq),
        _letters(_OP_CODES[block.op], _OPS),
        pa.array(block.xid),
        pa.array(block.commit_ts_us).view(_TIMESTAMP),
        _letters(_OLD_KIND_CODES[old_kinds(version.partitions, block)], _OLD_KINDS),
    ]
    names = [each.name for each in _LEADING_FIELDS]
    if block.origin is not None:
        names += [each.name for each in _ORIGIN_FIELDS]
        columns += [block.origin, block.origin_lsn]
    rejected: list[pa.RecordBatch] = []
    sent = zip(version.change_casters, block.new, block.new_binary, strict=True)
    for position, (caster, raw, forms) in enumerate(sent):
        names.append(changes.new(position))
        if raw is None:
            columns.append(pa.nulls(len(block), caster.arrow_type))
            continue
        result = _cast(caster, raw, forms, block)
        columns.append(result.values)
        if len(result.rejected):
            rejected.append(_rejected(version, block, position, NEW_TUPLE, result.rejected))
    sent = zip(version.change_casters, block.old, block.old_binary, strict=True)
    for position, (caster, raw, forms) in enumerate(sent):
        if raw is None or raw.null_count == len(raw):
            continue
        result = _cast(caster, raw, forms, block)
        names.append(changes.old(position))
        columns.append(result.values)
        if len(result.rejected):
            rejected.append(_rejected(version, block, position, OLD_TUPLE, result.rejected))
    unchanged_toast = 0
    for position, flags in enumerate(block.unchanged):
        if flags is not None and (count := int(np.count_nonzero(flags))):
            unchanged_toast += count
            names.append(changes.unchanged(position))
            columns.append(pa.array(flags))
    rows = pa.RecordBatch.from_arrays(columns, names=names)
    return StagedRows(rows, _counts(block, unchanged_toast, rejected), rejected)


def _cast(caster: SentCaster, raw: pa.Array, forms: Forms, block: ChangeBlock) -> CastResult:
    """Cast a column of a block. An error names the transaction that cannot be staged."""
    try:
        return caster.cast(raw, forms)
    except (ValueRefused, ProtocolError) as error:
        lsn = Lsn(int(block.commit_lsn[_first_refused(caster, raw, forms)]))
        raise type(error)(
            error.message,
            table=error.table,
            column=error.column,
            lsn=lsn,
            advice=f"{error.advice}{OR_LEAVE_OUT.format(lsn)}",
        ) from error


def _first_refused(caster: SentCaster, raw: pa.Array, forms: Forms) -> int:
    """Position of the first value that cannot be cast.

    It is the last value of the shortest slice from the beginning that cannot be cast.
    """
    good, bad = 0, len(raw)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            caster.cast(raw.slice(0, middle), forms if isinstance(forms, bool) else forms[:middle])
        except (ValueRefused, ProtocolError):
            bad = middle
        else:
            good = middle
    return bad - 1


def _letters(codes: NDArray[np.int8], letters: pa.Array) -> pa.Array:
    absent = codes < 0
    indices = pa.array(codes, mask=absent) if absent.any() else pa.array(codes)
    return pa.DictionaryArray.from_arrays(indices, letters)


def copied_counts(
    version: TableVersion, rows: pa.RecordBatch, rejected: Sequence[pa.RecordBatch]
) -> Counts:
    """Count copied rows.

    NULLs in key columns are counted, because the user may choose key columns that can be NULL at the source.

    :param rejected: rows of a rejected file, with the values that did not fit their columns.
    """
    nulls = (
        rows.column(position).null_count
        for position, column in enumerate(version.columns)
        if column.name in version.key_columns
    )
    return Counts(
        copied=rows.num_rows,
        rejected=sum(each.num_rows for each in rejected),
        null_keys=sum(nulls),
    )


def _counts(block: ChangeBlock, unchanged_toast: int, rejected: Sequence[pa.RecordBatch]) -> Counts:
    tally = np.bincount(block.op, minlength=256)
    return Counts(
        inserts=int(tally[_INSERT]),
        updates=int(tally[_UPDATE]),
        deletes=int(tally[_DELETE]),
        truncates=int(tally[_TRUNCATE]),
        old_tuples=int(np.count_nonzero((block.op == _UPDATE) & (block.old_kind != 0))),
        unchanged_toast=unchanged_toast,
        rejected=sum(each.num_rows for each in rejected),
    )


def _rejected(
    version: StagedVersion,
    block: ChangeBlock,
    position: int,
    tuple_kind: str,
    positions: NDArray[np.int64],
) -> pa.RecordBatch:
    chosen = pa.array(positions)
    raw, forms = _values(block, tuple_kind, position)
    assert raw is not None, "what was rejected was cast before"
    rejection = Rejection(
        column=version.version.columns[position],
        tuple_kind=tuple_kind,
        raw=version.change_casters[position].texts(raw.take(chosen), _at(forms, positions)),
        key=dict(_keys(version, block, tuple_kind, positions)),
        op=_letters(_OP_CODES[block.op[positions]], _OPS).cast(pa.string()),
        commit_lsn=pa.array(block.commit_lsn[positions]),
        seq=pa.array(block.seq[positions]),
    )
    return rejected_rows(version.version, version.relation_oid, rejection)


def _values(block: ChangeBlock, tuple_kind: str, position: int) -> tuple[pa.Array | None, Forms]:
    """A column of the new or of the old tuples, and the form of its values."""
    if tuple_kind == NEW_TUPLE:
        return block.new[position], block.new_binary[position]
    return block.old[position], block.old_binary[position]


def _at(forms: Forms, positions: NDArray[np.int64]) -> Forms:
    return forms if isinstance(forms, bool) else forms[positions]


def _keys(
    version: StagedVersion, block: ChangeBlock, tuple_kind: str, positions: NDArray[np.int64]
) -> Iterator[tuple[str, pa.Array]]:
    """Text of the key columns: from the tuple itself, or from the other tuple if it is unchanged TOAST."""
    other = OLD_TUPLE if tuple_kind == NEW_TUPLE else NEW_TUPLE
    for position, column in enumerate(version.version.columns):
        if column.name not in version.version.key_columns:
            continue
        found = [_values(block, each, position) for each in (tuple_kind, other)]
        texts = [
            version.change_casters[position].texts(
                raw.take(pa.array(positions)), _at(forms, positions)
            )
            for raw, forms in found
            if raw is not None
        ]
        yield column.name, pc.coalesce(*texts) if texts else pa.nulls(len(positions), pa.binary())
