"""Names who holds the tables for which a run waited in vain.

The catalog's functions about publications open the published tables. So DDL that is not committed makes them
wait. In a prepared transaction it may do so for ever. ``session.py`` limits the wait.

Source: https://www.postgresql.org/docs/current/view-pg-locks.html
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.errors import SourceLocked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgoutput.capture.source.session import Session

# A prepared transaction has no process. The lock on its own ID shows which one it is.
_HOLDERS_QUERY = """
SELECT DISTINCT pg_catalog.format('%I.%I', n.nspname, c.relname),
       CASE WHEN p.gid IS NULL THEN pg_catalog.format('PID %s', l.pid)
            ELSE pg_catalog.format('prepared transaction %L', p.gid) END
  FROM pg_catalog.pg_locks l
  JOIN pg_catalog.pg_database d ON d.oid = l.database AND d.datname = pg_catalog.current_database()
  JOIN pg_catalog.pg_class c ON c.oid = l.relation AND c.relkind IN ('r', 'p', 'i')
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_locks x
    ON x.locktype = 'transactionid' AND x.granted AND x.pid IS NULL AND l.pid IS NULL
   AND x.virtualtransaction = l.virtualtransaction
  LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = x.transactionid
 WHERE l.locktype = 'relation' AND l.granted AND l.mode = 'AccessExclusiveLock'
 ORDER BY 1, 2
 LIMIT 10
"""


@contextmanager
def holders_named(session: Session, *, slot: str) -> Iterator[None]:
    """Add to a ``SourceLocked`` that is raised inside which transactions hold which tables.

    :raises SourceLocked: the same error, with names.
    """
    try:
        yield
    except SourceLocked:
        raise with_holders(session, slot=slot) from None


def with_holders(session: Session, *, slot: str, table: str | None = None) -> SourceLocked:
    """The error that says which transactions hold which tables.

    :param table: the table for which the run waited, if it is known.
    """
    with translated(slot=slot):
        rows = session.execute(_HOLDERS_QUERY).fetchall()
    holders = ", ".join(f"{held} by {holder}" for held, holder in rows)
    return SourceLocked(
        f"Tables of the source are locked: {holders or 'by a transaction that has ended since'}.",
        slot=slot,
        table=table,
        advice="wait until the DDL is committed; a prepared transaction has to be ended by COMMIT "
        "PREPARED or ROLLBACK PREPARED.",
    )
