"""Which columns identify a row of a table, in each version of it.

Apply checks whether a target agrees, and acts on a change of the key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.table_version import FULL
from airflow_provider_pgoutput.capture.pgoutput.messages import PartitionIdentity
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.capture.source.partition_identity import (
    Candidate,
    Leaves,
    choose,
    read_leaves,
)
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence, Set

    from airflow_provider_pgoutput.capture.pgoutput.messages import Relation
    from airflow_provider_pgoutput.capture.source.session import Session

# A root may have other unique indexes that can be used: perhaps its partitions send only their columns.
_KEY_QUERY = """
SELECT i.indrelid::pg_catalog.int8, i.indisprimary, i.indisreplident, i.indimmediate,
       ARRAY(SELECT a.attname::pg_catalog.text
               FROM pg_catalog.unnest(i.indkey) WITH ORDINALITY k(attnum, place)
               JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
              WHERE k.place <= i.indnkeyatts ORDER BY k.place)
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
 WHERE i.indrelid = ANY (%s::pg_catalog.oid[]) AND i.indisvalid
   AND (i.indisprimary OR i.indisreplident
        OR c.relkind = 'p' AND i.indisunique AND i.indimmediate AND i.indpred IS NULL
           AND i.indexprs IS NULL
           AND NOT EXISTS (
               SELECT FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = i.indrelid AND NOT a.attnotnull
                  AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]))
           AND NOT EXISTS (
               SELECT FROM pg_catalog.pg_constraint n
                WHERE n.conrelid = i.indrelid AND n.contype = 'n' AND NOT n.convalidated))
 ORDER BY i.indexrelid
"""


@dataclass(frozen=True, slots=True)
class RowIdentity:
    """How a change says which row it means, in one version of a table."""

    #: ``f``: by the whole old row; otherwise by the key.
    replica_identity: str
    key: tuple[str, ...]
    #: The columns that are unique according to the stream. If these are not the key, only the current catalog
    #: says that the key is unique.
    columns: frozenset[str]


@dataclass(slots=True)
class Keys:
    """Which columns identify a row, by table and replica identity.

    A key must be in the old tuples, so it is the replica identity. With FULL all columns are in them, and the
    key is the primary key. The user may choose another key inside of these. The old tuples of a root come
    from its partitions, see ``partition_identity.py``.

    Source: https://www.postgresql.org/docs/current/logical-replication-publication.html
    """

    configured: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _primary: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _identity: dict[int, tuple[str, ...]] = field(default_factory=dict)
    #: Tables whose primary key is deferrable. Such a key identifies rows, but cannot be the replica identity.
    _deferrable: set[int] = field(default_factory=set)
    #: By root: the columns of all indexes that are unique at every moment and not NULL.
    _unique: dict[int, list[tuple[str, ...]]] = field(default_factory=dict)
    _leaves: dict[int, tuple[Leaves, ...]] = field(default_factory=dict)
    _asked: set[int] = field(default_factory=set)
    #: Published columns by table, for tables that were given to ``publish``.
    _published: dict[int, frozenset[str]] = field(default_factory=dict)

    def publish(self, relation_oid: int, columns: Iterable[str]) -> None:
        """Record the columns that a table publishes now."""
        self._published[relation_oid] = frozenset(columns)

    def forget(self) -> None:
        """Ask the catalog again about every relation."""
        for known in (self._primary, self._identity, self._unique, self._leaves):
            known.clear()
        self._deferrable.clear()
        self._asked.clear()

    def load(self, session: Session, relation_oids: Iterable[int]) -> None:
        """Ask the catalog about relations that it was not asked about yet."""
        wanted = sorted(set(relation_oids) - self._asked)
        if not wanted:
            return
        with translated():
            rows = session.execute(_KEY_QUERY, (wanted,)).fetchall()
        for relation_oid, is_primary, is_identity, is_immediate, columns in rows:
            if is_primary:
                self._primary[relation_oid] = tuple(columns)
                if not is_immediate:
                    self._deferrable.add(relation_oid)
            if is_identity:
                self._identity[relation_oid] = tuple(columns)
            if is_immediate:
                self._unique.setdefault(relation_oid, []).append(tuple(columns))
        self._leaves |= read_leaves(session, wanted)
        self._asked.update(wanted)

    @property
    def relation_oids(self) -> Set[int]:
        """The relations that the catalog was asked about."""
        return self._asked

    def leaves(self, relation_oid: int) -> tuple[Leaves, ...]:
        """The partitions that a root has now."""
        return self._leaves.get(relation_oid, ())

    def completed(self, session: Session, relation: Relation) -> frozenset[PartitionIdentity]:
        """What the partitions of a root send. The catalog has what an announcement does not list."""
        found = set()
        self.load(session, [each.incomplete[0] for each in relation.partitions if each.incomplete])
        for each in relation.partitions:
            if each.incomplete is None:
                found.add(each)
                continue
            oid, replica_identity = each.incomplete
            columns = frozenset(self.identity(oid, replica_identity))
            if columns and columns >= each.columns:
                found.add(PartitionIdentity(columns, name=each.name))
            else:
                # The partition had another identity then, or is gone.
                found.add(each)
        return frozenset(found)

    def identity(self, relation_oid: int, replica_identity: str) -> tuple[str, ...]:
        """Columns of the replica identity; empty for FULL and NOTHING."""
        if replica_identity == "d":
            usable = relation_oid not in self._deferrable
            return self._primary.get(relation_oid, ()) if usable else ()
        return self._identity.get(relation_oid, ()) if replica_identity == "i" else ()

    def of(
        self,
        relation_oid: int,
        table: str,
        replica_identity: str,
        columns: Sequence[str],
        identity: Sequence[str],
        announced: frozenset[PartitionIdentity] = frozenset(),
    ) -> RowIdentity:
        """How a change says which row it means. All columns of the key are among ``columns``.

        :param table: ``schema.table``.
        :param replica_identity: ``pg_class.relreplident`` of this version of the table.
        :param identity: the columns that are part of it. For an older version only the stream knows them.
        :param announced: what partitions of the table sent up to here in the stream.
        :raises ConfigurationError: a configured key names a column that is not published, or one that old
            tuples do not have.
        """
        if configured := tuple(self.configured.get(table, ())):
            _check_published(configured, table, columns)
        now = self.leaves(relation_oid)
        if announced or now:
            return self._of_root(
                relation_oid, table, replica_identity, columns, identity, announced
            )
        if configured:
            _check_within(configured, table, replica_identity, identity)
            return RowIdentity(replica_identity, configured, frozenset(identity))
        key = self._of_table(relation_oid, replica_identity, columns, identity)
        return RowIdentity(replica_identity, key, frozenset(identity))

    def _of_table(
        self,
        relation_oid: int,
        replica_identity: str,
        columns: Sequence[str],
        identity: Sequence[str],
    ) -> tuple[str, ...]:
        primary = self._primary.get(relation_oid, ())
        if replica_identity != FULL and identity:
            return self._ordered(relation_oid, replica_identity, columns, identity)
        # DEFAULT without identity: there was no primary key then, unless it was deferrable.
        if replica_identity == "d" and relation_oid not in self._deferrable:
            return ()
        return primary if set(primary) <= set(columns) else ()

    def _of_root(
        self,
        relation_oid: int,
        table: str,
        replica_identity: str,
        columns: Sequence[str],
        identity: Sequence[str],
        announced: frozenset[PartitionIdentity],
    ) -> RowIdentity:
        now = [each.identity for each in self.leaves(relation_oid) if each.identity is not None]
        configured = tuple(self.configured.get(table, ()))
        flagged: tuple[str, ...] = ()
        if configured:
            candidates = [Candidate(configured)]
            if not announced:
                _check_partitions(configured, table, self.leaves(relation_oid))
        else:
            if replica_identity != FULL and identity:
                flagged = self._ordered(relation_oid, replica_identity, columns, identity)
            primary = self._primary.get(relation_oid, ())
            others = self._unique.get(relation_oid, [])
            candidates = [
                Candidate(flagged),
                Candidate(primary, relation_oid not in self._deferrable),
                *map(Candidate, others),
            ]
            candidates = [e for e in candidates if e.columns and set(e.columns) <= set(columns)]
        chosen = choose(candidates, announced, now)
        key = chosen.key.columns
        sent = announced or now
        if set(key) == set(flagged) or all(
            not each.is_full and each.columns == set(key) for each in sent
        ):
            unique_columns = frozenset(key)
        else:
            unique_columns = frozenset().union(*(each.columns for each in sent))
        if chosen.is_full and (
            configured or replica_identity == FULL or not key or not chosen.key.is_immediate
        ):
            replica_identity = FULL
        elif key and (replica_identity != "i" or set(key) != set(flagged)):
            replica_identity = "d"
        return RowIdentity(replica_identity, key, unique_columns)

    def _ordered(
        self,
        relation_oid: int,
        replica_identity: str,
        columns: Sequence[str],
        identity: Sequence[str],
    ) -> tuple[str, ...]:
        """The identity in the order of its index; empty: a column list leaves out a part of it."""
        now = self.identity(relation_oid, replica_identity)
        if set(now) == set(identity):
            return now
        absent = set(now) - set(columns)
        if set(identity) < set(now) and absent - self._published.get(relation_oid, frozenset()):
            return ()
        return tuple(identity)


def _check_published(configured: Sequence[str], table: str, columns: Sequence[str]) -> None:
    if missing := [name for name in configured if name not in columns]:
        raise ConfigurationError(
            f"The configured key names columns that are not published: {', '.join(missing)}.",
            table=table,
            advice="correct key_columns, or publish the columns.",
        )


def _check_within(
    configured: Sequence[str], table: str, replica_identity: str, identity: Sequence[str]
) -> None:
    # Without an identity the source refuses updates and deletes, so there are no old tuples.
    if replica_identity == FULL or not identity or set(configured) <= set(identity):
        return
    raise ConfigurationError(
        f"The configured key ({', '.join(configured)}) is not within the replica identity"
        f" ({', '.join(identity)}), so updates and deletes would not say which row they mean.",
        table=table,
        advice="remove the table from key_columns, or run ALTER TABLE ... REPLICA IDENTITY FULL on the"
        " source. Changes made before that need a run without this key, or a copy (copy_tables).",
    )


def _check_partitions(configured: Sequence[str], table: str, leaves: Sequence[Leaves]) -> None:
    for each in leaves:
        if each.identity is not None and not each.identity.covers(configured):
            raise ConfigurationError(
                f"The configured key ({', '.join(configured)}) is not within the replica identity"
                f" ({', '.join(sorted(each.identity.columns))}) of the partitions {each}, so updates and"
                " deletes there would not say which row they mean.",
                table=table,
                advice="run ALTER TABLE partition REPLICA IDENTITY FULL on the source for each of them, or"
                " correct key_columns.",
            )
