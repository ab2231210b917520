"""The digests of a table, of which most are carried over from the last verification.

The source's digest is the sum of the digests of ranges of blocks. A range in which no block changed has the
rows that it had. The lake's digest is the sum of the digests of its files. A file's digest is kept under the
names of the file and of its delete files. A new delete file makes another name, so the file is read again.

A fingerprint covers what else a digest depends on: columns, types, labels of enums, filters, expressions of
generated columns, and the source's files and partitions. VACUUM FULL makes other files, for example. If the
fingerprint changes, everything is read.

A wrong kept digest raises no false alarm: if the sums differ, ``comparison.py`` reads both sides in whole.
Damage that no WAL and no Iceberg commit shows is found only when everything is read.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_pgoutput import __version__
from airflow_provider_pgoutput.proof.changes.kept import KeptDigests
from airflow_provider_pgoutput.proof.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.batch.table_version import Column
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable, Server
    from airflow_provider_pgoutput.proof.changes.kept import DigestStore
    from airflow_provider_pgoutput.proof.changes.summaries import ChangedRanges, WalSummaries
    from airflow_provider_pgoutput.proof.digest import RowHash
    from airflow_provider_pgoutput.proof.lake_rows import LakeRows
    from airflow_provider_pgoutput.proof.source_rows import SourceRows

#: A table is small if no partition of it has so many blocks. It is read in whole: a wait for summaries would
#: take longer.
_LEAST_BLOCKS: Final = 1_024
#: How many blocks a range has at least, and how many ranges a table has at most, when all is read.
_LEAST_OF_RANGE, _MOST_RANGES = 64, 16_384


@dataclass(frozen=True, slots=True)
class Carried:
    """How much a verification read, and how much it carried over."""

    ranges_read: int
    of_ranges: int
    files_read: int
    of_files: int
    #: Why nothing could be carried over; None: something could.
    why_all: str | None = None

    def __str__(self) -> str:
        read = (
            f"{self.ranges_read} of {self.of_ranges} ranges of blocks and {self.files_read} of"
            f" {self.of_files} files read"
        )
        return read if self.why_all is None else f"{read}, because {self.why_all}"

    def to_json(self) -> str:
        """JSON for the column ``carried`` of the record."""
        numbers = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({name: each for name, each in numbers.items() if each is not None})


@dataclass(frozen=True)
class BlockwiseDigests:
    """The sums of both sides, and what is kept if they are equal."""

    row_hash: RowHash
    of_source: Digest
    of_lake: Digest
    carried: Carried
    kept: KeptDigests


@dataclass(frozen=True)
class Blockwise:
    """Makes the digests of the tables of one verification."""

    source: SourceRows
    server: Server
    summaries: WalSummaries
    store: DigestStore
    #: Every so many verifications of a table, all is read.
    full_every: int

    def why_not(self, table: PublishedTable, lake: LakeRows) -> str | None:
        """Why digests of this table are never kept. Example: it is a change log. None: they can be kept."""
        if lake.is_log:
            return "it is a change log"
        storage = self.source.storage(table)
        if not storage.has_blocks:
            return "its blocks cannot be read one by one"
        if self.source.shows_names(table):
            return "it has a column whose text is the name of another object, such as regclass"
        return "it is small" if max(storage.blocks) < _LEAST_BLOCKS else None

    def digests(
        self,
        table: PublishedTable,
        lake: LakeRows,
        columns: Sequence[Column],
        names: Sequence[str],
    ) -> BlockwiseDigests:
        """The digests of a table. Ask ``why_not`` first.

        :param columns: the columns that both sides have.
        :param names: their names in the lake.
        """
        source, server = self.source, self.server
        assert source.since is not None, "it was asked for"
        fingerprint = self._fingerprint(table, lake, columns, names)
        kept = self.store.read(table.relation_oid)
        blocks = max(source.storage(table).blocks)
        why, changed = self._changed(table, kept, fingerprint)
        if kept is None or changed is None:
            size, old = _LEAST_OF_RANGE, tuple[Digest, ...]()
            while size * _MOST_RANGES < blocks:
                size *= 2
            salt, files = secrets.randbits(63), dict[str, Digest]()
            count = -(-blocks // size)
            numbers = list(range(count))
        else:
            # Digests add up only if all have one salt. So it stays until everything is read.
            size, salt, old, files = kept.blocks, kept.salt, kept.ranges, dict(kept.files)
            count = -(-blocks // size)
            numbers = sorted({*changed.among(count), *range(len(old), count)})
        row_hash = source.row_hash(columns, salt)
        read = source.digests_by_block(table, row_hash, size, numbers)
        ranges = tuple(read[number] if number in read else old[number] for number in range(count))
        of_files = lake.digests_by_file(names, row_hash, files)
        new = KeptDigests(
            system_identifier=server.system_identifier,
            timeline=server.timeline,
            lsn=source.lsn,
            since=source.since,
            fingerprint=fingerprint,
            salt=salt,
            carried=0 if kept is None or changed is None else kept.carried + 1,
            blocks=size,
            ranges=ranges,
            files=of_files,
        )
        files_read = len(of_files.keys() - files.keys())
        carried = Carried(len(numbers), count, files_read, len(of_files), why)
        of_source, of_lake = (sum(each, Digest()) for each in (ranges, of_files.values()))
        return BlockwiseDigests(row_hash, of_source, of_lake, carried, new)

    def keep(self, table: PublishedTable, found: BlockwiseDigests) -> None:
        """Keep what was found for the next verification."""
        self.store.write(table.relation_oid, found.kept)

    def forget(self, table: PublishedTable) -> None:
        """Drop what is kept of a table. Then the next verification reads all of it."""
        self.store.drop(table.relation_oid)

    def _changed(
        self, table: PublishedTable, kept: KeptDigests | None, fingerprint: str
    ) -> tuple[str | None, ChangedRanges | None]:
        """Why all is read, or what changed since the last verification."""
        if kept is None:
            return "nothing is kept of an earlier verification", None
        of_server = self.server.system_identifier, self.server.timeline
        if (kept.system_identifier, kept.timeline) != of_server or kept.lsn > self.source.lsn:
            return "the server, or its timeline, is another one", None
        if kept.fingerprint != fingerprint:
            return "the table, its lake table, PostgreSQL or this package changed", None
        if kept.carried + 1 >= self.full_every:
            return "it was the turn of a full verification", None
        nodes = self.source.file_nodes(table)
        found = self.summaries.changed(kept.since, nodes, kept.blocks)
        return (found, None) if isinstance(found, str) else (None, found)

    def _fingerprint(
        self,
        table: PublishedTable,
        lake: LakeRows,
        columns: Sequence[Column],
        names: Sequence[str],
    ) -> str:
        parts = (
            __version__,
            self.server.version,
            self.source.row_hash(columns, 0).expression("t").as_string(),
            table.row_filters,
            self.source.definition(table),
            lake.definition(names),
            lake.masks,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()
