"""Which columns identify a row of a table, in each version of it.

What is not here: whether a target agrees, and what is done when the key changes; apply does that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_provider_pgoutput.capture.source.catalog import Session

_KEY_QUERY = """
SELECT i.indrelid::pg_catalog.int8, i.indisprimary, i.indisreplident, i.indimmediate,
       ARRAY(SELECT a.attname::pg_catalog.text
               FROM pg_catalog.unnest(i.indkey) WITH ORDINALITY k(attnum, place)
               JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
              WHERE k.place <= i.indnkeyatts ORDER BY k.place)
  FROM pg_catalog.pg_index i
 WHERE i.indrelid = ANY (%s::pg_catalog.oid[]) AND i.indisvalid
   AND (i.indisprimary OR i.indisreplident)
"""


@dataclass(slots=True)
class Keys:
    """Which columns identify a row, by table and replica identity.

    A key must be in the old tuples, so it is the replica identity; with FULL, where all columns are,
    it is the primary key. The user may choose another one within these.

    Source: https://www.postgresql.org/docs/current/logical-replication-publication.html
    """

    configured: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _primary: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _identity: dict[int, tuple[str, ...]] = field(default_factory=dict)
    #: Tables whose primary key is deferrable: it identifies rows, and yet is no replica identity.
    _deferrable: set[int] = field(default_factory=set)
    _asked: set[int] = field(default_factory=set)
    #: Published columns by table, as far as ``publish`` told them.
    _published: dict[int, frozenset[str]] = field(default_factory=dict)

    def publish(self, relation_oid: int, columns: Iterable[str]) -> None:
        """Take note of the columns that a table publishes now."""
        self._published[relation_oid] = frozenset(columns)

    def forget(self) -> None:
        """Ask the catalog again about every relation."""
        for known in (self._primary, self._identity, self._deferrable, self._asked):
            known.clear()

    def load(self, session: Session, relation_oids: Iterable[int]) -> None:
        """Ask the catalog about relations not asked about yet."""
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
        self._asked.update(wanted)

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
    ) -> tuple[str, ...]:
        """Key columns of a table, all of them among ``columns``; empty: it has no key.

        :param table: ``schema.table``.
        :param replica_identity: ``pg_class.relreplident`` of this version of the table.
        :param identity: the columns that are part of it; of a version that is history by now only
            the stream knows them.
        :raises ConfigurationError: when a configured key names a column that is not published, or
            one that old tuples do not hold.
        """
        configured = self.configured.get(table)
        if configured:
            _check_configured(configured, table, replica_identity, columns, identity)
            return tuple(configured)
        primary = self._primary.get(relation_oid, ())
        if replica_identity != "f" and identity:
            return self._ordered(relation_oid, replica_identity, columns, identity)
        # DEFAULT without identity: no primary key, unless it is deferrable; one of now came later.
        if replica_identity == "d" and relation_oid not in self._deferrable:
            return ()
        return primary if set(primary) <= set(columns) else ()

    def _ordered(
        self,
        relation_oid: int,
        replica_identity: str,
        columns: Sequence[str],
        identity: Sequence[str],
    ) -> tuple[str, ...]:
        """The identity in the order of its index; empty when a column list leaves out a part of it."""
        now = self.identity(relation_oid, replica_identity)
        if set(now) == set(identity):
            return now
        absent = set(now) - set(columns)
        if set(identity) < set(now) and absent - self._published.get(relation_oid, frozenset()):
            return ()
        return tuple(identity)


def _check_configured(
    configured: Sequence[str],
    table: str,
    replica_identity: str,
    columns: Sequence[str],
    identity: Sequence[str],
) -> None:
    if missing := [name for name in configured if name not in columns]:
        raise ConfigurationError(
            f"The configured key names columns that are not published: {', '.join(missing)}.",
            table=table,
            advice="correct key_columns, or publish the columns.",
        )
    # Without an identity the source refuses updates and deletes, so there are no old tuples.
    if replica_identity == "f" or not identity or set(configured) <= set(identity):
        return
    raise ConfigurationError(
        f"The configured key ({', '.join(configured)}) is not within the replica identity"
        f" ({', '.join(identity)}), so updates and deletes would not say which row they mean.",
        table=table,
        advice="remove the table from key_columns, or run ALTER TABLE ... REPLICA IDENTITY FULL on the"
        " source. Changes made before that need a run without this key.",
    )
