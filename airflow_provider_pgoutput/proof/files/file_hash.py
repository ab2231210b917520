"""How the rows of a file of the lake are hashed. The digest of a table is the sum of those of its files.

So the files can be hashed in any order and at any place. The worker hashes them one after the other. Another
engine hashes many at the same time: it gets a ``HashJob`` and answers ``HashedFiles``. ``spark_proof/`` is
such an engine. Both call ``FileHash.of_rows``, so they get the same number for the same rows.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow.compute as pc

from airflow_provider_pgoutput.batch.changes import DELETE, OP, metadata
from airflow_provider_pgoutput.proof.digest import ROWS_AT_ONCE, Digest, RowHash
from airflow_provider_pgoutput.proof.key_ranges import KeyRanges
from airflow_provider_pgoutput.proof.ranges import Ranges
from airflow_provider_pgoutput.proof.share import HashPart, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.table import Table

    from airflow_provider_pgoutput.proof.key_ranges import Part

OP_COLUMN: Final = metadata(OP)
#: Name of the answer's file in the folder that both sides share.
ANSWER_FILE: Final = "answer.json"
#: What pyiceberg needs to open files. Other properties are the catalog's, such as its password.
_OF_STORE: Final = ("py-io-impl", "s3.", "gcs.", "adls.", "hdfs.", "hf.", "client.")


@dataclass(frozen=True)
class FileHash:
    """Which rows of a file count, and how they are hashed."""

    #: The fields of the lake that are hashed, in the order of the columns of ``row_hash``.
    names: tuple[str, ...]
    row_hash: RowHash
    #: The field that marks rows which the source does not have any more, see ``without_past``. None: there is
    #: no such field, because the source has all rows.
    mark: str | None = None
    #: Each range gets its digest; None: all rows are one range.
    ranges: KeyRanges | None = None
    #: Only rows of this part count; None: all of them, or those in ``ranges``.
    hash_part: HashPart | None = None
    #: Only rows with these texts in these fields count, see ``slices.py``; empty: all.
    own: tuple[tuple[str, str], ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that are read."""
        return self.names if self.mark is None else (*self.names, self.mark)

    @property
    def part(self) -> Part | None:
        """The rows that are read; None: all."""
        if self.ranges is not None and not self.ranges.is_unbounded:
            return self.ranges.whole
        return self.hash_part

    @property
    def empty(self) -> Ranges:
        """The digests of no rows."""
        return Ranges.empty(1 if self.ranges is None else self.ranges.count)

    def of_rows(self, batches: Iterable[pa.RecordBatch]) -> Ranges:
        """The digests of rows.

        :param batches: rows of ``part`` with the columns ``names``, as ``current`` gives them.
        """
        if self.ranges is None:
            digest = sum(map(self.row_hash.digest, batches), Digest())
            return Ranges.of(digest)
        found, position = self.empty, self.row_hash.names.index(self.ranges.column)
        for rows in batches:
            numbers = self.ranges.numbers(rows.column(position))
            for begin in range(0, rows.num_rows, ROWS_AT_ONCE):
                some = rows.slice(begin, ROWS_AT_ONCE)
                found.add(
                    numbers[begin : begin + ROWS_AT_ONCE], self.row_hash.of_rows(some.columns)
                )
        return found

    def current(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that the source is said to have, with the columns ``names``."""
        return without_past(rows, self.mark).select(list(self.names))

    def to_body(self) -> dict[str, Any]:
        """The form in JSON."""
        part, ranges = self.hash_part, self.ranges
        return {
            "names": self.names,
            "row_hash": self.row_hash.to_body(),
            "mark": self.mark,
            "own": self.own,
            "ranges": None if ranges is None else dataclasses.asdict(ranges),
            "hash_part": part
            and {
                "key_hash": part.key_hash.to_body(),
                "in_lake": list(part.in_lake),
                "turn": dataclasses.asdict(part.turn),
            },
        }

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> FileHash:
        """What ``to_body`` described."""
        part, ranges = body["hash_part"], body["ranges"]
        return cls(
            names=tuple(body["names"]),
            row_hash=RowHash.from_body(body["row_hash"]),
            mark=body["mark"],
            own=tuple((name, text) for name, text in body["own"]),
            ranges=None if ranges is None else KeyRanges(**ranges),
            hash_part=None
            if part is None
            else HashPart(
                RowHash.from_body(part["key_hash"]), part["in_lake"], Turn(**part["turn"])
            ),
        )


def without_past(rows: pa.RecordBatch, mark: str | None = None) -> pa.RecordBatch:
    """The rows that the source still has, as the lake says.

    :param mark: see ``FileHash``. Of soft delete it is ``_pgoutput_op``, of a history
        ``_pgoutput_is_current``.
    """
    if mark == OP_COLUMN:
        return rows.filter(pc.fill_null(pc.not_equal(rows.column(mark), DELETE), True))
    return rows if mark is None else rows.filter(pc.fill_null(rows.column(mark), False))


@dataclass(frozen=True)
class HashJob:
    """Files of one snapshot that another engine hashes."""

    #: ``namespace.table``.
    target: str
    #: The table's metadata with this snapshot alone, as JSON.
    metadata: str
    metadata_location: str
    snapshot_id: int
    #: Which files, by ``LakeFiles.named``.
    files: tuple[str, ...]
    what: FileHash
    #: The version of pyiceberg that planned the files.
    pyiceberg: str
    #: How the store is opened. There may be a password in it.
    store: Mapping[str, str] = field(repr=False, default_factory=dict)

    @classmethod
    def of(
        cls, table: Table, target: str, snapshot_id: int, files: Sequence[str], what: FileHash
    ) -> HashJob:
        """The job for some files of a snapshot."""
        import pyiceberg  # noqa: PLC0415 - it takes a second

        snapshot = table.snapshot_by_id(snapshot_id)
        assert snapshot is not None, "its files were planned"
        alone = table.metadata.model_copy(
            update={
                "snapshots": [snapshot],
                "current_snapshot_id": snapshot_id,
                "refs": {},
                "snapshot_log": [],
                "metadata_log": [],
            }
        )
        store = {name: value for name, value in table.io.properties.items() if _is_of_store(name)}
        return cls(
            target,
            alone.model_dump_json(),
            table.metadata_location,
            snapshot_id,
            tuple(files),
            what,
            pyiceberg.__version__,
            store,
        )

    def table(self, store: Mapping[str, str] | None = None) -> Table:
        """The table without its catalog. Only its snapshot can be read.

        :param store: how the store is opened; None: as the job says.
        """
        from pyiceberg.catalog.noop import NoopCatalog  # noqa: PLC0415
        from pyiceberg.io import load_file_io  # noqa: PLC0415
        from pyiceberg.table import Table  # noqa: PLC0415
        from pyiceberg.table.metadata import TableMetadataUtil  # noqa: PLC0415

        return Table(
            tuple(self.target.split(".")),
            TableMetadataUtil.parse_raw(self.metadata),
            self.metadata_location,
            load_file_io(dict(self.store if store is None else store), self.metadata_location),
            NoopCatalog("none"),
        )

    def to_json(self) -> str:
        """The job as text. There may be the store's password in it."""
        return json.dumps({**self.__dict__, "what": self.what.to_body()})

    @classmethod
    def from_json(cls, text: str) -> HashJob:
        """Read the job's text. Both sides have the same version of the package."""
        body = json.loads(text)
        body |= {"what": FileHash.from_body(body["what"]), "files": tuple(body["files"])}
        return cls(**body)


@dataclass(frozen=True)
class HashedFiles:
    """The digests of files."""

    #: Of each file, by its name.
    files: Mapping[str, Digest]
    #: Of all files together.
    ranges: Ranges

    def to_json(self) -> str:
        """The digests as text."""
        ranges = self.ranges
        body = {
            "files": {name: [each.rows, each.total] for name, each in self.files.items()},
            "rows": ranges.rows.tolist(),
            "totals": ranges.totals.tolist(),
        }
        return json.dumps(body)

    @classmethod
    def from_json(cls, text: str) -> HashedFiles:
        """Read the text of the digests."""
        body = json.loads(text)
        files = {name: Digest(*each) for name, each in body["files"].items()}
        return cls(files, Ranges.of_lists(body["rows"], body["totals"]))


class FileNotRead(Exception):
    """A file could not be read by the engine. The cause is one of our errors."""

    def __init__(self, file: str) -> None:
        super().__init__()
        #: Its name.
        self.file = file


class HashEngine(Protocol):
    """Hashes the files of large tables in other processes."""

    @property
    def least_bytes(self) -> int:
        """How many bytes of files are worth a job."""
        ...

    def hashed(self, job: HashJob) -> HashedFiles:
        """Hash the files of a job.

        :raises FileNotRead: a file cannot be read there. Its cause says why.
        :raises SparkFailed: the job failed for another reason.
        """
        ...


def _is_of_store(name: str) -> bool:
    return name.startswith(_OF_STORE)
