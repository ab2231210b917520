"""Reads what the server says of publications, and by which rows of the catalog each table is published.

A break between two runs has to be seen. The catalog keeps no times. But a row that was removed and made again
has another OID, and a row that was written again names another transaction:

- FOR TABLE: a row of ``pg_publication_rel``. ALTER PUBLICATION ... DROP and ADD TABLE make it anew. So does
  SET TABLE if row filter or column list change.
- TABLES IN SCHEMA: a row of ``pg_publication_namespace``, and the table's dependency on its schema, which
  only ALTER TABLE ... SET SCHEMA writes again.
- A partition through its parents: their rows, and for each step a row of ``pg_inherits``, which DETACH
  removes.

SET UNLOGGED and back leaves no trace in these. PostgreSQL forbids it only for a table that FOR TABLE names
itself. ``capture/membership.py`` compares what is read here.

Source: https://www.postgresql.org/docs/current/catalogs.html
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg import sql

from airflow_provider_pgoutput.batch.membership import (
    PublicationVersion,
    PublishedSet,
    TableMembership,
)
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.errors import PublicationMissing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.source.session import Session

log = logging.getLogger(__name__)

# The last column came with version 18.
_PUBLICATION_QUERY = """
SELECT pubname::pg_catalog.text, puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,
       oid::pg_catalog.int8, xmin::pg_catalog.text,
       COALESCE(pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's', false)
  FROM pg_catalog.pg_publication p WHERE pubname = ANY (%s) ORDER BY pubname
"""

_TABLE_NAME_QUERY = """
SELECT schemaname || '.' || tablename
  FROM pg_catalog.pg_publication_tables WHERE pubname = %s ORDER BY schemaname, tablename
"""

# From version 19 on the rows of FOR ALL TABLES EXCEPT are in pg_publication_rel, too, with prexcept: such a
# table is not published. Both queries below leave these rows out.
# age() is greater for older transactions. It works across the wrap-around of transaction IDs.
_CHANGED_QUERY = """
SELECT p.pubname::pg_catalog.text, m.member
  FROM pg_catalog.pg_replication_slots s
 CROSS JOIN pg_catalog.pg_publication p
 CROSS JOIN LATERAL (
       SELECT NULL::pg_catalog.text AS member, p.xmin AS written
        UNION ALL
       SELECT pg_catalog.format('%%s.%%s', n.nspname, c.relname), r.xmin
         FROM pg_catalog.pg_publication_rel r
         JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE r.prpubid = p.oid
          AND NOT COALESCE((pg_catalog.to_jsonb(r) ->> 'prexcept')::pg_catalog.bool, false)) m
 WHERE s.slot_name = %s AND s.catalog_xmin IS NOT NULL AND p.pubname = ANY (%s)
   AND pg_catalog.age(m.written) <= pg_catalog.age(s.catalog_xmin)
 ORDER BY 1, 2 NULLS FIRST
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
  JOIN pg_catalog.pg_publication_rel r
    ON r.prrelid = l.member
   AND NOT COALESCE((pg_catalog.to_jsonb(r) ->> 'prexcept')::pg_catalog.bool, false)
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
  FROM published t CROSS JOIN publication p
 WHERE p.puballtables
   AND NOT EXISTS (
       SELECT FROM lineage l
         JOIN pg_catalog.pg_publication_rel r ON r.prrelid = l.member AND r.prpubid = p.oid
        WHERE l.oid = t.oid AND (pg_catalog.to_jsonb(r) ->> 'prexcept')::pg_catalog.bool)
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

# A table that was made as a partition began empty: one command wrote its columns, and its transaction wrote
# its place in the tree. ATTACH PARTITION writes all columns again. Nothing ever writes the system columns
# again, so they tell which command made the table.
# The last column has the transactions that altered a column after the ATTACH, if the table has other files
# than at first: such a transaction may have written all rows again.
_ATTACHED_QUERY = """
SELECT f.oid::pg_catalog.int8, f.schema, f.name, f.attach::pg_catalog.text, f.is_readable,
       ARRAY(SELECT DISTINCT c.xmin::pg_catalog.text FROM pg_catalog.pg_attribute c
              WHERE f.is_rewritten AND c.attrelid = f.oid AND c.attnum > 0
                AND pg_catalog.age(c.xmin) < pg_catalog.age(f.attach))
  FROM (
SELECT o.oid, n.nspname::pg_catalog.text AS schema, c.relname::pg_catalog.text AS name,
       (pg_catalog.array_agg(i.xmin ORDER BY pg_catalog.age(i.xmin)))[1] AS attach,
       pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(o.oid, 'SELECT')
           AND NOT pg_catalog.row_security_active(o.oid) AND c.relkind = 'r' AND c.relam = 2 AS is_readable,
       c.relfilenode <> c.oid AS is_rewritten
  FROM ROWS FROM (pg_catalog.unnest(%s::pg_catalog.oid[]), pg_catalog.unnest(%s::pg_catalog.oid[]))
       AS o(oid, root)
  JOIN pg_catalog.pg_class c ON c.oid = o.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL pg_catalog.pg_partition_ancestors(o.oid) a
  JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.relid
  JOIN pg_catalog.pg_attribute made ON made.attrelid = a.relid AND made.attname = 'tableoid'
 WHERE a.relid <> o.root
   AND EXISTS (SELECT FROM pg_catalog.pg_partition_ancestors(a.relid) above WHERE above.relid = o.root)
   AND (made.xmin <> i.xmin
    OR NOT EXISTS (
           SELECT FROM pg_catalog.pg_attribute c
            WHERE c.attrelid = a.relid AND c.attnum > 0 AND c.xmin = made.xmin AND c.cmin = made.cmin))
 GROUP BY o.oid, n.oid, n.nspname, c.oid, c.relname, c.relkind, c.relam, c.relfilenode) f
"""

# Rows that are older than the transaction of ATTACH, and rows that it wrote itself. age() works across the
# wrap-around of transaction IDs, and is negative for a row that was frozen very long ago. It counts from the
# transaction that asks, so both ages have to be of one statement.
_EARLIER_ROWS = """
SELECT {oid}::pg_catalog.int8,
       EXISTS (SELECT FROM ONLY {table} r
                WHERE pg_catalog.age(r.xmin) NOT BETWEEN 0 AND pg_catalog.age({attach}::pg_catalog.xid)
                   OR r.xmin = ANY ({rewrites}::pg_catalog.xid[])),
       EXISTS (SELECT FROM ONLY {table} r WHERE r.xmin = {attach}::pg_catalog.xid),
       EXISTS (SELECT FROM ONLY {table})
"""
#: So many partitions are read by one statement. The time to plan it grows with the square of their number.
_PARTITIONS_AT_ONCE: Final = 50


# Foreign and unlogged tables, and such partitions of roots. Like _PARTITION_QUERY it waits for no lock.
_UNSENT_QUERY = """
WITH RECURSIVE tree(oid) AS (
    SELECT o.oid FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS o(oid)
     UNION
    SELECT i.inhrelid
      FROM tree t
      JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending
      JOIN pg_catalog.pg_class k ON k.oid = i.inhrelid AND k.relispartition)
SELECT pg_catalog.format('%%s.%%s', n.nspname, c.relname)
  FROM tree t
  JOIN pg_catalog.pg_class c ON c.oid = t.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'f' OR c.relpersistence = 'u'
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


@dataclass(frozen=True, slots=True)
class Publication:
    """A row of ``pg_publication``."""

    name: str
    #: Whether it is ``FOR ALL TABLES``.
    all_tables: bool
    inserts: bool
    updates: bool
    deletes: bool
    truncates: bool
    via_partition_root: bool
    oid: int
    #: The transaction that last wrote the row. Any ALTER PUBLICATION ... SET does so.
    written_by: str
    #: Whether stored generated columns are published; version 18 and later.
    generated_columns: bool


def read_publications(session: Session, names: Sequence[str]) -> tuple[Publication, ...]:
    """Describe the publications, in the order of ``names``.

    From version 18 on the server only warns of a missing publication, and leaves its changes out. So this has
    to be asked.

    :raises PublicationMissing: one does not exist, on any version.
    """
    found = {each.name: each for each in _existing(session, names)}
    if missing := [name for name in names if name not in found]:
        quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in missing)
        raise PublicationMissing(
            f"There is no publication {quoted} in this database.",
            advice=f"CREATE PUBLICATION {quoted.split(', ', maxsplit=1)[0]} FOR TABLE ...; "
            "or correct publication_names. The slot was not moved.",
        )
    return tuple(found[name] for name in names)


def read_table_names(session: Session, publication_name: str) -> tuple[str, ...]:
    """The tables of a publication as ``schema.table``, sorted."""
    with translated():
        rows = session.execute(_TABLE_NAME_QUERY, (publication_name,)).fetchall()
    return tuple(name for (name,) in rows)


def changed_since_slot(
    session: Session, slot_name: str, names: Sequence[str]
) -> list[tuple[str, str | None]]:
    """Publications, and tables that were added to one, whose rows in the catalog are new to the slot.

    The slot may need transactions from before its position, so a later run may find a change again.

    :returns: the publication's name, and the table's; None in place of a table: the publication itself.
    """
    with translated():
        return session.execute(_CHANGED_QUERY, (slot_name, list(names))).fetchall()


def _existing(session: Session, names: Sequence[str]) -> list[Publication]:
    """The publications that exist, by name."""
    with translated():
        rows = session.execute(_PUBLICATION_QUERY, (list(names),)).fetchall()
    return [Publication(*row) for row in rows]


def read_published_set(
    session: Session, publication_names: Sequence[str], tables: Sequence[PublishedTable]
) -> PublishedSet:
    """Read the publications, and by what each of the tables is published now.

    :param tables: all that the publications publish.
    """
    oids = [each.relation_oid for each in tables]
    publications = _existing(session, publication_names)
    with translated():
        memberships = session.execute(
            _MEMBERSHIP_QUERY, {"names": list(publication_names), "oids": oids}
        ).fetchall()
    of_table: dict[int, list[str]] = {oid: [] for oid in oids}
    leaves_out: dict[int, list[tuple[str, str]]] = {oid: [] for oid in oids}
    for oid, membership, operations in memberships:
        of_table[oid].append(membership)
        if operations:
            leaves_out[oid].append((membership, operations))
    partitions = read_partitions(session, tables)
    return PublishedSet(
        tuple(
            PublicationVersion(
                each.name,
                each.oid,
                each.written_by,
                each.via_partition_root,
                each.generated_columns,
            )
            for each in publications
        ),
        tuple(
            TableMembership(
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
    """The partitions that hold the rows of each table, by OID, as ``TableMembership`` has them."""
    roots = [each.relation_oid for each in tables if each.kind == "p"]
    leaves: dict[int, list[str]] = {each.relation_oid: [] for each in tables}
    if roots:
        with translated():
            rows = session.execute(_PARTITION_QUERY, (roots,)).fetchall()
        for oid, partition in rows:
            leaves[oid].append(partition)
    return {oid: tuple(partitions) for oid, partitions in leaves.items()}


@dataclass(frozen=True, slots=True)
class AttachedPartition:
    """A partition that was a table of its own before."""

    name: str
    #: Whether it has rows that are older than the transaction of its ATTACH, or were all written again since;
    #: and rows that this transaction wrote. None: the role may not read it, or not all of it.
    has_older_rows: bool | None
    has_rows_of_attach: bool | None
    #: Whether it has any row.
    has_rows: bool | None


def attached_partitions(session: Session, roots: Mapping[int, int]) -> dict[int, AttachedPartition]:
    """Of partitions, those that were tables of their own before.

    Each is read until the first row of either kind. A row is not found if its transaction, or its savepoint,
    began after that of the ATTACH, and ended before the ATTACH.

    :param roots: the OID of each partition's root.
    :returns: by the OID of the partition.
    """
    with translated():
        rows = session.execute(_ATTACHED_QUERY, (list(roots), list(roots.values()))).fetchall()
        asked = [
            sql.SQL(_EARLIER_ROWS).format(
                oid=sql.Literal(oid),
                table=sql.Identifier(schema, table),
                attach=sql.Literal(attach),
                rewrites=sql.Literal(rewrites),
            )
            for oid, schema, table, attach, is_readable, rewrites in rows
            if is_readable
        ]
        earlier: dict[int, tuple[bool, ...]] = {}
        for first in range(0, len(asked), _PARTITIONS_AT_ONCE):
            some = sql.SQL(" UNION ALL ").join(asked[first : first + _PARTITIONS_AT_ONCE])
            found = session.execute(some).fetchall()
            earlier |= {oid: tuple(answers) for oid, *answers in found}
    return {
        oid: AttachedPartition(f"{schema}.{table}", *earlier.get(oid, (None, None, None)))
        for oid, schema, table, *_ in rows
    }


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


def warn_of_missing_operations(publications: Sequence[Publication]) -> tuple[str, ...]:
    """Warn of publications that leave operations out. Nothing else would show it."""
    named = []
    for each in publications:
        left_out = [
            operation
            for operation in ("inserts", "updates", "deletes", "truncates")
            if not getattr(each, operation)
        ]
        if left_out:
            named.append(each.name)
            log.warning(
                "Publication %s does not publish %s: they do not reach the lake.",
                each.name,
                ", ".join(left_out),
            )
    return tuple(named)


def warn_of_missing_identity(
    publications: Sequence[Publication], tables: Sequence[PublishedTable]
) -> tuple[str, ...]:
    """Warn of tables whose updates and deletes the server refuses to its own users.

    For a root these are partitions. Another warning names the partitions whose identity does not have the
    key: their updates and deletes do not say which row they mean.
    """
    if not any(each.updates or each.deletes for each in publications):
        return ()
    named: tuple[str, ...] = ()
    for table in tables:
        if not table.leaves:
            is_full = table.replica_identity == "f"
            if not is_full and not any(each.is_identity for each in table.columns):
                named = (*named, table.name)
        for leaves in table.leaves:
            if leaves.identity is None:
                named = (*named, *leaves.names)
            elif not leaves.identity.is_full and not (
                table.key_columns and leaves.identity.covers(table.key_columns)
            ):
                log.warning(
                    "%s has the key (%s), and %d of its partitions have the replica identity (%s), which does"
                    " not hold it: %s. A batch with their updates or deletes may be refused. ALTER TABLE"
                    " partition REPLICA IDENTITY FULL, or key_columns within the identity of all partitions,"
                    " lets them be followed.",
                    table.name,
                    ", ".join(table.key_columns) or "none",
                    leaves.count,
                    ", ".join(sorted(leaves.identity.columns)),
                    leaves,
                )
    if named:
        log.warning(
            "%d published tables have no replica identity, so the source refuses UPDATE and DELETE on"
            " them: %s. ALTER TABLE ... REPLICA IDENTITY FULL, or a primary key, permits them.",
            len(named),
            ", ".join(named[:20]) + (", ..." if len(named) > 20 else ""),
        )
    return named


def warn_of_unsent_partitions(
    session: Session, tables: Sequence[PublishedTable]
) -> tuple[str, ...]:
    """Warn of partitions that are foreign or unlogged tables.

    The catalog says that they are published if FOR TABLE names their root, or if they are published via
    their root. A copy has their rows. The stream never has their changes.
    """
    oids = [each.relation_oid for each in tables]
    with translated():
        named = tuple(name for (name,) in session.execute(_UNSENT_QUERY, (oids,)).fetchall())
    if named:
        log.warning(
            "Partitions that are foreign or unlogged tables: %d. PostgreSQL never sends what is written to"
            " them: %s. Their rows in the lake stay as they were copied. For an unlogged one, ALTER TABLE"
            " partition SET LOGGED, and then copy the published table (copy_tables).",
            len(named),
            ", ".join(named[:20]) + (", ..." if len(named) > 20 else ""),
        )
    return named
