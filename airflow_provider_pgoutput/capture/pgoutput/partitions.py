"""Finds out which partitions send rows under the name of their root, and what their old tuples contain.

With ``publish_via_partition_root`` a row names the root, but the replica identity of its partition decides
what its old tuple contains. The server announces both, first the root, and then sends the row: ``R root``,
``R partition``, ``U root``. ``ALTER TABLE partition REPLICA IDENTITY`` makes it announce both again before
the partition's next row. So at each row it is known what every partition sends, although the row does not
name its partition. ``ALTER TABLE root REPLICA IDENTITY`` announces nothing.

Source: ``maybe_send_schema`` of pgoutput,
https://www.postgresql.org/docs/current/sql-createpublication.html (publish_via_partition_root)
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from airflow_provider_pgoutput.capture.pgoutput.messages import PartitionIdentity, Relation


class Partitions:
    """All relations as they were last announced, and which of them are partitions of others."""

    def __init__(self) -> None:
        self._announced: dict[int, Relation] = {}
        #: OID of the root by OID of the partition.
        self._roots: dict[int, int] = {}
        #: By OID: what each partition sends. Partitions without a replica identity are not here.
        self._identities: dict[int, PartitionIdentity] = {}
        #: By OID of the root: for each content of old tuples, how many partitions send it.
        self._sent: dict[int, Counter[PartitionIdentity]] = {}
        #: OIDs of the last announcements, if no other message came between them.
        self._run: list[int] = []

    def announce(self, relation: Relation) -> list[Relation]:
        """Read an announcement.

        :returns: the relations whose rows may look different from here on.
        """
        oid = relation.oid
        self._announced[oid] = relation
        changed = [oid]
        if oid in self._roots:
            changed.append(self._place(oid, self._roots[oid]))
        # ``relation_cache.py`` puts a partition between two announcements of its root. It announces other
        # relations twice.
        if len(self._run) == 2 and self._run[0] == oid:
            self._place(self._run[1], oid)
            self._run = []
        elif self._run[-1:] == [oid]:
            self._run = []
        else:
            self._run = [*self._run[-1:], oid]
        return [self._described(each) for each in changed]

    def end_run(self) -> None:
        """The next message is neither an announcement nor a row."""
        self._run.clear()

    def row(self, oid: int) -> Relation | None:
        """The next message is a row.

        :returns: its relation, if the row is the first to show what one of its partitions sends.
        """
        run, self._run = self._run, []
        if len(run) < 2 or run[0] != oid:
            return None
        self._place(run[1], oid)
        return self._described(oid)

    def _place(self, oid: int, root_oid: int) -> int:
        """Record that a relation is a partition, and what it sends now; return the OID of the root."""
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
