"""Finds a connection pooler between us and the server, and refuses what does not work through one.

In session mode a pooler gives one session of the server to one client, as long as the client stays. Reading
over SQL works so. In transaction and statement mode the next statement may meet another session of the
server, without our settings. Values would come in another form. So this is refused before anything is read.

A pooler has no session of the server for a replication connection. Only PgBouncer 1.23 and later pass one on.

Sources: https://www.pgbouncer.org/features.html, https://www.pgbouncer.org/config.html#ignore_startup_parameters
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    Session = psycopg.Connection[tuple[Any, ...]]

_PID = "SELECT pg_catalog.pg_backend_pid()"
_ADDRESS = (
    "SELECT pg_catalog.host(pg_catalog.inet_server_addr()), pg_catalog.current_setting('port')"
)


def is_pooled(session: Session) -> bool:
    """Whether a pooler, or a proxy that hands out its own numbers, stands between us and the server.

    The process number that came when the session began is then not the one of the server's process.
    """
    with translated():
        return _pid(session) != session.info.backend_pid


def refuse_shared_sessions(session: Session, open_another: Callable[[], Session]) -> None:
    """Refuse a pooler that lets two clients share a session of the server.

    With two connections, each in a transaction, the pooler has to use two sessions. It then takes one of the
    two for the next statement: the one that became free first, or last. Both orders are tried.

    :raises ConfigurationError: the pooler is in transaction or statement mode.
    """
    with translated(), open_another() as other:
        first = _pid(session)
        if first == _pid(other):
            raise _shared(session)
        for one, two in ((session, other), (other, session)):
            pids = {}
            for each in (one, two):
                each.execute("BEGIN")
                pids[each] = _pid(each)
            for each in (one, two):
                each.execute("COMMIT")
            if any(_pid(each) != pids[each] for each in (one, two)):
                raise _shared(session)
        if _pid(session) != first:
            raise _shared(session)


def replication_refused(session: Session) -> ConfigurationError:
    """The error for a task that needs a replication connection, where a pooler gives none."""
    return ConfigurationError(
        f"The connection leads to a connection pooler at {_at(session.info.host, session.info.port)}, which"
        " passes no replication connection to the server. A new slot, a copy of a table and the walsender"
        " need one.",
        advice=f"{_direct(session)} Then put the name of that Airflow connection into the extras of this one:"
        ' {"direct_conn_id": "..."}.',
    )


def _shared(session: Session) -> ConfigurationError:
    return ConfigurationError(
        f"The connection leads to a connection pooler at {_at(session.info.host, session.info.port)}, in"
        " transaction or statement mode: its clients share the sessions of the server, so our settings do not"
        " stay.",
        advice=f"{_direct(session)} Or let the pooler have this database in session mode"
        " (pool_mode=session).",
    )


def _direct(session: Session) -> str:
    """Where the server itself listens, as it says."""
    row = session.execute(_ADDRESS).fetchone()
    assert row is not None, "a SELECT of scalars gives a row"
    host, port = row
    return f"connect to the server itself, past the pooler: it says that it listens at {_at(host, port)}."


def _at(host: str | None, port: object) -> str:
    return f"{host}, port {port}" if host else f"port {port}"


def _pid(session: Session) -> int:
    row = session.execute(_PID).fetchone()
    assert row is not None, "a SELECT of scalars gives a row"
    return int(row[0])
