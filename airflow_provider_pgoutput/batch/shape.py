"""The columns of a table at the end of a batch, and what changed them: what the checkpoint keeps.

A column is known by its ``pg_attribute.attnum``, which PostgreSQL never gives to a second column of a
table; its name and type may change. What is not here: finding the numbers out (``capture/schema/``).

Source: https://www.postgresql.org/docs/current/catalog-pg-attribute.html
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.type_definition import TypeDefinition

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.table_version import TableVersion

ADDED = "column_added"
DROPPED = "column_dropped"
#: It was there before, and was not in the stream: it was generated, or left out of a column list.
PUBLISHED = "column_published"
#: It exists, and the publications no longer name it.
UNPUBLISHED = "column_unpublished"
RENAMED = "column_renamed"
RETYPED = "type_changed"
#: The type is the same, and has another name or schema.
TYPE_RENAMED = "type_renamed"
#: The type has the name of the one before, and is not that one.
TYPE_REPLACED = "type_replaced"
#: The type is the same, and all values are others, or look otherwise, without a row event.
ALTERED = "column_altered"
#: The type has its name, and is another in the lake: attributes of a composite, or a choice of the user's.
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
    """One difference between two versions of a table, in the order in which they came."""

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
    #: 0: not known, in a lake of an earlier version.
    type_oid: int = 0


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Transactions that may bring values of an altered type in their former look, in a later batch.

    They were open when the type was altered: what they wrote before that, the server sends as it was then.
    """

    #: They have a lower transaction ID, with its epoch.
    below_xid: int
    #: ``attnum`` of the columns of such types.
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Storage:
    """Where the rows of a table lay at one moment; another file says that all of them were written anew.

    What a column holds in rows that are older than itself is kept in the catalog, or was written into all
    rows when it was added: then the table has other files since.

    Source: https://www.postgresql.org/docs/current/catalog-pg-class.html (relnatts, relfilenode)
    """

    #: ``pg_class.relnatts``: the highest number that a column had by then.
    columns: int
    #: OID and ``relfilenode`` of the table, or of each leaf of a partitioned one.
    files: tuple[tuple[int, int], ...]

    def differs(self, earlier: Storage | None = None) -> bool:
        """Whether rows may have been written anew since an earlier moment.

        :param earlier: None: since the table was made, whose file is called as its OID then.
        """
        known = dict(earlier.files) if earlier else {}
        return any(known.get(oid, oid) != file for oid, file in self.files)


@dataclass(frozen=True, slots=True)
class Shape:
    """A table as the last batch left it."""

    columns: tuple[KnownColumn, ...]
    key: tuple[str, ...]
    replica_identity: str
    #: None: not known, in a lake of an earlier version.
    storage: Storage | None = None
    #: A number that a column had, perhaps one that is gone; 0: not known. A column that comes later has a
    #: higher one, which says that it is none of those that the catalog has as dropped up to this.
    highest_number: int = 0
    #: The users' types that its columns are made of; None: not known, in a lake of an earlier version.
    types: tuple[TypeDefinition, ...] | None = None
    unsettled: Unsettled | None = None
    #: Generated columns: ``attnum``, and what stands for the expression; good for comparing only.
    expressions: tuple[tuple[int, int], ...] = ()
    #: Numbers of the columns with ``Column.older_unknown``.
    older_unknown: tuple[int, ...] = ()

    @classmethod
    def of(cls, version: TableVersion) -> Shape:
        """The shape of a version, as far as the version tells it."""
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
        return cls(columns, key, identity, older_unknown=unknown)

    @property
    def types_by_oid(self) -> dict[int, TypeDefinition]:
        """The users' types by OID, as far as they are known."""
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
        return json.dumps(body, ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> Shape | None:
        """Read what ``to_json`` wrote; None when it is something else."""
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
                columns, key, identity, storage, known, types, unsettled, expressions, unknown
            )
        except (ValueError, KeyError, TypeError):
            return None


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
