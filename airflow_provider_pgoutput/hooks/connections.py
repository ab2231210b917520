"""Airflow connections in the form that the rooms behind the doors understand.

One connection gives the same libpq parameters to the hook, which may block, and to the trigger, which
may not. What is not here: opening anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_pgoutput.capture.source import liveness
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Connection


def get_connection(conn_id: str) -> Connection:
    """Return the Airflow connection ``conn_id``.

    :raises ConfigurationError: when nobody defined it.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigurationError(
            f"The Airflow connection {conn_id!r} does not exist.",
            advice="create it (Admin > Connections) or name another one.",
        ) from error


def libpq_parameters(connection: Connection, extra: dict[str, Any]) -> dict[str, str]:
    """Parameters of libpq as ``PostgresHook`` would pass them, without an IAM token.

    :param connection: a connection of type ``postgres``.
    :param extra: its extras, already parsed: every one that ``PostgresHook`` does not keep for itself is
        a libpq parameter (``sslmode``, ``sslrootcert``, ``application_name``...).
    :raises ConfigurationError: when the connection is of another type.

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
        **liveness.DEFAULTS,
    }
    parameters |= {
        name: value
        for name, value in extra.items()
        if name not in PostgresHook.ignored_extra_options
    }
    return {name: _text(value) for name, value in parameters.items() if value not in (None, "")}


def _text(value: object) -> str:
    # libpq knows no other booleans than 0 and 1.
    return str(int(value)) if isinstance(value, bool) else str(value)
