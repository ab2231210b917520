"""Finds a connection pooler in front of the server, and refuses one that would break reading.

In session mode a client keeps the same server session until it disconnects. We can read over SQL that way. In
transaction and statement mode the next statement may run in another server session. That session lacks our
settings, so a date might come as 31.12.2024 and not as 2024-12-31. These two modes are refused before
anything is read.

Most poolers pass on no replication connection. PgBouncer does since version 1.23.

Sources: https://www.pgbouncer.org/features.html, https://www.pgbouncer.org/config.html#ignore_startup_parameters
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.capture.source.errors import (
    DIRECT_CONNECTION,
    past_pooler,
    translated,
)
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import psycopg

    Session = psycopg.Connection[tuple[Any, ...]]

_PID = "SELECT pg_catalog.pg_backend_pid()"
_ADDRESS = (
    "SELECT pg_catalog.host(pg_catalog.inet_server_addr()), pg_catalog.current_setting('port')"
)


def is_pooled(session: Session) -> bool:
    """Whether a pooler stands before the server, or a proxy that sends process numbers of its own.

    It sends such a number when the connection begins. ``pg_backend_pid()`` returns the server's.
    """
    with translated():
        return _pid(session) != session.info.backend_pid


def refuse_shared_sessions(session: Session, open_another: Callable[[], Session]) -> None:
    """Refuse a pooler that lets two clients share a server session.

    In session mode each connection has a server session of its own and keeps it. In the other modes COMMIT
    gives the server session back, and the next statement gets any free one. Example: A commits, then B. A
    pooler that hands out the session freed last now gives A the session of B. One that hands out the session
    freed first does so if B asks first. So we ask A before B, and B before A.

    :param session: one in autocommit mode, as all of ours are. So is the other.
    :raises ConfigurationError: the pooler is in transaction or statement mode.
    """
    with translated(), open_another() as other:
        own = {each: _pid(each) for each in (session, other)}
        if own[session] == own[other]:
            raise _shared(session)
        for order in ((other, session), (session, other)):
            # Also before BEGIN: a pooler in statement mode refuses BEGIN.
            _check_own(own, order)
            for statement in ("BEGIN", "COMMIT"):
                for each in order:
                    each.execute(statement)
                _check_own(own, order)


def _check_own(own: Mapping[Session, int], order: tuple[Session, Session]) -> None:
    """Refuse a pooler if a connection now runs in another server session than at first."""
    if any(_pid(each) != own[each] for each in order):
        raise _shared(order[0])


def replication_refused(session: Session) -> ConfigurationError:
    """The error for a task that needs a replication connection, if the pooler passes none on."""
    return ConfigurationError(
        f"The connection leads to a connection pooler at {_at(session.info.host, session.info.port)}, which"
        " passes no replication connection to the server. A new slot, a copy of a table and the walsender"
        " need one.",
        advice=f"{_direct(session)} {DIRECT_CONNECTION}",
    )


def _shared(session: Session) -> ConfigurationError:
    return ConfigurationError(
        f"The connection leads to a connection pooler at {_at(session.info.host, session.info.port)}, in"
        " transaction or statement mode. There clients share server sessions, and the settings of this task"
        " would be lost.",
        advice=f"{_direct(session)} Or set pool_mode=session for this database in the pooler.",
    )


def _direct(session: Session) -> str:
    """The advice to connect past the pooler, with the address at which the server says that it listens."""
    row = session.execute(_ADDRESS).fetchone()
    assert row is not None, "a SELECT of scalars gives a row"
    host, port = row
    return past_pooler(f"it says that it listens at {_at(host, port)}")


def _at(host: str | None, port: object) -> str:
    return f"{host}, port {port}" if host else f"port {port}"


def _pid(session: Session) -> int:
    # A prepared statement would stay in the server session, which another client may get next.
    row = session.execute(_PID, prepare=False).fetchone()
    assert row is not None, "a SELECT of scalars gives a row"
    return int(row[0])
