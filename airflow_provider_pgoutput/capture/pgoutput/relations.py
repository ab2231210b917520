"""Which version of a relation holds at each message. Vectorised.

A version is the content of one Relation message. The same content again is the same version. Versions are
numbered in the order in which they began to hold. No catalog is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.pgoutput.messages import Relation


class UnknownRelation(Exception):
    """A change names a relation that was not announced before it; ``row`` is the change's number."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class Relations:
    """All versions so far, and where in the current chunk each began to hold."""

    def __init__(self) -> None:
        #: The last announced version of each relation, by OID.
        self.by_oid: dict[int, Relation] = {}
        #: By number.
        self.versions: list[Relation] = []
        self._number: dict[int, int] = {}
        #: By OID: for the current chunk, numbers of the versions and of the messages from which they hold. A
        #: version from before the chunk comes first, with message -1.
        self._changes: dict[int, list[tuple[int, int]]] = {}
        self._stale = True

    def start_chunk(self) -> None:
        """Forget positions, because the numbers of messages start from zero again."""
        self._changes.clear()

    def announce(self, message: int, relation: Relation) -> None:
        """Make the content of a Relation message hold from this message on."""
        if self.by_oid.get(relation.oid) == relation:
            return
        changes = self._changes.setdefault(relation.oid, [])
        if not changes and relation.oid in self._number:
            changes.append((-1, self._number[relation.oid]))
        changes.append((message, len(self.versions)))
        self._number[relation.oid] = len(self.versions)
        self.versions.append(relation)
        self.by_oid[relation.oid] = relation
        self._stale = True

    def in_force(self, message: NDArray[np.intp], oid: NDArray[np.int64]) -> NDArray[np.intp]:
        """Number of the version of each row's relation. Call it when the whole chunk was announced.

        :raises UnknownRelation: a relation was not announced before its row.
        """
        if self._stale:
            self._index()
        if not len(oid):
            return np.zeros(0, dtype=np.intp)
        if not len(self._oids):
            raise UnknownRelation(0)
        slot = np.searchsorted(self._oids, oid)
        np.minimum(slot, len(self._oids) - 1, out=slot)
        unknown = self._oids[slot] != oid
        if unknown.any():
            raise UnknownRelation(int(np.argmax(unknown)))
        number: NDArray[np.intp] = self._numbers[slot]
        if not self._changes:
            return number
        # The rows of each relation, in stream order. To search all rows for each would take long with many.
        order = np.argsort(slot, kind="stable")
        changed = np.searchsorted(self._oids, list(self._changes))
        firsts = np.searchsorted(slot, changed, sorter=order)
        lasts = np.searchsorted(slot, changed, side="right", sorter=order)
        for first, last, changes in zip(firsts, lasts, self._changes.values(), strict=True):
            rows = order[first:last]
            index = np.searchsorted([start for start, _ in changes], message[rows]) - 1
            if (index < 0).any():
                raise UnknownRelation(int(rows[0]))
            number[rows] = np.array([each for _, each in changes], dtype=np.intp)[index]
        return number

    def widths(self, numbers: NDArray[np.intp]) -> NDArray[np.intp]:
        """Number of columns of each of these versions."""
        return self._widths[numbers]

    def are_full(self, numbers: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Whether each of these versions has REPLICA IDENTITY FULL."""
        return self._full[numbers]

    def are_roots(self, numbers: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Whether each of these versions is of a root under whose name partitions send old tuples."""
        return self._roots[numbers]

    def _index(self) -> None:
        """Put everything known into arrays. This runs once after each change."""
        self._stale = False
        oids = sorted(self._number)
        self._oids = np.array(oids, dtype=np.int64)
        self._numbers = np.array([self._number[oid] for oid in oids], dtype=np.intp)
        self._widths = np.array([len(each.columns) for each in self.versions], dtype=np.intp)
        self._full = np.array(
            [each.replica_identity == "f" for each in self.versions], dtype=np.bool_
        )
        self._roots = np.array([bool(each.partitions) for each in self.versions], dtype=np.bool_)
