"""Reads by which rows of the catalog each table is published, so that a break between two runs is seen.

The catalog keeps no times. But a row that was removed and made again has another OID, and a row that was
written again names another transaction:

- FOR TABLE: a row of ``pg_publication_rel``. ALTER PUBLICATION ... DROP and ADD TABLE make it anew. So does
  SET TABLE if row filter or column list change.
- TABLES IN SCHEMA: a row of ``pg_publication_namespace``, and the table's dependency on its schema, which
  only ALTER TABLE ... SET SCHEMA writes again.
- A partition through its parents: their rows, and for each step a row of ``pg_inherits``, which DETACH
  removes.

SET UNLOGGED and back leaves no trace in these. Only FOR ALL TABLES permits it. ``capture/membership.py``
compares what is read here.

Source: https://www.postgresql.org/docs/current/catalogs.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.membership import PublicationMark, PublishedSet, TableMark
from airflow_provider_pgoutput.capture.source.errors import translated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.source.session import Session

# The last column came with version 18.
_PUBLICATION_QUERY = """
SELECT pubname::pg_catalog.text, oid::pg_catalog.int8, xmin::pg_catalog.text, pubviaroot,
       COALESCE(pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's', false)
  FROM pg_catalog.pg_publication p WHERE pubname = ANY (%s) ORDER BY pubname
"""

_MEMBERSHIP_QUERY = """
WITH RECURSIVE publication AS (
    SELECT oid, puballtables,
           pg_catalog.concat(CASE WHEN NOT pubinsert THEN 'i' END, CASE WHEN NOT pubupdate THEN 'u' END,
               CASE WHEN NOT pubdelete THEN 'd' END, CASE WHEN NOT pubtruncate THEN 't' END) AS leaves_out
      FROM pg_catalog.pg_publication WHERE pubname = ANY (%(names)s)
), published AS (
    SELECT u AS oid FROM pg_catalog.unnest(%(oids)s::pg_catalog.oid[]) AS u
), lineage(oid, member, steps) AS (
    SELECT oid, oid, '' FROM published
     UNION ALL
    SELECT l.oid, i.inhparent,
           l.steps || pg_catalog.format(' in %%s since %%s', i.inhparent::pg_catalog.oid, i.xmin)
      FROM lineage l
      JOIN pg_catalog.pg_class c ON c.oid = l.member AND c.relispartition
      JOIN pg_catalog.pg_inherits i ON i.inhrelid = l.member)
SELECT l.oid::pg_catalog.int8 AS oid,
       pg_catalog.format('table %%s%%s%%s', r.oid, l.steps,
                         CASE WHEN r.prqual IS NULL THEN '' ELSE ' filtered' END) AS mark,
       p.leaves_out
  FROM lineage l
  JOIN pg_catalog.pg_publication_rel r ON r.prrelid = l.member
  JOIN publication p ON p.oid = r.prpubid
 UNION ALL
SELECT l.oid::pg_catalog.int8, pg_catalog.format('schema %%s since %%s%%s', n.oid, d.xmin, l.steps),
       p.leaves_out
  FROM lineage l
  JOIN pg_catalog.pg_class c ON c.oid = l.member
  JOIN pg_catalog.pg_publication_namespace n ON n.pnnspid = c.relnamespace
  JOIN publication p ON p.oid = n.pnpubid
  JOIN pg_catalog.pg_depend d
    ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.objsubid = 0
   AND d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
   AND d.refobjid = c.relnamespace
 UNION ALL
SELECT t.oid::pg_catalog.int8, pg_catalog.format('all %%s', p.oid), p.leaves_out
  FROM published t CROSS JOIN publication p WHERE p.puballtables
 ORDER BY 1, 2
"""

# Not pg_partition_tree(): it waits for the locks of migrations, and looks past the session's snapshot. A
# leaf has a text for each step up to the root, because a parent of its own may be detached with it.
_PARTITION_QUERY = """
WITH RECURSIVE tree(root, oid, steps) AS (
    SELECT o.oid, o.oid, '' FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS o(oid)
     UNION ALL
    SELECT t.root, i.inhrelid,
           pg_catalog.format(' since %%s', i.xmin)
           || CASE WHEN t.oid = t.root THEN ''
                   ELSE pg_catalog.format(' in %%s', t.oid) || t.steps END
      FROM tree t
      JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending)
SELECT t.root::pg_catalog.int8, t.oid::pg_catalog.text || t.steps
  FROM tree t
  JOIN pg_catalog.pg_class c ON c.oid = t.oid AND c.relkind <> 'p'
 WHERE t.oid <> t.root
 ORDER BY 1, 2
"""

# A table that was made as a partition began empty: its type and its place in the tree were written by one
# transaction, and its columns by the command that wrote its type. ATTACH PARTITION writes all columns again.
_ATTACHED_QUERY = """
SELECT DISTINCT pg_catalog.format('%%s.%%s', n.nspname, c.relname)
  FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS o(oid)
  JOIN pg_catalog.pg_class c ON c.oid = o.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL pg_catalog.pg_partition_ancestors(o.oid) a
  JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.relid
  JOIN pg_catalog.pg_type t ON t.typrelid = a.relid
 WHERE t.xmin <> i.xmin
    OR NOT EXISTS (
           SELECT FROM pg_catalog.pg_attribute c
            WHERE c.attrelid = a.relid AND c.attnum > 0 AND c.xmin = t.xmin AND c.cmin = t.cmin)
 ORDER BY 1
"""


_GENERATED_QUERY = """
SELECT DISTINCT a.attrelid::pg_catalog.int8 FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = ANY (%s::pg_catalog.oid[]) AND a.attgenerated = 's' AND NOT a.attisdropped
"""

_ANCESTOR_QUERY = """
SELECT a.relid::pg_catalog.oid::pg_catalog.int8, o.oid::pg_catalog.int8
  FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS o(oid)
 CROSS JOIN LATERAL pg_catalog.pg_partition_ancestors(o.oid) a
 WHERE a.relid <> o.oid AND a.relid = ANY (%s::pg_catalog.oid[])
"""


def read_marks(
    session: Session, publication_names: Sequence[str], tables: Sequence[PublishedTable]
) -> PublishedSet:
    """By what each of the tables is published now.

    :param tables: all that the publications publish.
    """
    oids = [each.relation_oid for each in tables]
    with translated():
        publications = session.execute(_PUBLICATION_QUERY, (list(publication_names),)).fetchall()
        memberships = session.execute(
            _MEMBERSHIP_QUERY, {"names": list(publication_names), "oids": oids}
        ).fetchall()
    of_table: dict[int, list[str]] = {oid: [] for oid in oids}
    leaves_out: dict[int, list[tuple[str, str]]] = {oid: [] for oid in oids}
    for oid, mark, operations in memberships:
        of_table[oid].append(mark)
        if operations:
            leaves_out[oid].append((mark, operations))
    partitions = read_partitions(session, tables)
    return PublishedSet(
        tuple(PublicationMark(*row) for row in publications),
        tuple(
            TableMark(
                each.relation_oid,
                each.name,
                tuple(of_table[each.relation_oid]),
                partitions[each.relation_oid],
                tuple(leaves_out[each.relation_oid]),
            )
            for each in tables
        ),
    )


def read_partitions(
    session: Session, tables: Sequence[PublishedTable]
) -> dict[int, tuple[str, ...]]:
    """The partitions that hold the rows of each table, by OID, as ``TableMark`` has them."""
    roots = [each.relation_oid for each in tables if each.kind == "p"]
    leaves: dict[int, list[str]] = {each.relation_oid: [] for each in tables}
    if roots:
        with translated():
            rows = session.execute(_PARTITION_QUERY, (roots,)).fetchall()
        for oid, mark in rows:
            leaves[oid].append(mark)
    return {oid: tuple(marks) for oid, marks in leaves.items()}


def attached_partitions(session: Session, partitions: Sequence[str]) -> tuple[str, ...]:
    """Of partitions as ``TableMark`` has them: names of those that were tables of their own before."""
    oids = [int(mark.split(" ", maxsplit=1)[0]) for mark in partitions]
    with translated():
        rows = session.execute(_ATTACHED_QUERY, (oids,)).fetchall()
    return tuple(name for (name,) in rows)


def with_generated_columns(session: Session, relation_oids: Sequence[int]) -> frozenset[int]:
    """Which of the tables have stored generated columns now."""
    with translated():
        rows = session.execute(_GENERATED_QUERY, (list(relation_oids),)).fetchall()
    return frozenset(oid for (oid,) in rows)


def partitions_below(
    session: Session, relation_oids: Sequence[int], ancestors: Sequence[int]
) -> dict[int, set[int]]:
    """Those of the tables that are partitions of one of ``ancestors`` now, by its OID."""
    found: dict[int, set[int]] = {}
    with translated():
        rows = session.execute(_ANCESTOR_QUERY, (list(relation_oids), list(ancestors))).fetchall()
    for ancestor, oid in rows:
        found.setdefault(ancestor, set()).add(oid)
    return found
