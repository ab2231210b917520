"""An Iceberg catalog in memory, behind the part of the Java API that ``apply/iceberg/table.py`` calls.

A table is one metadata object: snapshots, references, properties. A commit replaces it if it is still the one
that the change was made on, else it is refused: compare-and-swap. As in Iceberg, changes of references are
not repeated on newer metadata, row commits are; a row commit to a branch that is gone makes it again from
main. Rows hang on snapshots as Python values. What is not here: schemas, files, expiry by age.
Source: https://iceberg.apache.org/spec/#table-metadata
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tests.simulation.java import JavaError, JavaList, JavaMap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.simulation.world import World

MAIN = "main"
_ILLEGAL = "java.lang.IllegalArgumentException"


@dataclass(frozen=True)
class Snapshot:
    """A state of the rows; the methods are Java's."""

    id: int
    parent: int | None
    keys: Mapping[str, str]
    rows: Any

    def snapshotId(self) -> int:  # noqa: N802 - Java's name
        return self.id

    def parentId(self) -> int | None:  # noqa: N802 - Java's name
        return self.parent

    def sequenceNumber(self) -> int:  # noqa: N802 - Java's name
        return self.id

    def summary(self) -> Mapping[str, str]:
        return {**self.keys, "total-records": str(len(self.rows or ()))}

    def dataManifests(self, _io: None) -> JavaList:  # noqa: N802 - Java's name
        assert not self.rows, "asked where the summary counts no rows"
        return JavaList(())

    def timestampMillis(self) -> int:  # noqa: N802 - Java's name
        return int(time.time() * 1000)


@dataclass(frozen=True)
class Reference:
    """A branch or a tag."""

    id: int
    branch: bool

    def snapshotId(self) -> int:  # noqa: N802 - Java's name
        return self.id

    def isBranch(self) -> bool:  # noqa: N802 - Java's name
        return self.branch


@dataclass(frozen=True)
class Metadata:
    """A table at one moment."""

    snapshots: Mapping[int, Snapshot] = field(default_factory=dict)
    refs: Mapping[str, Reference] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def main(self) -> Snapshot | None:
        """The head of main."""
        return self.snapshots[self.refs[MAIN].id] if MAIN in self.refs else None

    def with_snapshot(self, branch: str, snapshot: Snapshot) -> Metadata:
        """Add a snapshot as the head of a branch."""
        return replace(
            self,
            snapshots={**self.snapshots, snapshot.id: snapshot},
            refs={**self.refs, branch: Reference(snapshot.id, True)},
        )

    def ancestors(self, snapshot_id: int | None) -> list[Snapshot]:
        """A snapshot and what is left of those before it, the newest first."""
        found = []
        while snapshot_id is not None and snapshot_id in self.snapshots:
            found.append(self.snapshots[snapshot_id])
            snapshot_id = found[-1].parent
        return found


class Catalog:
    """All tables by their quoted names."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tables: dict[str, Metadata] = {}
        self._last_id = 0

    def load(self, _session: Any, name: str) -> JavaTable:
        """``Spark3Util.loadIcebergTable``."""
        self.world.step(f"load {name}")
        return JavaTable(self, name)

    def create(self, name: str, properties: Mapping[str, str]) -> None:
        """CREATE TABLE IF NOT EXISTS."""
        with self.world.write(f"create {name}", "catalog"):
            self.tables.setdefault(name, Metadata(properties=dict(properties)))

    def swap(self, name: str, base: Metadata, new: Metadata, what: str) -> None:
        """Commit, unless somebody else has since ``base`` was read."""
        with self.world.write(f"{what} {name}", "catalog"):
            if self.tables.get(name) is not base:
                raise JavaError("org.apache.iceberg.exceptions.CommitFailedException")
            self.tables[name] = new

    def commit_rows(
        self,
        name: str,
        branch: str,
        change: Callable[[Any], Any],
        keys: Mapping[str, str],
        what: str = "write",
    ) -> None:
        """Commit rows on top of whatever the branch holds now."""
        with self.world.write(f"{what} {name} {branch[:8]}", "catalog"):
            found = self.tables[name]
            reference = found.refs.get(branch) or found.refs.get(MAIN)
            parent = None if reference is None else found.snapshots[reference.id]
            rows = change(None if parent is None else parent.rows)
            snapshot = self.snapshot(parent.id if parent else None, keys, rows)
            self.tables[name] = found.with_snapshot(branch, snapshot)

    def snapshot(self, parent: int | None, keys: Mapping[str, str], rows: Any) -> Snapshot:
        """A new snapshot."""
        self._last_id += 1
        return Snapshot(self._last_id, parent, dict(keys), rows)

    def set_property(self, name: str, key: str, value: str | None) -> None:
        """Set a property of a table; None: remove it."""
        found = self.tables.get(name)
        if found is not None:
            kept = {k: v for k, v in found.properties.items() if k != key}
            self.tables[name] = replace(
                found, properties=kept if value is None else {**kept, key: value}
            )

    # Other writers. They are one step each: what they do is never repeated in part.

    def compact(self, name: str) -> None:
        """Rewrite main's files: the same rows in a snapshot that has none of our keys."""
        found = self.tables.get(name)
        if found is not None and found.main is not None:
            main = found.main
            self.tables[name] = found.with_snapshot(MAIN, self.snapshot(main.id, {}, main.rows))

    def delete_row(self, name: str, key: int) -> bool:
        """Delete a row of a table with a key; whether there was one."""
        found = self.tables.get(name)
        if found is None or found.main is None or key not in (found.main.rows or {}):
            return False
        rows = {k: v for k, v in found.main.rows.items() if k != key}
        self.tables[name] = found.with_snapshot(MAIN, self.snapshot(found.main.id, {}, rows))
        return True

    def expire(self, name: str) -> None:
        """Forget the snapshots that no reference names; tags are let go, too."""
        found = self.tables.get(name)
        if found is not None and found.main is not None:
            refs = {key: each for key, each in found.refs.items() if each.branch}
            kept = {each.id for each in refs.values()}
            self.tables[name] = replace(
                found, refs=refs, snapshots={k: v for k, v in found.snapshots.items() if k in kept}
            )


class JavaTable:
    """``org.apache.iceberg.Table``: what a process saw when it looked last."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._catalog, self._name = catalog, name
        self.refresh()

    def refresh(self) -> None:
        found = self._catalog.tables.get(self._name)
        if found is None:
            raise JavaError("org.apache.iceberg.exceptions.NoSuchTableException")
        self.metadata = found

    def operations(self) -> JavaTable:
        return self

    def current(self) -> JavaTable:
        return self

    def io(self) -> None:
        """Files are read by nobody here."""

    def formatVersion(self) -> int:  # noqa: N802 - Java's name
        return 3

    def schema(self) -> JavaTable:
        return self

    def schemaId(self) -> int:  # noqa: N802 - Java's name
        """Columns do not change here."""
        return 0

    def properties(self) -> Mapping[str, str]:
        return JavaMap(self.metadata.properties)

    def refs(self) -> Mapping[str, Reference]:
        return JavaMap(self.metadata.refs)

    def currentSnapshot(self) -> Snapshot | None:  # noqa: N802 - Java's name
        return self.metadata.main

    def snapshot(self, snapshot_id: int) -> Snapshot | None:
        return self.metadata.snapshots.get(snapshot_id)

    def newTransaction(self) -> Transaction:  # noqa: N802 - Java's name
        return Transaction(self._catalog, self._name)

    def manageSnapshots(self) -> ManageSnapshots:  # noqa: N802 - Java's name
        transaction = self.newTransaction()
        return ManageSnapshots(transaction, transaction.commitTransaction)

    def newFastAppend(self) -> _RowCommit:  # noqa: N802 - Java's name
        return _RowCommit(self._catalog, self._name, lambda rows: rows)

    def newDelete(self) -> _RowCommit:  # noqa: N802 - Java's name
        return _RowCommit(self._catalog, self._name, lambda rows: rows)


class _RowCommit:
    def __init__(self, catalog: Catalog, name: str, change: Callable[[Any], Any]) -> None:
        self._catalog, self._name, self._change = catalog, name, change
        self._branch = MAIN
        self._keys: dict[str, str] = {}

    def toBranch(self, branch: str) -> _RowCommit:  # noqa: N802 - Java's name
        self._branch = branch
        return self

    def set(self, key: str, value: str) -> _RowCommit:
        self._keys[key] = value
        return self

    def deleteFromRowFilter(self, _always_true: Any) -> _RowCommit:  # noqa: N802 - Java's name
        self._change = lambda rows: None if rows is None else type(rows)()
        return self

    def commit(self) -> None:
        self._catalog.commit_rows(self._name, self._branch, self._change, self._keys)


class Transaction:
    """Changes of one metadata object, committed together on what it was when they began."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._catalog, self._name = catalog, name
        self._base = JavaTable(catalog, name).metadata
        self.now = self._base

    def manageSnapshots(self) -> ManageSnapshots:  # noqa: N802 - Java's name
        return ManageSnapshots(self, lambda: None)

    def updateProperties(self) -> _Properties:  # noqa: N802 - Java's name
        return _Properties(self)

    def table(self) -> Transaction:
        """The table with the changes so far."""
        return self

    def refs(self) -> Mapping[str, Reference]:
        return JavaMap(self.now.refs)

    def commitTransaction(self) -> None:  # noqa: N802 - Java's name
        self._catalog.swap(self._name, self._base, self.now, "commit")

    def newFastAppend(self) -> _EmptyAppend:  # noqa: N802 - Java's name
        return _EmptyAppend(self)

    def new_snapshot(self, parent: Snapshot | None = None) -> Snapshot:
        """A snapshot with the rows of its parent."""
        if parent is None:
            return self._catalog.snapshot(None, {}, None)
        return self._catalog.snapshot(parent.id, {}, parent.rows)


class _EmptyAppend:
    """A commit of no rows, as a part of a transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction, self._branch = transaction, MAIN

    def toBranch(self, branch: str) -> _EmptyAppend:  # noqa: N802 - Java's name
        self._branch = branch
        return self

    def commit(self) -> None:
        now = self._transaction.now
        reference = now.refs.get(self._branch)
        parent = now.main if reference is None else now.snapshots[reference.id]
        self._transaction.now = now.with_snapshot(
            self._branch, self._transaction.new_snapshot(parent)
        )


class _Properties:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._changed = dict(transaction.now.properties)

    def set(self, key: str, value: str) -> _Properties:
        self._changed[key] = value
        return self

    def commit(self) -> None:
        self._transaction.now = replace(self._transaction.now, properties=self._changed)


class ManageSnapshots:
    """Changes of references, each checked when it is asked for."""

    def __init__(self, transaction: Transaction, then: Callable[[], None]) -> None:
        self._transaction, self._then = transaction, then

    def _set(self, name: str, reference: Reference | None) -> ManageSnapshots:
        now = self._transaction.now
        refs = {key: each for key, each in now.refs.items() if key != name}
        if reference is not None:
            refs[name] = reference
        self._transaction.now = replace(now, refs=refs)
        return self

    def _demand(self, holds: bool) -> None:
        if not holds:
            raise JavaError(_ILLEGAL)

    def createBranch(self, name: str, snapshot_id: int | None = None) -> ManageSnapshots:  # noqa: N802
        now = self._transaction.now
        self._demand(name not in now.refs)
        if snapshot_id is None and now.main is None:
            empty = self._transaction.new_snapshot()
            self._transaction.now = now.with_snapshot(name, empty)
            return self
        found = snapshot_id if snapshot_id is not None else now.refs[MAIN].id
        self._demand(found in now.snapshots)
        return self._set(name, Reference(found, True))

    def removeBranch(self, name: str) -> ManageSnapshots:  # noqa: N802 - Java's name
        self._demand(name in self._transaction.now.refs)
        return self._set(name, None)

    removeTag = removeBranch  # noqa: N815 - Java's name

    def fastForwardBranch(self, name: str, to: str) -> ManageSnapshots:  # noqa: N802 - Java's name
        now = self._transaction.now
        self._demand(to in now.refs)
        if name in now.refs:
            before = {each.id for each in now.ancestors(now.refs[to].id)}
            self._demand(now.refs[name].id in before)
        return self._set(name, Reference(now.refs[to].id, True))

    def replaceBranch(self, name: str, snapshot_id: int) -> ManageSnapshots:  # noqa: N802
        return self._set(name, Reference(snapshot_id, True))

    def createTag(self, name: str, snapshot_id: int) -> ManageSnapshots:  # noqa: N802 - Java's name
        self._demand(name not in self._transaction.now.refs)
        return self._set(name, Reference(snapshot_id, False))

    def replaceTag(self, name: str, snapshot_id: int) -> ManageSnapshots:  # noqa: N802
        self._demand(name in self._transaction.now.refs)
        return self._set(name, Reference(snapshot_id, False))

    def setMaxRefAgeMs(self, _name: str, _age_ms: int) -> ManageSnapshots:  # noqa: N802
        return self

    def setCurrentSnapshot(self, snapshot_id: int) -> ManageSnapshots:  # noqa: N802
        self._demand(snapshot_id in self._transaction.now.snapshots)
        return self._set(MAIN, Reference(snapshot_id, True))

    def commit(self) -> None:
        self._then()
