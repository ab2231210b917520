"""One table of a batch under one set of columns: the columns, its files, and how many changes it had."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

#: ``pg_class.relreplident`` of REPLICA IDENTITY FULL.
FULL = "f"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a relation, as the stream and the catalog describe it."""

    name: str
    type_oid: int
    type_modifier: int
    #: PostgreSQL's own spelling, ``numeric(12,2)``.
    type_name: str
    #: Iceberg's spelling: ``int``, ``decimal(12, 2)``, ``list<string>``, ``map<string, string>``...
    lake_type: str
    #: Whether the relation message flags it as part of the replica identity.
    identity: bool = False
    #: The value that rows which are older than the column show in it, as text. ``ADD COLUMN c int DEFAULT 7``
    #: gives them a 7 without row events (``pg_attribute.attmissingval``). None: NULL. For a list or struct it
    #: is a JSON array, for
    #: a map a JSON object; the values in these are text or null.
    missing_value: str | None = None
    #: ``pg_attribute.attnum``, which stays when the column is renamed. None: not known.
    attribute_number: int | None = None
    #: Whether older rows of the lake may have NULL in it, while the source shows a value that was never sent.
    older_unknown: bool = False
    #: How its values are masked, see ``Mask.recorded`` of ``masks.py``; None: they are not. The type's
    #: name and OID are those of the source.
    mask: str | None = None


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One Parquet file; see ``batch/changes.py`` for its columns."""

    #: ``changes``, ``copy``, ``rejected`` or ``messages``.
    kind: str
    #: Relative to the staging root.
    path: str
    rows: int
    size_bytes: int
    sha256: str
    #: Names of its columns in order.
    columns: tuple[str, ...]
    min_commit_lsn: str | None = None
    max_commit_lsn: str | None = None

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> StagedFile:
        """Read the JSON form.

        :raises TypeError: fields are missing or unknown.
        """
        return cls(**{**body, "columns": tuple(body["columns"])})


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table between two changes of its schema, in the order in which the stream announced them."""

    version: int
    schema_name: str
    table_name: str
    #: ``d`` default, ``n`` nothing, ``f`` full, ``i`` index: ``pg_class.relreplident``.
    replica_identity: str
    columns: tuple[Column, ...]
    #: Names of the columns that identify a row: those of the primary key, of the index of the replica
    #: identity, or the user's choice; empty: the table has no key.
    key_columns: tuple[str, ...]
    files: tuple[StagedFile, ...] = ()
    #: ``attnum`` (0: not known) and name of the columns that a mask leaves out.
    dropped: tuple[tuple[int, str], ...] = ()
    #: The filter that its rows passed, see ``recorded`` of ``filters.py``; None: they passed none.
    row_filter: str | None = None

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> TableVersion:
        """A version out of its JSON form.

        :raises TypeError: when fields are missing or unknown.
        """
        return cls(
            **{
                **body,
                "columns": tuple(Column(**each) for each in body["columns"]),
                "key_columns": tuple(body["key_columns"]),
                "files": tuple(StagedFile.from_body(each) for each in body["files"]),
                "dropped": tuple((number, name) for number, name in body.get("dropped", ())),
            }
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """Row changes of one table in one batch."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    copied: int = 0
    #: Updates with an old tuple. They may have changed the key.
    old_tuples: int = 0
    #: Values left out as unchanged TOAST.
    unchanged_toast: int = 0
    #: Values that did not fit their column. A rejected file has their text.
    rejected: int = 0
    #: NULL values in key columns of copied rows.
    null_keys: int = 0

    def __add__(self, other: Counts) -> Counts:
        names = [each.name for each in dataclasses.fields(self)]
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def changes(self) -> int:
        """Row changes of the stream: inserts, updates, deletes and truncates."""
        return self.inserts + self.updates + self.deletes + self.truncates


def lookup_columns(version: TableVersion) -> tuple[str, ...]:
    """The names of the columns by which a row of the target is found.

    These are the key columns. Without a key, if whole old rows are sent: all columns.
    """
    if version.key_columns or version.replica_identity != FULL:
        return version.key_columns
    return tuple(each.name for each in version.columns)
