"""Opens connections to the source. Every setting that changes bytes is pinned, and then checked.

A default of the role or the database, a ``PG...`` variable of the environment, or the connection's own
``options`` must not win. So the settings are given at the start, set again and read back. A connection pooler
may refuse settings at the start. Then they are only set and read back.

Source: https://www.postgresql.org/docs/current/runtime-config-client.html
"""

from __future__ import annotations

import functools
import logging
import re
from typing import TYPE_CHECKING, Any, TypeVar, cast

import adbc_driver_manager
import adbc_driver_postgresql
import adbc_driver_postgresql.dbapi
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgoutput.capture.source import pinned
from airflow_provider_pgoutput.capture.source.errors import past_pooler, translated
from airflow_provider_pgoutput.capture.source.pinned import (
    PINNED,
    refuses_startup,
    startup_options,
)
from airflow_provider_pgoutput.capture.source.pooler import (
    is_pooled,
    refuse_shared_sessions,
    replication_refused,
)
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa
    from adbc_driver_manager.dbapi import Connection as AdbcConnection
    from adbc_driver_manager.dbapi import Cursor as AdbcCursor

    Session = psycopg.Connection[tuple[Any, ...]]

_Opened = TypeVar("_Opened")


log = logging.getLogger(__name__)

_DRIVER = "adbc-driver-postgresql"
#: Minor versions of 1 of the driver whose wheels for Linux run code that the compiler did not optimise.
#: ``docs/internals/dependencies.md`` has the measurement.
_SLOW_DRIVERS = range(9, 14)
_TIMES_SLOWER = "2 to 5"


APPLICATION_NAME = "airflow-provider-pgoutput"


#: How long to wait for locks in the catalog: longer than quick DDL takes, but not as long as a prepared
#: transaction.
LOCK_TIMEOUT_SECONDS = 60


#: Pinned if the server knows it (17 and later).
_PINNED_IF_KNOWN = {"transaction_timeout": "0"}


def parameters(
    conninfo: str | Mapping[str, Any],
    *,
    changed: Mapping[str, str | None] | None = None,
    **more: str | None,
) -> dict[str, Any]:
    """Connection parameters of libpq, with the pinned settings among them.

    :param conninfo: a libpq connection string or URI, or its parameters.
    :param changed: pinned settings with another value in this session; None: the server's own value.
    :param more: parameters that win over those of ``conninfo``.
    :raises ConfigurationError: ``conninfo`` cannot be parsed.
    """
    given = _as_given(conninfo)
    own = given.get("options")
    return {
        **pinned.DEFAULTS,
        **given,
        "application_name": given.get("application_name") or APPLICATION_NAME,
        "client_encoding": "UTF8",
        "options": startup_options(own, changed),
        **{name: value for name, value in more.items() if value is not None},
    }


def _as_given(conninfo: str | Mapping[str, Any]) -> dict[str, Any]:
    with translated():
        if isinstance(conninfo, str):
            return dict(conninfo_to_dict(conninfo))
        return {name: value for name, value in conninfo.items() if value is not None}


def connect(
    conninfo: str | Mapping[str, Any], *, replication: bool = False, slot: str | None = None
) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a pinned session through psycopg, in autocommit.

    :param replication: open a walsender session for logical replication instead of a plain one.
    :param slot: for the text of an error.
    :raises SourceUnavailable: the source does not answer.
    :raises ConfigurationError: the source refuses us, a setting cannot be pinned, or a pooler stands in
        between and is not in session mode.
    """
    with translated(slot=slot):
        if replication:
            connection = _psycopg(parameters(conninfo, replication="database"))
        else:
            connection = open_pinned(conninfo, _psycopg)
        try:
            # Before anything is set: a shared session would keep our settings for its other clients.
            if not replication and is_pooled(connection):
                refuse_shared_sessions(connection, lambda: open_pinned(conninfo, _psycopg))
            # Without parameters psycopg uses the simple protocol, the only one that a walsender has.
            connection.execute(_set_statement())
            _check(dict(connection.execute(_show_statement()).fetchall()))
        except BaseException:
            connection.close()
            raise
    return connection


def _psycopg(given: dict[str, Any]) -> Session:
    return psycopg.connect(**given, autocommit=True)


def open_pinned(
    conninfo: str | Mapping[str, Any],
    open_session: Callable[[dict[str, Any]], _Opened],
    *,
    changed: Mapping[str, str | None] | None = None,
) -> _Opened:
    """Open a session with the pinned settings at its start, or without them if a pooler refuses these.

    The caller has to set them again in any case. The connection's own ``options`` are never left out.
    """
    given = parameters(conninfo, changed=changed)
    try:
        return open_session(given)
    except (psycopg.OperationalError, adbc_driver_manager.Error) as error:
        if not refuses_startup(str(error)):
            raise
    return open_session({**given, "options": _as_given(conninfo).get("options", "")})


def check_replication(
    session: Session, conninfo: str | Mapping[str, Any], *, slot: str | None = None
) -> None:
    """Refuse a pooler that gives no replication connection, before anything is made that needs one.

    Some poolers take the parameter ``replication`` and ignore it. So the connection is also asked something
    that only a walsender understands.

    :param session: a session of the same server. Without a pooler nothing is tried.
    :param conninfo: where the replication connection would be opened.
    :raises ConfigurationError: there is none.
    """
    if not is_pooled(session):
        return
    try:
        with connect(conninfo, replication=True, slot=slot) as walsender:
            walsender.execute("IDENTIFY_SYSTEM")
    except psycopg.errors.SyntaxError:
        raise replication_refused(session) from None
    except ConfigurationError as error:
        if not refuses_startup(str(error)):
            raise
        raise replication_refused(session) from error


def limit_lock_waits(
    connection: psycopg.Connection[tuple[Any, ...]], seconds: float | None = None
) -> None:
    """Let statements of this session fail with ``SourceLocked`` instead of waiting for a lock for ever.

    Only for reading. Creating a slot has to wait for open transactions.

    :param seconds: the longest wait; None: ``LOCK_TIMEOUT_SECONDS``.
    """
    limit = LOCK_TIMEOUT_SECONDS if seconds is None else seconds
    with translated():
        connection.execute(
            sql.SQL("SELECT pg_catalog.set_config('lock_timeout', {}, false)").format(
                sql.Literal(f"{limit * 1000:.0f}ms")
            )
        )


def connect_adbc(conninfo: str | Mapping[str, Any], *, slot: str | None = None) -> AdbcConnection:
    """Open a pinned session through ADBC, in autocommit. Rows come as Arrow.

    :raises SourceUnavailable: the source does not answer.
    :raises ConfigurationError: the source refuses us, or a setting cannot be pinned.
    """
    _warn_of_slow_driver()
    with translated(slot=slot):
        connection = open_pinned(
            conninfo,
            lambda given: adbc_driver_postgresql.dbapi.connect(
                make_conninfo(**given), autocommit=True
            ),
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute(_set_statement().as_string())
                cursor.fetchall()
                cursor.execute(_show_statement().as_string())
                _check(dict(cursor.fetchall()))
        except BaseException:
            connection.close()
            raise
    return cast("AdbcConnection", connection)


def slow_driver(version: str) -> str | None:
    """What to say about a release of the driver; None: nothing."""
    minor = re.match(r"1\.(\d+)", version)
    if minor is None or int(minor[1]) not in _SLOW_DRIVERS:
        return None
    return (
        f"{_DRIVER} {version} takes {_TIMES_SLOWER} times the CPU time of 1.8 to fetch rows: its wheel is"
        f" built without optimisation. It works; pip install '{_DRIVER}==1.8.*' brings the fast one."
    )


@functools.cache
def _warn_of_slow_driver() -> None:
    """Log it, once in a process."""
    # Not from the distribution's metadata, which a bundled application may lack.
    if said := slow_driver(adbc_driver_postgresql.__version__):
        log.warning("%s", said)


def record_batches(
    cursor: AdbcCursor, statement: str, *, slot: str | None = None, table: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Run a query through ADBC, and yield its rows in batches.

    :raises PgoutputError: the server refused something, perhaps in the middle of the answer.
    """
    with translated(slot=slot, table=table):
        cursor.execute(statement)
        # Not fetch_record_batch(): its reader raises only the text of an error, without the SQLSTATE.
        reader = cursor._results.reader  # type: ignore[union-attr]
    while True:
        with translated(slot=slot, table=table):
            try:
                record_batch = reader.read_next_batch()
            except StopIteration:
                return
        yield record_batch


def _set_statement() -> sql.Composed:
    """One statement that pins all settings for the session, over any default and variable."""
    calls = [
        sql.SQL("pg_catalog.set_config({}, {}, false)").format(
            sql.Literal(name), sql.Literal(value)
        )
        for name, value in PINNED.items()
    ]
    calls += [
        sql.SQL(
            "(SELECT pg_catalog.set_config(name, {}, false) "
            "FROM pg_catalog.pg_settings WHERE name = {})"
        ).format(sql.Literal(value), sql.Literal(name))
        for name, value in _PINNED_IF_KNOWN.items()
    ]
    # This setting is not read back: no value depends on it, and servers on Windows do not have it.
    calls.append(
        sql.SQL(
            "(SELECT pg_catalog.set_config('client_connection_check_interval', {}, false)"
            " WHERE pg_catalog.version() !~* 'visual c|msvc|mingw')"
        ).format(sql.Literal(pinned.CLIENT_CHECK_INTERVAL))
    )
    # Superusers may set it, and roles with a grant. Some refusals are recognised by English words.
    calls.append(
        sql.SQL(
            "(SELECT pg_catalog.set_config('lc_messages', {}, false)"
            " WHERE pg_catalog.has_parameter_privilege('lc_messages', 'SET'))"
        ).format(sql.Literal("C"))
    )
    return sql.SQL("SELECT ") + sql.SQL(", ").join(calls)


def _show_statement() -> sql.Composed:
    names = sql.SQL(", ").join(sql.Literal(name) for name in (*PINNED, *_PINNED_IF_KNOWN))
    return sql.SQL("SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN ({})").format(
        names
    )


def _check(shown: dict[str, str]) -> None:
    wanted = {
        **PINNED,
        **{name: _PINNED_IF_KNOWN[name] for name in _PINNED_IF_KNOWN if name in shown},
    }
    for name, value in wanted.items():
        found = shown.get(name, "")
        if found.replace(" ", "") != value.replace(" ", ""):
            raise ConfigurationError(
                f"The session's {name} is {found!r} although {value!r} was set; "
                "the bytes of the stream would depend on it.",
                advice=f"{past_pooler()} It does not keep our settings.",
            )
