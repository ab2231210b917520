"""Checks whether the role may read the tables to be copied, before a slot is made for the copy.

A refusal in the middle of a copy would leave a slot that holds back WAL. The right to replicate is not
checked here, because managed services have their own ways to grant it. The server refuses, see ``errors.py``.

Source: https://www.postgresql.org/docs/current/logical-replication-security.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.errors import MissingPrivilege

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.source.session import Session

#: At most so many statements in one message; the rest are counted.
_SHOWN = 10

# Without the right on a table, a role may still read it column by column. It then needs the columns of the
# row filters, too: the catalog records on which columns a filter depends.
_RIGHTS_QUERY = """
WITH wanted AS (
    SELECT w.oid, pg_catalog.array_agg(w.name::pg_catalog.text) AS names
      FROM ROWS FROM (pg_catalog.unnest(%s::pg_catalog.oid[]),
                      pg_catalog.unnest(%s::pg_catalog.text[])) AS w(oid, name)
     GROUP BY w.oid)
SELECT c.oid::pg_catalog.int8,
       pg_catalog.quote_ident(CURRENT_USER::pg_catalog.text), pg_catalog.quote_ident(n.nspname),
       pg_catalog.format('%%I.%%I', n.nspname, c.relname),
       pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
       pg_catalog.has_table_privilege(c.oid, 'SELECT')
       OR NOT EXISTS (
           SELECT FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = c.oid
              AND (a.attname = ANY (w.names)
                   OR EXISTS (
                       SELECT FROM pg_catalog.pg_publication_rel r
                         JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
                         JOIN pg_catalog.pg_depend d
                           ON d.classid = 'pg_catalog.pg_publication_rel'::pg_catalog.regclass
                          AND d.objid = r.oid AND d.refobjid = c.oid AND d.refobjsubid = a.attnum
                          AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
                        WHERE r.prrelid = c.oid AND r.prqual IS NOT NULL AND p.pubname = ANY (%s)))
              AND NOT pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT')),
       pg_catalog.row_security_active(c.oid)
  FROM wanted w
  JOIN pg_catalog.pg_class c ON c.oid = w.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 ORDER BY 3, 4
"""


def check_may_copy(
    session: Session,
    publication_names: Sequence[str],
    tables: Sequence[PublishedTable],
    *,
    slot_name: str,
    one_by_one: bool = False,
) -> dict[int, MissingPrivilege]:
    """Refuse to begin a copy if the role may not read a table, or not all of it.

    :param publication_names: the publications that are read, because of their row filters.
    :param one_by_one: return the error of each such table, by OID, and raise none.
    :raises MissingPrivilege: with the statements that grant what is missing.
    """
    columns = [(each.relation_oid, column.name) for each in tables for column in each.columns]
    oids, names = [oid for oid, _ in columns], [name for _, name in columns]
    with translated(slot=slot_name):
        parameters = (oids, names, list(publication_names))
        rows = [_Rights(*row) for row in session.execute(_RIGHTS_QUERY, parameters).fetchall()]
    lacking = [each for each in rows if each.is_lacking]
    if lacking and not one_by_one:
        raise _missing(lacking, slot_name)
    return {each.relation_oid: _missing([each], slot_name) for each in lacking}


class _Rights(NamedTuple):
    """What the role may do with one table. Names are quoted."""

    relation_oid: int
    role: str
    schema: str
    table: str
    may_use_schema: bool
    may_read: bool
    #: Whether row security would hide rows.
    is_secured: bool

    @property
    def is_lacking(self) -> bool:
        return self.is_secured or not (self.may_use_schema and self.may_read)


def _missing(lacking: Sequence[_Rights], slot_name: str) -> MissingPrivilege:
    """The error for tables that the role may not read.

    :param lacking: at least one.
    """
    role = lacking[0].role
    schemas = dict.fromkeys(each.schema for each in lacking if not each.may_use_schema)
    unreadable = [each.table for each in lacking if not each.may_read]
    filtered = [each.table for each in lacking if each.is_secured]
    statements = [f"GRANT USAGE ON SCHEMA {schema} TO {role}" for schema in schemas]
    statements += [f"GRANT SELECT ON {table} TO {role}" for table in unreadable]
    more = len(statements) - _SHOWN
    statements = statements[:_SHOWN]
    if more > 0:
        statements.append(f"and {more} more; or GRANT pg_read_all_data TO {role}")
    if filtered:
        # Without it the copy would leave rows out. With row_security = off it is an error instead.
        statements.append(f"ALTER ROLE {role} BYPASSRLS, for row security on {filtered[0]}")
    affected = [each.table for each in lacking if each.schema in schemas]
    first = next(iter([*affected, *unreadable, *filtered]))
    return MissingPrivilege(
        f"The role {role} may not read all of the tables that are to be copied.",
        slot=slot_name,
        table=first,
        advice="; ".join(statements) + ". The stream alone needs none of this.",
    )
