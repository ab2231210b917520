"""What old rows hold of a partitioned table that is published via its root, with REPLICA IDENTITY FULL.

The stream announces the identity of the root, and each partition sends old rows by its own, which neither
ALTER TABLE of the root nor a new partition takes over. So an old row that is flagged as whole may hold the
partition's key alone, and NULL in all other columns. What is not here: tables published as themselves.

Source: https://www.postgresql.org/docs/current/sql-altertable.html (REPLICA IDENTITY)
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.manifest import FULL
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import TableVersion
    from airflow_provider_pgoutput.capture.source.catalog import Session
    from airflow_provider_pgoutput.capture.source.keys import Keys

_DEFAULT = "d"

# A table that is none, or has no partitions, is not in its own tree as a leaf of another.
_LEAF_QUERY = """
SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname), c.relreplident::pg_catalog.text
  FROM pg_catalog.pg_partition_tree(%s::pg_catalog.oid::pg_catalog.regclass) t
  JOIN pg_catalog.pg_class c ON c.oid = t.relid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE t.isleaf AND t.parentrelid IS NOT NULL AND c.relkind = 'r' AND c.relreplident <> 'f'
 ORDER BY 1
"""


def as_partitions_send(
    session: Session, keys: Keys, relation_oid: int, version: TableVersion
) -> TableVersion:
    """The version with the replica identity that holds for every partition.

    Where some send the key alone, all are applied by the key, which whole rows hold, too.

    :raises TableRefused: there is no key that all of them send.
    """
    if version.replica_identity != FULL:
        return version
    with translated():
        partial = session.execute(_LEAF_QUERY, (relation_oid,)).fetchall()
    if not partial:
        return version
    key = keys.identity(relation_oid, _DEFAULT)
    sent = all(identity == _DEFAULT for _, identity in partial)
    if sent and version.key_columns and set(version.key_columns) <= set(key):
        return dataclasses.replace(version, replica_identity=_DEFAULT)
    names = [name for name, _ in partial]
    raise TableRefused(
        f"The table has REPLICA IDENTITY FULL, but {len(names)} of its partitions do not, and there is no key"
        f" that they send instead: {', '.join(names[:20])}.",
        table=f"{version.schema_name}.{version.table_name}",
        advice="ALTER TABLE ... REPLICA IDENTITY FULL for each of them, then copy the table again"
        " (copy_tables), for what they sent before that does not say which row it means.",
    )
