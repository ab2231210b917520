"""The files that hold the rows of tables, as ``pg_class`` has them now.

Only for comparing with another moment.

``capture/copy/plan.py`` finds out where a copy reads rows. ``capture/schema/older_rows.py`` knows what a
difference means.

Source: https://www.postgresql.org/docs/current/catalog-pg-class.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.shape import Storage
from airflow_provider_pgoutput.capture.source.errors import translated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_pgoutput.capture.source.session import Session

# One statement, so that the number of columns and the files are from one moment.
_STORAGE_QUERY = """
WITH RECURSIVE tree AS (
    SELECT c.oid AS root, c.relnatts, c.oid, c.relkind, c.relfilenode
      FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s::pg_catalog.oid[])
     UNION ALL
    SELECT t.root, t.relnatts, c.oid, c.relkind, c.relfilenode
      FROM tree t
      JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid
      JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
     WHERE t.relkind = 'p')
SELECT t.root::pg_catalog.int8, t.relnatts::pg_catalog.int4, t.oid::pg_catalog.int8,
       t.relfilenode::pg_catalog.int8
  FROM tree t WHERE t.relkind = 'r' ORDER BY 1, 3
"""


def read_storage(session: Session, relation_oids: Iterable[int]) -> dict[int, Storage]:
    """The files of tables, by OID. A table that is gone, or a root without partitions, has none."""
    with translated():
        rows = session.execute(_STORAGE_QUERY, (sorted(relation_oids),)).fetchall()
    columns: dict[int, int] = {}
    files: dict[int, list[tuple[int, int]]] = {}
    for relation_oid, count, leaf_oid, file in rows:
        columns[relation_oid] = count
        files.setdefault(relation_oid, []).append((leaf_oid, file))
    return {oid: Storage(columns[oid], tuple(each)) for oid, each in files.items()}
