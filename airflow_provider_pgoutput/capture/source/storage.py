"""Two fingerprints. Take one twice: if it differs, something changed in between.

The files of a table differ: it was rewritten (``capture/schema/older_rows.py``). The state of the catalogs
differs: a table or a publication was altered (``PostgresSource.create_slot``). ``capture/copy/plan.py`` finds
out where a copy reads rows.

Sources: https://www.postgresql.org/docs/current/catalog-pg-class.html,
https://www.postgresql.org/docs/current/ddl-system-columns.html (xmin)
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


# What decides how a slot describes tables. Temporary tables are left out: they are never sent. Statistics are
# written in place, so they change no xmin.
_STATE_QUERY = r"""
WITH spaces AS (
    SELECT n.oid, n.xmin FROM pg_catalog.pg_namespace n
     WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'),
tables AS (
    SELECT c.oid, c.xmin FROM pg_catalog.pg_class c JOIN spaces s ON s.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'c')),
types AS (
    SELECT t.oid, t.xmin FROM pg_catalog.pg_type t JOIN spaces s ON s.oid = t.typnamespace),
found (kind, oid, number, xmin) AS (
    SELECT 'schema', s.oid, 0, s.xmin FROM spaces s
     UNION ALL
    SELECT 'table', t.oid, 0, t.xmin FROM tables t
     UNION ALL
    SELECT 'column', a.attrelid, a.attnum, a.xmin
      FROM pg_catalog.pg_attribute a JOIN tables t ON t.oid = a.attrelid WHERE a.attnum > 0
     UNION ALL
    SELECT 'index', i.indexrelid, 0, i.xmin
      FROM pg_catalog.pg_index i JOIN tables t ON t.oid = i.indrelid
     UNION ALL
    SELECT 'type', t.oid, 0, t.xmin FROM types t
     UNION ALL
    SELECT 'label', e.oid, 0, e.xmin
      FROM pg_catalog.pg_enum e JOIN types t ON t.oid = e.enumtypid
     UNION ALL
    SELECT 'publication', p.oid, 0, p.xmin FROM pg_catalog.pg_publication p
     UNION ALL
    SELECT 'published table', r.oid, 0, r.xmin FROM pg_catalog.pg_publication_rel r
     UNION ALL
    SELECT 'published schema', n.oid, 0, n.xmin FROM pg_catalog.pg_publication_namespace n)
SELECT pg_catalog.sum(pg_catalog.hashtextextended(
           pg_catalog.concat_ws(' ', f.kind, f.oid, f.number, f.xmin), 0))::pg_catalog.text
  FROM found f
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


def read_catalog_state(session: Session) -> str | None:
    """A fingerprint of all tables, types and publications of the database, as a text.

    It changes when one of them is made, altered or dropped. None: there are none.
    """
    with translated():
        row = session.execute(_STATE_QUERY).fetchone()
    assert row is not None, "a sum has a row"
    state: str | None = row[0]
    return state
