"""Which partitions send rows under the name of their root, and which old values they send.

With ``publish_via_partition_root`` a row names the root, but its old tuple is made by the replica identity
of the partition it lies in. The server announces both, the root first, and sends the row right behind:
``R root``, ``R partition``, ``U root``. ALTER TABLE partition REPLICA IDENTITY makes it announce them anew
before the partition's next row. So it is known at each row what every partition sends, although the row does
not name its partition. ALTER TABLE root REPLICA IDENTITY announces nothing.

Source: ``maybe_send_schema`` of pgoutput,
https://www.postgresql.org/docs/current/sql-createpublication.html (publish_via_partition_root)
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from airflow_provider_pgoutput.capture.pgoutput.messages import PartitionIdentity, Relation


class Partitions:
    """All relations as last announced, and which of them are partitions of others."""

    def __init__(self) -> None:
        self._announced: dict[int, Relation] = {}
        #: OID of the root, by that of a partition.
        self._roots: dict[int, int] = {}
        #: What each partition sends; those without a replica identity are not here.
        self._identities: dict[int, PartitionIdentity] = {}
        #: By OID of the root: how many partitions send the same.
        self._sent: dict[int, Counter[PartitionIdentity]] = {}
        #: OIDs of the last announcements, none of other messages between them.
        self._run: list[int] = []

    def announce(self, relation: Relation) -> list[Relation]:
        """Take note of an announcement.

        :returns: the relations that rows may have in another way from here on.
        """
        oid = relation.oid
        self._announced[oid] = relation
        changed = [oid]
        if oid in self._roots:
            changed.append(self._place(oid, self._roots[oid]))
        # ``announced.py`` puts a partition between two announcements of its root, and announces others twice.
        if len(self._run) == 2 and self._run[0] == oid:
            self._place(self._run[1], oid)
            self._run = []
        elif self._run[-1:] == [oid]:
            self._run = []
        else:
            self._run = [*self._run[-1:], oid]
        return [self._described(each) for each in changed]

    def end_run(self) -> None:
        """Another message than an announcement follows, and it is no row."""
        self._run.clear()

    def row(self, oid: int) -> Relation | None:
        """A row follows.

        :returns: its relation, if it is the first that shows what a partition of it sends.
        """
        run, self._run = self._run, []
        if len(run) < 2 or run[0] != oid:
            return None
        self._place(run[1], oid)
        return self._described(oid)

    def _place(self, oid: int, root_oid: int) -> int:
        """Note that a relation is a partition, and what it sends by now; the OID of the root."""
        known = self._identities.pop(oid, None)
        if known is not None:
            before = self._sent[self._roots[oid]]
            before[known] -= 1
            if not before[known]:
                del before[known]
        self._roots[oid] = root_oid
        sent = _identity(self._announced[oid], self._announced[root_oid])
        if sent is not None:
            self._identities[oid] = sent
            self._sent.setdefault(root_oid, Counter())[sent] += 1
        return root_oid

    def _described(self, oid: int) -> Relation:
        relation, sent = self._announced[oid], self._sent.get(oid)
        return dataclasses.replace(relation, partitions=frozenset(sent)) if sent else relation


def _identity(partition: Relation, root: Relation) -> PartitionIdentity | None:
    """What a partition sends; None: it has no replica identity."""
    listed = {each.name for each in partition.columns}
    columns = frozenset(each.name for each in partition.columns if each.is_identity)
    if partition.replica_identity == "f":
        return PartitionIdentity(
            frozenset(each.name for each in root.columns), is_full=True, name=partition.name
        )
    if partition.replica_identity != "n" and listed != {each.name for each in root.columns}:
        incomplete = (partition.oid, partition.replica_identity)
        return PartitionIdentity(columns, incomplete=incomplete, name=partition.name)
    return PartitionIdentity(columns, name=partition.name) if columns else None
