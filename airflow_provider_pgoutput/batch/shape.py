"""The columns of a table at the end of a batch, and what changed them: what the checkpoint keeps.

A column is known by its ``pg_attribute.attnum``, which PostgreSQL never gives to a second column of a
table; its name and type may change. What is not here: finding the numbers out (``capture/schema/``).

Source: https://www.postgresql.org/docs/current/catalog-pg-attribute.html
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import TableVersion

ADDED = "column_added"
DROPPED = "column_dropped"
#: It exists, and the publications no longer name it.
UNPUBLISHED = "column_unpublished"
RENAMED = "column_renamed"
RETYPED = "type_changed"
#: The type has its name, and is another in the lake: attributes of a composite, or a choice of the user's.
REMADE = "lake_type_changed"
KEY = "key_changed"
IDENTITY = "replica_identity_changed"

_WORDS = {
    ADDED: "column {column} was added, {after}",
    DROPPED: "column {column} was dropped",
    UNPUBLISHED: "column {column} is no longer published",
    RENAMED: "column {before} was renamed to {after}",
    RETYPED: "column {column} changed from {before} to {after}",
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

    @classmethod
    def of(
        cls,
        version: TableVersion,
        storage: Storage | None = None,
        highest_number: int | None = None,
    ) -> Shape:
        """The shape of a version."""
        columns = tuple(
            KnownColumn(each.attribute_number, each.name, each.type_name, each.lake_type)
            for each in version.columns
        )
        key, identity = tuple(version.key_columns), version.replica_identity
        return cls(columns, key, identity, storage, highest_number or 0)

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
        return json.dumps(body, ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> Shape | None:
        """Read what ``to_json`` wrote; None when it is something else."""
        try:
            body = json.loads(text)
            columns = tuple(KnownColumn(*each) for each in body["columns"])
            storage = storage_from(body.get("storage"))
            key, identity = tuple(body["key"]), str(body["replica_identity"])
            highest = body.get("highest_number")
            known = highest if type(highest) is int else 0
            return cls(columns, key, identity, storage, known)
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
