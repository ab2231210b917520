"""Resolves the Airflow connection of the lake's catalog, and hides its secrets from logs.

pyiceberg and Spark open the tables. ``lake_catalog.py`` knows what a connection means to them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_provider_pgoutput.airflow_versions import mask_secret
from airflow_provider_pgoutput.hooks.connections import get_connection
from airflow_provider_pgoutput.hooks.lake_catalog import LakeCatalog, lake_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Keys whose values are hidden from logs. Other values that travel as secrets may be plain words (a user
#: called ``airflow``), which must not be replaced by stars everywhere.
_SECRET_KEY = re.compile(
    r"secret|password|passwd|token|access.?key|credential|\bsas\b|private.?key|account.?key|header\.|"
    r"connection.?string|authorization",
    re.IGNORECASE,
)
#: The password in a URI with a login.
_URI_PASSWORD = re.compile(r"//[^/?#@:]*:([^/?#]+)@")


def resolve_lake_catalog(iceberg_conn_id: str, catalog_name: str | None = None) -> LakeCatalog:
    """The catalog of the connection ``iceberg_conn_id``. From now on logs hide its secrets.

    :raises ConnectionNotFound: Airflow does not give the connection.
    :raises ConfigurationError: Spark could not use it.
    """
    connection = get_connection(iceberg_conn_id)
    catalog = lake_catalog(connection, connection.extra_dejson, catalog_name)
    for properties in (catalog.pyiceberg_properties, catalog.spark_secrets, catalog.environment):
        for key, value in properties.items():
            for secret in _secrets_of(key, value):
                mask_secret(secret)
    return catalog


def _secrets_of(key: str, value: object) -> Iterator[str]:
    """The parts of a property that nobody may see: the whole value, or the password in a URI."""
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
        # Decoded, because that is how the URI is read.
        yield unquote(password)
