"""Takes rows out of the staged batches of a slot: those that wait, and those that were applied.

No file is changed. A file with such rows is written anew beside the old one, without them. Then the batch's
manifest is replaced, and names the new file. It keeps its name and the batch's id, so the lake, a waiting
apply and a replay find the batch as before. The old file is deleted last. After a kill the next erasure goes
on: it deletes files beside staged ones that no manifest names. One erasure works at a time, see ``claim.py``.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.capture.staging.sealed import sealed_batches
from airflow_provider_pgoutput.capture.staging.sealed_copies import delete_seal, find_seals
from airflow_provider_pgoutput.capture.staging.storage_errors import storage_errors
from airflow_provider_pgoutput.capture.staging.writers import open_parquet
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import ConfigurationError, SlotBusy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Manifest, Table
    from airflow_provider_pgoutput.batch.table_version import StagedFile, TableVersion
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.capture.staging.sealed import SealedBatch
    from airflow_provider_pgoutput.capture.staging.sealed_copies import SealedCopy
    from airflow_provider_pgoutput.erasure.claim import ErasureClaim
    from airflow_provider_pgoutput.erasure.rows import AskedTable

log = logging.getLogger(__name__)

_NUMBERS_OF_OPS = {
    staged.INSERT: "inserts",
    staged.UPDATE: "updates",
    staged.DELETE: "deletes",
}


@dataclass(slots=True)
class StagedErasure:
    """What one erasure did in the staging area. No value and no key is in it."""

    #: How many batches were looked at, and how many of them were written anew.
    batches: int = 0
    rewritten: int = 0
    rows: int = 0
    #: Copies of the tables that wait for the rest of their batch, and were given up.
    copies: int = 0
    #: What may still hold the rows, in words.
    remains: list[str] = field(default_factory=list)


def erase_staged(claim: ErasureClaim, asked: Sequence[AskedTable]) -> StagedErasure:
    """Take rows out of all staged files of a slot.

    :raises ConfigurationError: a row has another key, too, which was not given. No staged file was changed
        then.
    :raises BatchRefused: a manifest is damaged. No staged file was changed then.
    :raises SlotBusy: another erasure began, or somebody else replaced a manifest meanwhile.
    """
    area, slot_name = claim.area, claim.slot_name
    sealed = [(each, each.read()) for each in sealed_batches(area, slot_name)]
    of_systems = _of_systems(asked, [manifest for _, manifest in sealed])
    _refuse_moved(area, [manifest for _, manifest in sealed], of_systems)
    result = StagedErasure(batches=len(sealed))
    for each, manifest in sealed:
        batch = _Batch(area, of_systems.get(manifest.system_identifier, {}))
        found = batch.without_rows(manifest)
        if batch.removed:
            reach("erase.after_staged_files")
            if not _replace(claim, each, manifest, found):
                continue
            reach("erase.after_manifest")
            result.rewritten += 1
            result.rows += batch.removed
    oids = frozenset(oid for each in of_systems.values() for oid in each)
    result.copies = _give_up_copies(area, slot_name, oids)
    for oid in oids:
        # A file of one row has the digest of that row. The next verification reads all.
        area.delete_file(layout.kept_digests_path(slot_name, oid))
    claim.check()
    manifests, unnamed = _delete_replaced(area, slot_name)
    _report(area, slot_name, manifests, unnamed, result)
    return result


def _of_systems(
    asked: Sequence[AskedTable], manifests: Sequence[Manifest]
) -> dict[str, dict[int, AskedTable]]:
    """By system and OID: the tables with such rows."""
    found: dict[str, dict[int, AskedTable]] = {}
    for each in asked:
        for system, oids in each.oids_in(manifests).items():
            found.setdefault(system, {}).update(dict.fromkeys(oids, each))
    return found


def _replace(claim: ErasureClaim, sealed: SealedBatch, old: Manifest, new: Manifest) -> bool:
    """Replace a manifest; False: the batch was pruned meanwhile, and so its files are gone."""
    claim.check()
    area = claim.area
    if area.sizes([sealed.path]) == [None]:
        for path in set(new.paths) - set(old.paths):
            area.delete_file(path)
        return False
    if sealed.read() != old:
        raise SlotBusy(
            f"The manifest of the batch at {sealed.uri} was replaced meanwhile.",
            slot=claim.slot_name,
            lsn=sealed.end_lsn,
            advice="run the task again.",
        )
    area.write_whole(sealed.path, new.to_json().encode("ascii"))
    return True


class _Batch:
    """One batch without the rows."""

    def __init__(self, area: StagingArea, by_oid: dict[int, AskedTable]) -> None:
        self._area = area
        self._by_oid = by_oid
        self.removed = 0

    def without_rows(self, manifest: Manifest) -> Manifest:
        """Write the files with such rows anew; return the manifest that names them."""
        system = manifest.system_identifier
        tables = tuple(self._table(each, system) for each in manifest.tables)
        rejected = tuple(
            self._file(each, Counter(), _OfRejected(self._by_oid))
            for each in manifest.rejected_files
        )
        if not self.removed:
            return manifest
        return replace(
            manifest, tables=tables, rejected_files=rejected, sealed_as=manifest.batch_id
        )

    def _table(self, table: Table, system: str) -> Table:
        asked = self._by_oid.get(table.relation_oid)
        if asked is None:
            return table
        gone: Counter[str] = Counter()
        versions = []
        for version in table.versions:
            match = _of_version(asked, table, version, system)
            files = version.files
            if match is not None:
                files = tuple(self._file(each, gone, match) for each in files)
            versions.append(replace(version, files=files))
        counts = replace(
            table.counts,
            **{name: getattr(table.counts, name) - count for name, count in gone.items()},
        )
        return replace(table, versions=tuple(versions), counts=counts)

    def _file(self, file: StagedFile, gone: Counter[str], match: Any) -> StagedFile:
        """The file without such rows; the same file, if it has none."""
        if not _has_matches(self._area, file, match):
            return file
        stem = file.path.removesuffix(".parquet").partition("-erased-")[0]
        path = f"{stem}-erased-{uuid.uuid4().hex[:8]}.parquet"
        rows = 0
        with self._area.open_seekable(file.path) as source, storage_errors("write"):
            reader = parquet.ParquetFile(source)
            schema = reader.schema_arrow.remove_metadata()
            output = self._area.create(path)
            with open_parquet(pa.PythonFile(output, mode="w"), schema) as writer:
                for number in range(reader.num_row_groups):
                    group = reader.read_row_group(number)
                    is_gone = match(group)
                    gone.update(_counts(file, group.filter(is_gone)))
                    left = group.filter(pc.invert(is_gone))
                    rows += left.num_rows
                    if left.num_rows:
                        writer.write_table(left.cast(schema), row_group_size=left.num_rows)
            written = output.finish()
        self.removed += file.rows - rows
        return replace(
            file,
            path=path,
            rows=rows,
            size_bytes=written.size_bytes,
            sha256=written.sha256,
        )


def _counts(file: StagedFile, gone: pa.Table) -> Counter[str]:
    """What rows that go counted in ``Counts``."""
    found: Counter[str] = Counter()
    if file.kind == "copy":
        found["copied"] = gone.num_rows
    if file.kind == "changes":
        for op, count in Counter(gone.column(staged.OP).to_pylist()).items():
            found[_NUMBERS_OF_OPS[op]] += count
        is_update = pc.equal(gone.column(staged.OP), staged.UPDATE)
        has_old = pc.is_valid(gone.column(staged.OLD_KIND))
        found["old_tuples"] = _number(pc.and_(is_update, has_old))
        for name in file.columns:
            if name[0] == "u" and name[1:].isdigit():
                found["unchanged_toast"] += _number(gone.column(name))
    return found


def _number(flags: pa.ChunkedArray) -> int:
    return int(pc.sum(flags).as_py() or 0)


def _groups(area: StagingArea, file: StagedFile, match: Any) -> Iterator[pa.Table]:
    """The row groups of a file, with the columns that a match looks at."""
    with area.open_seekable(file.path) as source, storage_errors("read"):
        reader = parquet.ParquetFile(source)
        columns = [each for each in file.columns if each in match.columns]
        for number in range(reader.num_row_groups):
            yield reader.read_row_group(number, columns=columns)


def _has_matches(area: StagingArea, file: StagedFile, match: Any) -> bool:
    return any(pc.any(match(group)).as_py() for group in _groups(area, file, match))


@dataclass(frozen=True, slots=True)
class _OfVersion:
    """Which rows of a staged file of one version shall go."""

    #: For each row to erase: values by position.
    rows: list[dict[int, pa.Scalar]]

    @property
    def columns(self) -> frozenset[str]:
        names = {staged.OP, staged.OLD_KIND}
        for place in {place for row in self.rows for place in row}:
            names |= {staged.new(place), staged.old(place), staged.unchanged(place)}
        return frozenset(names)

    def __call__(self, group: pa.Table) -> pa.ChunkedArray:
        new, old = self.sides(group)
        return pc.or_(new, old)

    def sides(self, group: pa.Table) -> tuple[Any, Any]:
        """Whether the new and whether the old values of each change are those of a row."""
        return self._matches(group, self._new), self._matches(group, self._old)

    def moved(self, group: pa.Table) -> int:
        """How many updates change one of the values, so that only one side is to be erased."""
        new, old = self.sides(group)
        is_update = pc.equal(group.column(staged.OP), staged.UPDATE)
        has_old = pc.is_valid(group.column(staged.OLD_KIND))
        return _number(pc.and_(pc.and_(is_update, has_old), pc.xor(new, old)))

    def _matches(self, group: pa.Table, values: Any) -> Any:
        found = pa.repeat(pa.scalar(False), group.num_rows)
        for row in self.rows:
            is_row = pa.repeat(pa.scalar(True), group.num_rows)
            for place, value in row.items():
                is_row = pc.and_(is_row, pc.fill_null(pc.equal(values(group, place), value), False))
            found = pc.or_(found, is_row)
        return found

    def _new(self, group: pa.Table, place: int) -> Any:
        new = group.column(staged.new(place))
        if staged.unchanged(place) in group.column_names:
            # An unchanged value is that of the old tuple.
            new = pc.if_else(group.column(staged.unchanged(place)), self._old(group, place), new)
        return new

    def _old(self, group: pa.Table, place: int) -> Any:
        name = staged.old(place)
        if name in group.column_names:
            return group.column(name)
        return pa.nulls(group.num_rows, group.column(staged.new(place)).type)


def _of_version(
    asked: AskedTable, table: Table, version: TableVersion, system: str
) -> _OfVersion | None:
    rows = asked.in_version(version, table.relation_oid, system)
    return None if not rows else _OfVersion(rows)


@dataclass(frozen=True, slots=True)
class _OfRejected:
    """Which rows of a file of rejected values shall go."""

    by_oid: dict[int, AskedTable]
    columns: frozenset[str] = frozenset({"relation_oid", "key"})

    def __call__(self, group: pa.Table) -> pa.Array:
        pairs = zip(
            group.column("relation_oid").to_pylist(), group.column("key").to_pylist(), strict=True
        )
        return pa.array(
            [oid in self.by_oid and self.by_oid[oid].in_key(key) for oid, key in pairs], pa.bool_()
        )


def _refuse_moved(
    area: StagingArea,
    manifests: Sequence[Manifest],
    of_systems: dict[str, dict[int, AskedTable]],
) -> None:
    """Refuse keys that a row had only for a while. Without its other changes the row would not be whole."""
    for manifest in manifests:
        system = manifest.system_identifier
        for table in manifest.tables:
            asked = of_systems.get(system, {}).get(table.relation_oid)
            if asked is None:
                continue
            moved = sum(_moved(area, asked, table, version, system) for version in table.versions)
            if moved:
                raise ConfigurationError(
                    f"{moved} staged changes give one of the rows another key, or come from one, and rows"
                    " does not name that key.",
                    slot=manifest.slot_name,
                    table=asked.name,
                    lsn=manifest.end_lsn,
                    advice="name all keys that the row ever had.",
                )


def _moved(
    area: StagingArea, asked: AskedTable, table: Table, version: TableVersion, system: str
) -> int:
    match = _of_version(asked, table, version, system)
    if match is None:
        return 0
    files = [each for each in version.files if each.kind == "changes"]
    return sum(match.moved(group) for file in files for group in _groups(area, file, match))


def _give_up_copies(area: StagingArea, slot_name: str, oids: Collection[int]) -> int:
    """Delete the seals of copies whose batch is not sealed yet. The next attempt copies these tables again.

    Their files stay: a stage task that works right now may have taken the copy over, and a batch that is
    sealed already may name them. The prune task deletes what no batch names.
    """
    count = 0
    for start, copy in _sealed_copies(area, slot_name):
        if copy.relation_oid in oids:
            delete_seal(area, slot_name, start, copy.relation_oid)
            count += 1
    return count


def _sealed_copies(area: StagingArea, slot_name: str) -> list[tuple[Lsn, SealedCopy]]:
    """Copied tables that wait for the rest of their batch, and where the batch starts."""
    entries = area.entries(layout.copies_folder(slot_name), recursive=True)
    starts = {layout.parse_copy_seal_start(each.path) for each in entries} - {None}
    return [
        (start, copy)
        for start in starts
        if start is not None
        for copy in find_seals(area, slot_name, start)
    ]


def _delete_replaced(area: StagingArea, slot_name: str) -> tuple[list[Manifest], int]:
    """Delete files beside staged ones that no manifest names.

    :return: the manifests as they are now, and how many other files none of them names.
    """
    # The files first: one that comes later may be of a batch that is sealed in between.
    entries = area.entries(layout.data_folder(slot_name), recursive=True)
    copies = [copy for _, copy in _sealed_copies(area, slot_name)]
    manifests = [each.read() for each in sealed_batches(area, slot_name)]
    named = {path for manifest in manifests for path in manifest.paths}
    folders = {path.rpartition("/")[0] for path in named}
    named |= {file.path for copy in copies for file in (*copy.files, *copy.rejected_files)}
    others = 0
    for entry in entries:
        if entry.path in named:
            continue
        if entry.path.rpartition("/")[0] in folders:
            area.delete_file(entry.path)
        else:
            others += 1
    return manifests, others


def _report(
    area: StagingArea,
    slot_name: str,
    manifests: Sequence[Manifest],
    unnamed: int,
    result: StagedErasure,
) -> None:
    if unnamed:
        result.remains.append(
            f"{unnamed} files of attempts that sealed no batch, until the prune task deletes them"
        )
    if prepared := {each.path for manifest in manifests for each in manifest.prepared}:
        result.remains.append(
            f"{len(prepared)} prepared transactions in the form of the stream, until they end and the prune"
            " task deletes their batches"
        )
    if messages := sum(manifest.logical_messages for manifest in manifests):
        result.remains.append(f"{messages} logical messages, which no key belongs to")
    if repairs := len(area.entries(layout.repair_folder(slot_name))):
        result.remains.append(
            f"{repairs} requests for repairs with keys, until they expire and the prune task deletes them"
        )
