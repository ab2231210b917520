"""The manifest of a sealed batch. Capture writes it last; apply checks it before it reads a row.

A batch is all transactions with ``start_lsn <= commit LSN < end_lsn``. It exists once its manifest exists.
The JSON has names, counts, schemas, sizes and checksums, but never a row's value or a credential. Capture and
apply read and write the file, each in its own way.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.earlier_systems import (
    EarlierSystem,
    EarlierTable,
    EarlierTimeline,
    Systems,
)
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.membership import (
    PublicationVersion,
    PublishedSet,
    TableMembership,
)
from airflow_provider_pgoutput.batch.passed_over import PassedOver, RefusedCopy, first_lsn
from airflow_provider_pgoutput.batch.shape import (
    SchemaChange,
    Shape,
    Storage,
    Unsettled,
    expressions_from,
    storage_from,
    types_from,
    unsettled_from,
)
from airflow_provider_pgoutput.batch.table_version import Column, Counts, StagedFile, TableVersion
from airflow_provider_pgoutput.errors import BatchRefused, ConfigurationError
from airflow_provider_pgoutput.garbage import no_garbage_collection

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

    from airflow_provider_pgoutput.batch.type_definition import TypeDefinition


FORMAT_VERSION = 1


#: Fields that later versions added. With such a value a field is not part of the batch id, so the ids of
#: older batches stay.
_LATER_FIELDS = {
    "attribute_number": None,
    "schema_changes": (),
    "records_columns": False,
    "loaded_lsn": None,
    "skipped": (),
    "passed_over": (),
    "refused_copies": (),
    "adopted_from": (),
    "earlier_timelines": (),
    "is_gone": False,
    "is_difference": False,
    "earlier": None,
    "until_lsn": None,
    "older_unknown": False,
    "error": "",
    "advice": "",
    "null_keys": 0,
    "mask": None,
    "dropped": (),
    "row_filter": None,
    "copy_time": None,
    "sealed_as": None,
}


#: Fields that are not part of the batch id: they say where something lies, who staged it, or what was before.
_NO_CONTENT = frozenset(
    {
        "path",
        "storage",
        "highest_number",
        "types",
        "unsettled",
        "expressions",
        "timeline",
        "earlier_timelines",
        "database",
        "publication_names",
        "transactions",
        "last_commit_time",
        "complete_until",
        "published",
        "created_by",
        "_content_id",
    }
)


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a batch."""

    relation_oid: int
    #: Names at the end of the batch.
    schema_name: str
    table_name: str
    versions: tuple[TableVersion, ...]
    counts: Counts = field(default_factory=Counts)
    #: The LSN at which the rows of the ``copy`` files were read. They replace the table's rows, and include
    #: all changes with a commit LSN before it. None: the batch has no copy of the table.
    copy_lsn: str | None = None
    #: Changes since the last batch with the table, in order.
    schema_changes: tuple[SchemaChange, ...] = ()
    #: Whether the columns at the end of the batch differ from those in the checkpoint.
    records_columns: bool = False
    #: The table's files when the batch was sealed, or earlier; None: not known, as in manifests of version
    #: 0.1.
    storage: Storage | None = None
    #: See ``Shape``; None: not known, as in manifests of version 0.1.
    highest_number: int | None = None
    #: The users' types in its columns when the batch was sealed; None: not known, as in manifests of version
    #: 0.1.
    types: tuple[TypeDefinition, ...] | None = None
    unsettled: Unsettled | None = None
    expressions: tuple[tuple[int, int], ...] = ()
    #: Whether the table was dropped, or left the publications, before the batch was sealed.
    is_gone: bool = False
    #: Changes with a commit LSN at or past it are passed over, see ``passed_over.py``; None: none are.
    until_lsn: str | None = None
    #: Whether the table was compared with the lake after a lost slot, or for a new source. Then the batch has
    #: the rows that differed, perhaps none, in place of the changes between its start and the new slot.
    is_difference: bool = False
    #: Of a table that was compared for a new source on which it has another OID. None: it has the same OID,
    #: or the source is the same.
    earlier: EarlierTable | None = None
    #: The source's time right after ``copy_lsn``, ISO 8601 in UTC. None: there is no copy, or the time is not
    #: known, as in manifests of version 0.1.
    copy_time: str | None = None

    @property
    def name(self) -> str:
        """``schema.table``, for messages. It is never parsed."""
        return f"{self.schema_name}.{self.table_name}"

    def until(self, lsn: Lsn) -> Table | None:
        """The table with its copy and the changes that committed before ``lsn``; None: neither exists.

        Its counts do not change.
        """
        versions = list(self.versions)
        # The copied rows have the first version, even if there are none.
        least = 0 if self.copy_lsn is None else 1
        while len(versions) > least:
            first = first_lsn(versions[-1:])
            if first is not None and first < lsn:
                break
            versions.pop()
        if not versions:
            return None
        return dataclasses.replace(self, versions=tuple(versions), until_lsn=str(lsn))

    @property
    def shape(self) -> Shape:
        """The shape at the end of the batch, which the checkpoint keeps."""
        return dataclasses.replace(
            Shape.of(self.versions[-1]),
            storage=self.storage,
            highest_number=self.highest_number or 0,
            types=self.types,
            unsettled=self.unsettled,
            expressions=self.expressions,
        )


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction that is prepared at the end of the batch: neither committed nor rolled back.

    A file, perhaps of an earlier batch, holds its content. No table has any of it yet.
    """

    #: The name that a user gave it. It is data, and never part of a path or of SQL.
    gid: str
    xid: int
    prepare_lsn: str
    end_lsn: str
    #: Microseconds since 2000-01-01 UTC.
    prepared_at_us: int
    #: An Arrow IPC stream with one binary column: its messages in the form of protocol version 1. Relative to
    #: the staging root.
    path: str
    messages: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SkippedTransaction:
    """A transaction of the range that the batch leaves out on request."""

    commit_lsn: str
    #: Number of row changes that were left out.
    changes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A sealed batch."""

    slot_name: str
    system_identifier: str
    timeline: int
    database: str
    publication_names: tuple[str, ...]
    start_lsn: Lsn
    end_lsn: Lsn
    tables: tuple[Table, ...]
    transactions: int = 0
    #: Commit time of the last transaction, ISO 8601 in UTC.
    last_commit_time: str | None = None
    #: A lake with the batch has every transaction that had committed by then, by the source's clock. ISO 8601
    #: in UTC. None: it is not known, as in manifests of version 0.1.
    complete_until: str | None = None
    rejected_files: tuple[StagedFile, ...] = ()
    #: Only of slots that are read with ``messages``.
    message_files: tuple[StagedFile, ...] = ()
    #: Only of slots that are read with ``two_phase``.
    prepared: tuple[PreparedTransaction, ...] = ()
    #: Tables of the lake may have rows that were loaded from outside: all changes before this LSN, and
    #: perhaps some after it. None: rows that the pipeline did not write are refused. Not in manifests of
    #: version 0.1.
    loaded_lsn: str | None = None
    #: What was published when the run began. None: not recorded, as in manifests of version 0.1.
    published: PublishedSet | None = None
    #: Not in manifests of version 0.1.
    skipped: tuple[SkippedTransaction, ...] = ()
    #: Not in manifests of version 0.1.
    passed_over: tuple[PassedOver, ...] = ()
    #: Not in manifests of version 0.1.
    refused_copies: tuple[RefusedCopy, ...] = ()
    #: The systems from which the lake was filled before this one, the oldest first. Not in manifests of
    #: version 0.1.
    adopted_from: tuple[EarlierSystem, ...] = ()
    #: The timelines of the source before ``timeline``, as far as a table may have a batch of one that the
    #: checkpoint lacks. Not in manifests of version 0.1.
    earlier_timelines: tuple[EarlierTimeline, ...] = ()
    created_by: str = ""
    #: The id with which the batch was sealed, if rows were erased from its files since. Not in manifests of
    #: version 0.1.
    sealed_as: str | None = None
    #: The value of ``content_id``. It is kept, because it is asked for often and takes time in a large
    #: manifest.
    _content_id: str = field(default="", init=False, repr=False, compare=False)

    @property
    def batch_id(self) -> str:
        """The name of the batch, made of its content when it was sealed.

        An erasure of rows does not change it. The lake, paths and XCom name the batch by it.
        """
        return self.sealed_as or self.content_id

    @property
    def content_id(self) -> str:
        """A name for the content: the same range with the same files and schemas has the same id.

        Where the files lie and who staged them does not count.
        """
        if not self._content_id:
            digest = hashlib.sha256(_joined(_content(self), _ID_ENCODER).encode())
            object.__setattr__(self, "_content_id", digest.hexdigest())
        return self._content_id

    @property
    def systems(self) -> Systems:
        """The system that it was read from, and those before it."""
        return Systems(self.system_identifier, self.adopted_from)

    @property
    def adopts(self) -> bool:
        """Whether the system becomes the source of the lake with this batch."""
        return self.start_lsn == self.systems.adopted_at

    @property
    def changed_tables(self) -> tuple[Table, ...]:
        """The tables that it changes or copies. Of some others it only says that they did not differ."""
        return tuple(
            each for each in self.tables if not each.is_difference or each.counts != Counts()
        )

    @property
    def changes(self) -> int:
        """Number of row changes of all tables. Copied rows do not count."""
        return sum(table.counts.changes for table in self.tables)

    def skips(self, commit_lsns: Collection[Lsn]) -> bool:
        """Whether the batch leaves out all transactions that commit at these LSNs inside its range.

        A batch that only copies has no transactions, so it does.
        """
        if not self.transactions and not self.message_files:
            return True
        left_out = {each.commit_lsn for each in self.skipped}
        within = [lsn for lsn in commit_lsns if self.start_lsn <= lsn < self.end_lsn]
        return all(str(lsn) in left_out for lsn in within)

    @property
    def answered_copies(self) -> frozenset[str]:
        """Names of the tables that it copies, and of those whose copy was asked for and refused."""
        copied = {table.name for table in self.tables if table.copy_lsn is not None}
        return frozenset(copied | {each.table_name for each in self.refused_copies})

    @property
    def path(self) -> str:
        """Path of the manifest, relative to the staging root."""
        return layout.manifest_path(self.slot_name, self.start_lsn, self.end_lsn, self.batch_id)

    def uri(self, staging_uri: str) -> str:
        """Where the manifest of this batch lies in a staging area."""
        return layout.join(staging_uri, self.path)

    @property
    def is_empty(self) -> bool:
        """Whether it changes no table of the lake, and only moves the checkpoint."""
        return not (self.tables or self.rejected_files or self.message_files or self.passed_over)

    @property
    def logical_messages(self) -> int:
        """Number of logical messages. They belong to no table."""
        return sum(file.rows for file in self.message_files)

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of all files, including those of prepared transactions that an earlier batch wrote."""
        return tuple(each.path for each in self._files)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each of ``paths``."""
        return tuple(each.size_bytes for each in self._files)

    @property
    def _files(self) -> list[StagedFile | PreparedTransaction]:
        files: list[StagedFile | PreparedTransaction] = [
            file for table in self.tables for each in table.versions for file in each.files
        ]
        return [*files, *self.rejected_files, *self.message_files, *self.prepared]

    def to_json(self) -> str:
        """The manifest as the text of its file: a line for each field, and a line for each table."""
        body: dict[str, Any] = {"format_version": FORMAT_VERSION, "batch_id": self.batch_id}
        body |= _fields(self)
        del body["_content_id"]
        if self.sealed_as is None:
            del body["sealed_as"]
        else:
            body["content_id"] = self.content_id
        body["start_lsn"], body["end_lsn"] = str(self.start_lsn), str(self.end_lsn)
        return _joined(body, _FILE_ENCODER, edge="\n")

    @classmethod
    @no_garbage_collection()
    def from_json(cls, text: str | bytes) -> Manifest:
        """Parse and check a manifest.

        A newer version of the package may have written fields that this one does not know. They are left
        out. The batch id says whether one of them was part of what the batch holds.

        :raises BatchRefused: it is not a manifest, has a newer format, or was altered.
        """
        try:
            body = json.loads(text)
            found = body.pop("format_version")
            batch_id = body.pop("batch_id")
            content_id = body.pop("content_id", batch_id)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise BatchRefused("This file is not a manifest of a batch.") from error
        if found != FORMAT_VERSION:
            raise BatchRefused(
                f"The manifest has format {found!r}; this version reads format {FORMAT_VERSION}.",
                advice="use the version of the package that staged the batch, or a newer one.",
            )
        known = body
        try:
            try:
                manifest = _manifest(body)
            except TypeError:
                # To look at each field takes time in a large manifest, and hardly one has any.
                known = _known_fields(Manifest, body)
                manifest = _manifest(known)
        except (KeyError, TypeError, ValueError, AttributeError, ConfigurationError) as error:
            raise BatchRefused("The manifest lacks a field or has one of another type.") from error
        if (manifest.batch_id, manifest.content_id) != (batch_id, content_id):
            if known != body:
                raise BatchRefused(
                    "A newer version of the package staged the batch, and this version does not know all"
                    " that the batch holds.",
                    slot=manifest.slot_name,
                    advice="use the version of the package that staged the batch, or a newer one.",
                )
            raise BatchRefused(
                "The manifest was altered: its batch id does not follow from its content.",
                slot=manifest.slot_name,
            )
        return manifest


@functools.cache
def _field_names(kind: Hashable) -> tuple[str, ...]:
    """Names of the fields of a dataclass."""
    return tuple(each.name for each in dataclasses.fields(kind))  # type: ignore[arg-type]


@functools.cache
def _content_names(kind: Hashable) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the fields that the batch id is made of, in order, and the later ones among them."""
    names = tuple(name for name in sorted(_field_names(kind)) if name not in _NO_CONTENT)
    return names, tuple(name for name in names if name in _LATER_FIELDS)


def _fields(value: Any) -> dict[str, Any]:
    """All fields of a dataclass."""
    return {name: getattr(value, name) for name in _field_names(value.__class__)}


def _content(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that the batch id is made of: no paths, no later field with its default."""
    names, later = _content_names(value.__class__)
    content = {name: getattr(value, name) for name in names}
    for name in later:
        if content[name] == _LATER_FIELDS[name]:
            del content[name]
    return content


# An encoder calls ``default`` for each dataclass that it meets. Without an indent, json encodes in C. Frozen
# values hold no circle, so nobody looks for one.
_FILE_ENCODER = json.JSONEncoder(default=_fields, check_circular=False)
_ID_ENCODER = json.JSONEncoder(default=_content, check_circular=False)


def _joined(body: dict[str, Any], encoder: json.JSONEncoder, edge: str = "") -> str:
    """The JSON text of a manifest's fields, ``tables`` last.

    Each table is encoded by itself. To encode all at once takes nearly twice as long.

    :param edge: what stands between a bracket and the values in it; with a line feed, each has its line.
    """
    comma = f",{edge or ' '}"
    texts = {name: encoder.encode(value) for name, value in body.items() if name != "tables"}
    tables = comma.join(map(encoder.encode, body["tables"]))
    texts["tables"] = f"[{edge}{tables}{edge}]"
    members = comma.join(f'"{name}": {text}' for name, text in texts.items())
    return f"{{{edge}{members}{edge}}}"


#: Which field holds what, where a later version may add fields.
_PARTS: dict[type, dict[str, type]] = {
    Manifest: {
        "tables": Table,
        "rejected_files": StagedFile,
        "message_files": StagedFile,
        "prepared": PreparedTransaction,
        "skipped": SkippedTransaction,
        "passed_over": PassedOver,
        "refused_copies": RefusedCopy,
        "adopted_from": EarlierSystem,
        "earlier_timelines": EarlierTimeline,
        "published": PublishedSet,
    },
    Table: {
        "versions": TableVersion,
        "counts": Counts,
        "schema_changes": SchemaChange,
        "earlier": EarlierTable,
    },
    TableVersion: {"columns": Column, "files": StagedFile},
    PublishedSet: {"publications": PublicationVersion, "tables": TableMembership},
}


def _known_fields(kind: type, body: Any) -> Any:
    """The JSON form of a part of a manifest without the fields that this version does not know."""
    if isinstance(body, list):
        return [_known_fields(kind, each) for each in body]
    if not isinstance(body, dict):
        return body
    parts = _PARTS.get(kind, {})
    return {
        name: _known_fields(parts[name], value) if name in parts else value
        for name, value in body.items()
        if name in _known_names(kind)
    }


@functools.cache
def _known_names(kind: type) -> frozenset[str]:
    return frozenset(_field_names(kind)) - {"_content_id"}


def _manifest(body: dict[str, Any]) -> Manifest:
    return Manifest(
        **{
            **body,
            "start_lsn": Lsn.parse(body["start_lsn"]),
            "end_lsn": Lsn.parse(body["end_lsn"]),
            "publication_names": tuple(body["publication_names"]),
            "tables": tuple(_table(each) for each in body["tables"]),
            "rejected_files": tuple(StagedFile.from_body(each) for each in body["rejected_files"]),
            "message_files": tuple(StagedFile.from_body(each) for each in body["message_files"]),
            "published": PublishedSet.from_body(body.get("published")),
            "prepared": tuple(PreparedTransaction(**each) for each in body["prepared"]),
            "skipped": tuple(SkippedTransaction(**each) for each in body.get("skipped", ())),
            "passed_over": tuple(PassedOver(**each) for each in body.get("passed_over", ())),
            "refused_copies": tuple(RefusedCopy(**each) for each in body.get("refused_copies", ())),
            "adopted_from": tuple(EarlierSystem(**each) for each in body.get("adopted_from", ())),
            "earlier_timelines": tuple(
                EarlierTimeline(**each) for each in body.get("earlier_timelines", ())
            ),
        }
    )


def _table(body: dict[str, Any]) -> Table:
    storage = body.get("storage")
    return Table(
        **{
            **body,
            "versions": tuple(TableVersion.from_body(each) for each in body["versions"]),
            "counts": Counts(**body["counts"]),
            "schema_changes": tuple(
                SchemaChange(**each) for each in body.get("schema_changes", ())
            ),
            "storage": storage and storage_from((storage["columns"], storage["files"])),
            "types": types_from(body.get("types")),
            "unsettled": unsettled_from(body.get("unsettled")),
            "expressions": expressions_from(body.get("expressions", ())),
            "earlier": EarlierTable.from_body(body.get("earlier")),
        }
    )
