"""Airflow connections in the form that capture understands. It opens nothing.

One connection gives the same libpq parameters to the hook, which may block, and to the trigger, which may
not. This module also decides that a server on another machine has to show a valid certificate.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_provider_pgoutput.airflow_versions import AirflowNotFoundException, BaseHook
from airflow_provider_pgoutput.capture.source import pinned
from airflow_provider_pgoutput.errors import ConfigurationError, ConnectionNotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Connection

log = logging.getLogger(__name__)

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_VERIFIED = ("verify-ca", "verify-full")
#: The extra that names the connection past a pooler.
DIRECT_CONN_ID = "direct_conn_id"
#: The scheme of the URI by which Airflow knows a pipeline as an asset, and that of its proof.
ASSET_SCHEME = "pgoutput://"
PROOF_SCHEME = "pgoutput-proof://"
#: Parameters of libpq whose values are secrets.
_SECRETS = (
    "password",
    "sslpassword",
    "oauth_client_secret",
    "scram_client_key",
    "scram_server_key",
)


def get_connection(conn_id: str) -> Connection:
    """Return the Airflow connection ``conn_id``.

    :raises ConnectionNotFound: the connection does not exist, or a secrets backend or the API server did not
        answer. Airflow does not tell the two apart.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConnectionNotFound(
            f"The Airflow connection {conn_id!r} was not found.",
            advice="nothing, if the API server or a secrets backend did not answer; otherwise create the"
            " connection (Admin > Connections) or name another one.",
        ) from error


def secret_of(conn_id: str | None) -> bytes | None:
    """The password of a connection that keeps the secret of hashed columns; None: there is none.

    :param conn_id: None: no connection keeps it.
    :raises ConnectionNotFound: see ``get_connection``.
    """
    password = None if conn_id is None else get_connection(conn_id).password
    return password.encode() if password else None


def asset_uri(connection: Connection, slot_name: str) -> str:
    """The name of a pipeline as an asset of Airflow: ``pgoutput://host:port/database/slot``.

    Nothing but host, port and database is taken from the connection. What the connection does not say is
    ``localhost``, 5432 and ``postgres``.
    """
    host = str(connection.host or "localhost").split(",")[0]
    if host.startswith("/"):
        # The folder of a socket.
        host = "localhost"
    elif ":" in host:
        host = f"[{host}]"
    else:
        host = quote(host)
    database = quote(str(connection.schema or "postgres"), safe="")
    return f"{ASSET_SCHEME}{host}:{connection.port or 5432}/{database}/{slot_name}"


def proof_uri(connection: Connection, slot_name: str) -> str:
    """The name of a pipeline's proof as an asset: ``pgoutput-proof://host:port/database/slot``."""
    return PROOF_SCHEME + asset_uri(connection, slot_name).removeprefix(ASSET_SCHEME)


def is_asset_uri(uri: str) -> bool:
    """Whether it has the form of ``asset_uri``."""
    return uri.startswith(ASSET_SCHEME) and uri.removeprefix(ASSET_SCHEME).count("/") == 2


def libpq_parameters(connection: Connection, extra: dict[str, Any]) -> dict[str, str]:
    """Parameters of libpq as ``PostgresHook`` would pass them, without an IAM token.

    A server on another machine is verified, unless the connection names a lower ``sslmode``. Then a warning
    is given. libpq's own default would neither verify the server nor insist on encryption.

    :param connection: a connection of type ``postgres``.
    :param extra: its extras, already parsed. Each of them is a libpq parameter (``sslmode``, ``sslrootcert``,
        ``application_name``...), unless ``PostgresHook`` uses it itself, or it is ``direct_conn_id``.
    :raises ConfigurationError: the connection is of another type.

    Source: https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS
    """
    from airflow.providers.postgres.hooks.postgres import PostgresHook

    if connection.conn_type not in ("postgres", "postgresql"):
        raise ConfigurationError(
            f"The connection {connection.conn_id!r} has type {connection.conn_type!r}.",
            advice="use a connection of type postgres.",
        )
    parameters = {
        "host": connection.host,
        "port": connection.port,
        "user": connection.login,
        "password": connection.password,
        "dbname": connection.schema,
        "fallback_application_name": "airflow-provider-pgoutput",
        **pinned.DEFAULTS,
    }
    parameters |= {
        name: value
        for name, value in extra.items()
        if name not in PostgresHook.ignored_extra_options and name != DIRECT_CONN_ID
    }
    given = {name: _text(value) for name, value in parameters.items() if value not in (None, "")}
    return _with_tls(given, str(connection.conn_id))


def libpq_string(parameters: Mapping[str, str], conn_id: str) -> str:
    """The parameters as one string for libpq. It is a secret.

    :raises ConfigurationError: libpq does not know one of them. It came from the extras.
    """
    from psycopg import pq
    from psycopg.conninfo import make_conninfo

    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    if unknown := sorted(parameters.keys() - known):
        raise ConfigurationError(
            f"The connection {conn_id!r} has extras that libpq does not know: {', '.join(unknown)}.",
            advice="correct or remove them; each extra is a connection parameter of libpq, in the version"
            " that psycopg brings.",
        )
    return make_conninfo("", **parameters)


def secret_values(parameters: Mapping[str, str]) -> list[str]:
    """The values of libpq's parameters that nobody may see."""
    return [parameters[name] for name in _SECRETS if parameters.get(name)]


def _with_tls(parameters: dict[str, str], conn_id: str) -> dict[str, str]:
    """Choose ``sslmode`` if nobody did, and warn of a mode that does not verify the server.

    Source: https://www.postgresql.org/docs/current/libpq-ssl.html#LIBPQ-SSL-PROTECTION
    """
    if not _is_remote(parameters):
        return parameters
    # A service file may name the mode, and the value here would win over it.
    chosen = parameters.get("sslmode") or os.environ.get("PGSSLMODE")
    if not chosen and "service" not in parameters:
        return {**parameters, "sslmode": "verify-full"}
    if chosen and chosen not in _VERIFIED:
        log.warning(
            "The connection %s has sslmode %s, which does not verify its server: anyone on the way could read"
            ' along. Set {"sslmode": "verify-full", "sslrootcert": ...} in its extras.',
            conn_id,
            chosen,
        )
    # The executors of a copy on Spark do not have this process's environment.
    return {**parameters, "sslmode": chosen} if chosen else parameters


def _is_remote(parameters: Mapping[str, str]) -> bool:
    """Whether one of the hosts that libpq may connect to is another machine."""
    named = (
        parameters.get("hostaddr") or parameters.get("host") or os.environ.get("PGHOST") or "/run"
    )
    # Sockets of this machine are a folder, or an abstract name.
    return any(
        host not in _LOCAL_HOSTS and not host.startswith(("/", "@")) for host in named.split(",")
    )


def _text(value: object) -> str:
    # libpq knows no other booleans than 0 and 1.
    return str(int(value)) if isinstance(value, bool) else str(value)
