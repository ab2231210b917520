"""Finds a connection pooler between us and the server, and refuses what does not work through one.

In session mode a pooler gives one session of the server to one client, as long as the client stays. Reading
over SQL works so. In transaction and statement mode the next statement may meet another session of the
server, without our settings. Values would come in another form. So this is refused before anything is read.

A pooler has no session of the server for a replication connection. Only PgBouncer 1.23 and later pass one on.

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
    """Whether a pooler, or a proxy that hands out its own numbers, stands between us and the server.

    The process number that came when the session began is then not the one of the server's process.
    """
    with translated():
        return _pid(session) != session.info.backend_pid


def refuse_shared_sessions(session: Session, open_another: Callable[[], Session]) -> None:
    """Refuse a pooler that lets two clients share a session of the server.

    In session mode each of two connections meets one session of the server, and always the same one. In the
    other modes a pooler takes any session that is free. After COMMIT both are free. Some poolers hand out the
    one freed last, others the one freed first. So both connections are asked in both orders.

    :raises ConfigurationError: the pooler is in transaction or statement mode.
    """
    with translated(), open_another() as other:
        own = {each: _pid(each) for each in (session, other)}
        if own[session] == own[other]:
            raise _shared(session)
        for order in ((other, session), (session, other)):
            # Also before BEGIN, because a pooler in statement mode refuses that.
            _check_own(own, order)
            for statement in ("BEGIN", "COMMIT"):
                for each in order:
                    each.execute(statement)
                _check_own(own, order)


def _check_own(own: Mapping[Session, int], order: tuple[Session, Session]) -> None:
    """Refuse a pooler if a connection meets another session of the server than before."""
    if any(_pid(each) != own[each] for each in order):
        raise _shared(order[0])


def replication_refused(session: Session) -> ConfigurationError:
    """The error for a task that needs a replication connection, where a pooler gives none."""
    return ConfigurationError(
        f"The connection leads to a connection pooler at {_at(session.info.host, session.info.port)}, which"
        " passes no replication connection to the server. A new slot, a copy of a table and the walsender"
        " need one.",
        advice=f"{_direct(session)} {DIRECT_CONNECTION}",
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
    """The advice to connect past the pooler, with the address at which the server says that it listens."""
    row = session.execute(_ADDRESS).fetchone()
    assert row is not None, "a SELECT of scalars gives a row"
    host, port = row
    return past_pooler(f"it says that it listens at {_at(host, port)}")


def _at(host: str | None, port: object) -> str:
    return f"{host}, port {port}" if host else f"port {port}"


def _pid(session: Session) -> int:
    # A statement that psycopg prepares would stay in a session that others use, too.
    row = session.execute(_PID, prepare=False).fetchone()
    assert row is not None, "a SELECT of scalars gives a row"
    return int(row[0])
