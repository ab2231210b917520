"""The columns of a table at the end of a batch, and what changed them: what the checkpoint keeps.

A column is known by its ``pg_attribute.attnum``, which PostgreSQL never gives to a second column of a
table; its name and type may change. What is not here: finding the numbers out (``capture/schema/``).

Source: https://www.postgresql.org/docs/current/catalog-pg-attribute.html
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import TableVersion

ADDED = "column_added"
DROPPED = "column_dropped"
#: It exists, and the publications no longer name it.
UNPUBLISHED = "column_unpublished"
RENAMED = "column_renamed"
RETYPED = "type_changed"
KEY = "key_changed"
IDENTITY = "replica_identity_changed"

_WORDS = {
    ADDED: "column {column} was added, {after}",
    DROPPED: "column {column} was dropped",
    UNPUBLISHED: "column {column} is no longer published",
    RENAMED: "column {before} was renamed to {after}",
    RETYPED: "column {column} changed from {before} to {after}",
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
class Shape:
    """A table as the last batch left it."""

    columns: tuple[KnownColumn, ...]
    key: tuple[str, ...]
    replica_identity: str

    @classmethod
    def of(cls, version: TableVersion) -> Shape:
        """The shape of a version."""
        columns = tuple(
            KnownColumn(each.attribute_number, each.name, each.type_name, each.lake_type)
            for each in version.columns
        )
        return cls(columns, tuple(version.key_columns), version.replica_identity)

    def to_json(self) -> str:
        """The text that the checkpoint table keeps."""
        columns = [
            [each.number, each.name, each.type_name, each.lake_type] for each in self.columns
        ]
        body = {"columns": columns, "key": self.key, "replica_identity": self.replica_identity}
        return json.dumps(body, ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> Shape | None:
        """Read what ``to_json`` wrote; None when it is something else."""
        try:
            body = json.loads(text)
            columns = tuple(KnownColumn(*each) for each in body["columns"])
            return cls(columns, tuple(body["key"]), str(body["replica_identity"]))
        except (ValueError, KeyError, TypeError):
            return None
