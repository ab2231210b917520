"""Airflow's door to the lake's catalog: resolves the connection and hides its secrets from logs.

Opening tables is left to pyiceberg and Spark; what a connection means to them is in
``lake_catalog.py``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow.sdk.log import mask_secret

from airflow_provider_pgoutput.hooks.connections import get_connection
from airflow_provider_pgoutput.hooks.lake_catalog import LakeCatalog, lake_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Keys whose values are hidden from logs. Others that travel as secrets may be plain words (a user
#: called ``airflow``), which must not be starred out everywhere.
_SECRET_KEY = re.compile(
    r"secret|password|passwd|token|access.?key|credential|\bsas\b|private.?key|account.?key|header\.|"
    r"connection.?string|authorization",
    re.IGNORECASE,
)
#: The password in a URI with a login.
_URI_PASSWORD = re.compile(r"//[^/?#@:]*:([^/?#]+)@")


def resolve_lake_catalog(iceberg_conn_id: str, catalog_name: str | None = None) -> LakeCatalog:
    """Return the catalog of the connection ``iceberg_conn_id``, its secrets masked in logs from now on.

    :raises ConnectionNotFound: when Airflow does not give the connection.
    :raises ConfigurationError: when Spark could not use it.
    """
    connection = get_connection(iceberg_conn_id)
    catalog = lake_catalog(connection, connection.extra_dejson, catalog_name)
    for properties in (catalog.pyiceberg_properties, catalog.spark_secrets, catalog.environment):
        for key, value in properties.items():
            for secret in _secrets_of(key, value):
                mask_secret(secret)
    return catalog


def _secrets_of(key: str, value: object) -> Iterator[str]:
    """What must not be seen of a property: all of it, or the password in its URI."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _secrets_of(f"{key}.{name}", part)
        return
    if not isinstance(value, str):
        return
    if _SECRET_KEY.search(key):
        yield value
    for password in _URI_PASSWORD.findall(value):
        yield password
        # As whoever uses the URI reads it.
        yield unquote(password)
