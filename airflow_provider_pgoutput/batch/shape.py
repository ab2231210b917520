"""The columns of a table at the end of a batch, and what changed them. The checkpoint keeps both.

A column is known by its ``pg_attribute.attnum``, which PostgreSQL never gives to a second column of the
table. Its name and type may change. ``capture/schema/`` finds out the numbers.

Source: https://www.postgresql.org/docs/current/catalog-pg-attribute.html
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.type_definition import TypeDefinition
from airflow_provider_pgoutput.masks import DROP, MaskedColumn, masks_from

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.table_version import TableVersion

ADDED = "column_added"
DROPPED = "column_dropped"
#: The column was there before, but not in the stream: it was generated, or a column list left it out.
PUBLISHED = "column_published"
#: The column exists, but the publications no longer name it.
UNPUBLISHED = "column_unpublished"
RENAMED = "column_renamed"
RETYPED = "type_changed"
#: The type is the same, and has another name or schema.
TYPE_RENAMED = "type_renamed"
#: Another type, which has the name of the earlier one.
TYPE_REPLACED = "type_replaced"
#: The type is the same, but all values changed, or look different, without a row event.
ALTERED = "column_altered"
#: The type's name is the same, but the lake type is not: attributes of a composite, or a choice of the user.
REMADE = "lake_type_changed"
KEY = "key_changed"
IDENTITY = "replica_identity_changed"

_WORDS = {
    ADDED: "column {column} was added, {after}",
    DROPPED: "column {column} was dropped",
    PUBLISHED: "column {column} is published from now on, {after}",
    UNPUBLISHED: "column {column} is no longer published",
    RENAMED: "column {before} was renamed to {after}",
    RETYPED: "column {column} changed from {before} to {after}",
    TYPE_RENAMED: "the type of column {column} was renamed from {before} to {after}",
    TYPE_REPLACED: "column {column} changed from {before} to another type of that name",
    ALTERED: "column {column} changed in all rows: {after}",
    REMADE: "the lake type of column {column} changed from {before} to {after}",
    KEY: "the key changed from ({before}) to ({after})",
    IDENTITY: "the replica identity changed from {before} to {after}",
}


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One difference between two versions of a table. Differences are in the order in which they happened."""

    #: One of the words above.
    kind: str
    column: str = ""
    before: str = ""
    after: str = ""
    #: ``attnum`` of the column; None: not known.
    attribute_number: int | None = None

    def __str__(self) -> str:
        return _WORDS[self.kind].format(
            column=self.column, before=self.before or "none", after=self.after or "none"
        )


@dataclass(frozen=True, slots=True)
class KnownColumn:
    """A column of a shape."""

    number: int | None
    name: str
    type_name: str
    lake_type: str
    #: 0: not known, as in a lake of an early version.
    type_oid: int = 0


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Transactions that may bring values of an altered type in the form from before, in a later batch.

    They were open when the type was altered. What they wrote before that, the server sends as it was then.
    """

    #: Their transaction IDs, with the epoch, are lower than this.
    below_xid: int
    #: ``attnum`` of the columns of such types.
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Storage:
    """The files of a table at one moment. If there are others later, all of its rows were rewritten.

    ``ALTER TABLE t ADD c int DEFAULT 7``: either the catalog keeps the 7 for older rows, or it was written
    into all rows, and then the table has other files since.

    Source: https://www.postgresql.org/docs/current/catalog-pg-class.html (relnatts, relfilenode)
    """

    #: ``pg_class.relnatts``: the highest number that a column had by then.
    columns: int
    #: OID and ``relfilenode`` of the table, or of each leaf of a partitioned one.
    files: tuple[tuple[int, int], ...]

    def differs(self, earlier: Storage | None = None) -> bool:
        """Whether rows may have been rewritten since an earlier moment.

        :param earlier: None: since the table was made. At that time its file has the table's OID as its name.
        """
        known = dict(earlier.files) if earlier else {}
        return any(known.get(oid, oid) != file for oid, file in self.files)


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a table at the end of the last batch with it."""

    columns: tuple[KnownColumn, ...]
    key: tuple[str, ...]
    replica_identity: str
    #: None: not known, as in a lake of an early version.
    storage: Storage | None = None
    #: The highest number that a column had for sure, perhaps one that is gone; 0: not known. A column that
    #: comes later has a higher number. So a new column is not taken for one that was dropped before.
    highest_number: int = 0
    #: The users' types in its columns; None: not known, as in a lake of an early version.
    types: tuple[TypeDefinition, ...] | None = None
    unsettled: Unsettled | None = None
    #: Generated columns: ``attnum``, and a number that stands for the expression. Only good for comparing.
    expressions: tuple[tuple[int, int], ...] = ()
    #: Numbers of the columns with ``Column.older_unknown``.
    older_unknown: tuple[int, ...] = ()
    #: The masks of its columns, and the columns that a mask leaves out.
    masks: tuple[MaskedColumn, ...] = ()
    #: The filter that its rows passed, see ``TableVersion``.
    row_filter: str | None = None

    @classmethod
    def of(cls, version: TableVersion) -> Shape:
        """The shape of a version, with all that the version knows."""
        columns = tuple(
            KnownColumn(
                each.attribute_number, each.name, each.type_name, each.lake_type, each.type_oid
            )
            for each in version.columns
        )
        unknown = tuple(
            each.attribute_number
            for each in version.columns
            if each.older_unknown and each.attribute_number is not None
        )
        key, identity = tuple(version.key_columns), version.replica_identity
        return cls(
            columns,
            key,
            identity,
            older_unknown=unknown,
            masks=masked_columns(version),
            row_filter=version.row_filter,
        )

    @property
    def types_by_oid(self) -> dict[int, TypeDefinition]:
        """The users' types by OID, if they are known."""
        return {each.oid: each for each in self.types or ()}

    def to_json(self) -> str:
        """The text that the checkpoint table keeps."""
        columns = [
            [each.number, each.name, each.type_name, each.lake_type] for each in self.columns
        ]
        body: dict[str, object] = {
            "columns": columns,
            "key": self.key,
            "replica_identity": self.replica_identity,
        }
        if self.storage is not None:
            body["storage"] = [self.storage.columns, self.storage.files]
        if self.highest_number:
            body["highest_number"] = self.highest_number
        if self.types is not None:
            body["type_oids"] = [each.type_oid for each in self.columns]
            body["types"] = [dataclasses.asdict(each) for each in self.types]
        if self.unsettled is not None:
            body["unsettled"] = dataclasses.asdict(self.unsettled)
        if self.expressions:
            body["expressions"] = self.expressions
        if self.older_unknown:
            body["older_unknown"] = self.older_unknown
        if self.masks:
            body["masks"] = [[each.number, each.name, each.mask] for each in self.masks]
        if self.row_filter is not None:
            body["row_filter"] = self.row_filter
        return json.dumps(body, ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> Shape | None:
        """Read what ``to_json`` wrote; None: it is something else."""
        try:
            body = json.loads(text)
            found = [KnownColumn(*each) for each in body["columns"]]
            type_oids = body.get("type_oids") or [0] * len(found)
            columns = tuple(
                dataclasses.replace(each, type_oid=int(type_oid))
                for each, type_oid in zip(found, type_oids, strict=True)
            )
            storage = storage_from(body.get("storage"))
            key, identity = tuple(body["key"]), str(body["replica_identity"])
            highest = body.get("highest_number")
            known = highest if type(highest) is int else 0
            types, unsettled = types_from(body.get("types")), unsettled_from(body.get("unsettled"))
            expressions = expressions_from(body.get("expressions", ()))
            unknown = tuple(int(each) for each in body.get("older_unknown", ()))
            return cls(
                columns,
                key,
                identity,
                storage,
                known,
                types,
                unsettled,
                expressions,
                unknown,
                masks_from(body.get("masks", ())),
                None if body.get("row_filter") is None else str(body["row_filter"]),
            )
        except (ValueError, KeyError, TypeError):
            return None


def masked_columns(version: TableVersion) -> tuple[MaskedColumn, ...]:
    """The masks of a version, with those of the columns that it leaves out."""
    masked = [
        MaskedColumn(each.attribute_number or 0, each.name, each.mask)
        for each in version.columns
        if each.mask is not None
    ]
    masked += (MaskedColumn(number, name, DROP) for number, name in version.dropped)
    return tuple(sorted(masked, key=lambda each: (each.number, each.name)))


def storage_from(body: Any) -> Storage | None:
    """Read the JSON form: the number of columns, and pairs of OID and file.

    :raises ValueError: it is something else.
    :raises TypeError: the same.
    """
    if body is None:
        return None
    columns, files = body
    return Storage(int(columns), tuple((int(oid), int(file)) for oid, file in files))


def types_from(body: Any) -> tuple[TypeDefinition, ...] | None:
    """Read the JSON form of definitions of types.

    :raises KeyError: it is something else.
    :raises TypeError: the same.
    """
    return None if body is None else tuple(TypeDefinition.from_body(each) for each in body)


def unsettled_from(body: Any) -> Unsettled | None:
    """Read the JSON form.

    :raises KeyError: it is something else.
    :raises TypeError: the same.
    """
    return None if body is None else Unsettled(int(body["below_xid"]), tuple(body["columns"]))


def expressions_from(body: Any) -> tuple[tuple[int, int], ...]:
    """Read the JSON form.

    :raises ValueError: it is something else.
    :raises TypeError: the same.
    """
    return tuple((int(number), int(mark)) for number, mark in body)
